"""Rank processes for the tests of the Python package: forked, on loopback and files, with every wait bounded.

ctest sets EPLB_LIBRARY, EPLB_BIN and EPLB_DATA, and the package's directory in PYTHONPATH. The process of the tests itself
never connects a client, so that its children may.
"""

import multiprocessing
import pathlib
import sys
import tempfile
import time
import traceback
import unittest

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integration"))
import job as harness  # noqa: E402

import eplb  # noqa: E402

torch.set_num_threads(1)
torch.optim.SGD([torch.zeros(1)], lr=1.0)  # torch imports its compiler with the first optimizer: here, not in each rank
PATIENCE = harness.PATIENCE
DEADLINE = 120 * PATIENCE  # limit of a job of rank processes, seconds


class Failure:
    """An exception of a rank: its class names, most special first, its text and its traceback."""

    def __init__(self, error):
        self.classes = [each.__name__ for each in type(error).__mro__]
        self.text, self.trace = str(error), traceback.format_exc()

    def __repr__(self):
        return self.trace


def _run(connection, function, rank, arguments):
    try:
        result = function(rank, *arguments)
    except BaseException as error:
        result = Failure(error)
    connection.send(result)
    connection.close()


class RankTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="eplb-py-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def run_ranks(self, world, function, *arguments, seconds=DEADLINE):
        """function(rank, *arguments) in `world` processes. returns: their results, Failures among them, in rank order."""
        context = multiprocessing.get_context("fork")
        pipes, processes = [], []
        for rank in range(world):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(sender, function, rank, arguments))
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        deadline = time.monotonic() + seconds
        try:
            return [self._result(pipe, rank, deadline) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()

    def succeed(self, world, function, *arguments, **options):
        """Returns the results of run_ranks, of which none may fail."""
        results = self.run_ranks(world, function, *arguments, **options)
        for rank, result in enumerate(results):
            self.assertNotIsInstance(result, Failure, f"rank {rank}: {result!r}")
        return results

    def assert_raised(self, result, kind, *words):
        self.assertIsInstance(result, Failure, result)
        self.assertIn(kind, result.classes, result.trace)
        for word in words:
            self.assertIn(word, result.text)

    def _result(self, pipe, rank, deadline):
        self.assertTrue(pipe.poll(max(0.1, deadline - time.monotonic())), f"rank {rank} has not ended in time")
        try:
            return pipe.recv()
        except EOFError:
            return Failure(RuntimeError("the process died"))

    def start_daemon(self, config=""):
        """An eplbd that decides every 4 steps whenever it gains anything."""
        daemon = harness.Daemon(self.directory, policy_every=4, config=f"min_gain = 0.01\nhorizon_steps = 100000\n{config}")
        daemon.start()
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.kill())
        return daemon


def store_all_gather(directory, rank, world, seconds=30.0, name="store"):
    store = dist.FileStore(str(directory / name), world)
    return eplb.StoreAllGather(store, rank, world, deadline_seconds=seconds * PATIENCE)


def connect(directory, rank, world, **options):
    """A client in a job of 2 layers and 8 experts, which meets over a file."""
    shape = dict(num_layers=2, num_experts=8, vote_every=2, report_every=4)
    all_gather = options.pop("all_gather", None) or store_all_gather(directory, rank, world)
    return eplb.Client.connect(all_gather, **{**shape, **options})


class Experts:
    """Tensors of one rank whose rows are a function of layer, expert and the number of updates.

    make: (shape, dtype name) -> a tensor of zeros. Weights are of 2 bytes, state of 4 and, strided, of 8. Pipeline stages
    hold the layers in turn.
    """

    KINDS = (("weight", "float16", "weight", 1), ("moment", "float32", "state", 1), ("master", "float64", "state", 2))

    def __init__(self, client, make, row=(3, 5)):
        self.client, self.placement, self.row, self.updates = client, client.placement, row, 0
        self.tensors = []
        stages = client.options.pipeline_parallel_size or 1
        stage = client.options.rank * stages // client.options.world_size
        self.layers = [layer for layer in range(self.placement.num_layers) if layer % stages == stage]
        for layer in self.layers:
            for name, dtype, role, spread in self.KINDS:
                memory = make((self.placement.num_local_slots * spread, *row), dtype)
                tensor = memory[::spread]
                client.register(tensor, name=f"layers.{layer}.{name}", layer=layer, role=role)
                self.tensors.append((layer, name, tensor))
        self._fill()

    def update(self):
        """Reads each row, and writes what comes after it: a lost or foreign row shows."""
        self.verify()
        self.updates += 1
        self._fill()

    def verify(self):
        for layer, name, tensor in self.tensors:
            for slot, expert in enumerate(self.placement.local_experts(layer)):
                if expert >= 0:
                    found, expected = np.asarray(tensor[slot].tolist()), self._value(layer, expert, name)
                    assert (found == expected).all(), (layer, name, slot, expert, found, expected)

    def _value(self, layer, expert, name):
        return 1.0 + layer + 4 * expert + 64 * (self.updates % 8) + {"weight": 0, "moment": 0.25, "master": 0.5}[name]

    def _fill(self):
        for layer, name, tensor in self.tensors:
            for slot, expert in enumerate(self.placement.local_experts(layer)):
                if expert >= 0:
                    tensor[slot:slot + 1] = self._value(layer, expert, name)


def numpy_zeros(shape, dtype):
    return np.zeros(shape, dtype)


def torch_zeros(shape, dtype):
    return torch.zeros(shape, dtype=getattr(torch, dtype))


def skewed(placement, layer, rank):
    """Counts [8] whose hot experts are two that only the first GPU holds, wherever they go."""
    counts = np.full(8, 10 + rank, np.int64)
    slots = placement.physical_to_logical_map[layer]
    per_gpu = placement.num_slots // placement.num_gpus
    counts[np.setdiff1d(slots[:per_gpu], slots[per_gpu:])[:2]] += 500 + 100 * layer
    return counts


def train(client, experts, steps, enough=2, counts=None, pause=0.01):
    """Trains until there were `enough` switches. counts: makes of an array what is recorded. pause: of a step, seconds.
    returns: (step, version, received bytes) of each switch."""
    switches, loads = [], {}
    for step in range(steps):
        experts.update()
        for layer in experts.layers:
            of_layer = loads.setdefault(layer, skewed(client.placement, layer, client.options.rank))
            client.record(layer, of_layer if counts is None else counts(of_layer))
        result = client.step_boundary(step)
        if result.switched:
            assert result.reason and result.version == client.placement.version, result
            switches.append((step, result.version, result.received_bytes))
            loads.clear()
        if len(switches) == enough:
            break
        time.sleep(pause)
    experts.verify()
    return switches
