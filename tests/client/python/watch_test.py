"""eplb.torch.watch: counts, reports and their sinks; what balancing would gain is what `eplbctl replay` computes."""

import contextlib
import copy
import csv
import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import unittest
import urllib.request

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import eplb  # noqa: E402
import eplb.torch  # noqa: E402
import numpy as np  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from eplb.torch import routing  # noqa: E402

EXPERTS, WIDTH, TOKENS, GPUS, EVERY = 8, 6, 50, 4, 2


class Gate(nn.Linear):
    """(weights, indices), [tokens, 2] each."""

    def forward(self, x):
        return super().forward(x).softmax(dim=1).topk(2, dim=1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate(WIDTH, EXPERTS)

    def forward(self, x):
        weights, chosen = self.gate(x)
        return x + (weights * chosen).sum(dim=1, keepdim=True)


def model_and_batches(steps, seed=1):
    torch.manual_seed(seed)
    model = nn.Sequential(Block(), nn.Sequential(Block()))
    return model, [torch.randn(TOKENS, WIDTH) + step for step in range(steps)]


def choices_of(model, x):
    """[layers, experts]: what the routers choose."""
    inputs, found = [x, model[0](x)], []
    for block, each in zip((model[0], model[1][0]), inputs):
        found.append(np.bincount(block.gate(each)[1].flatten().numpy(), minlength=EXPERTS))
    return np.stack(found)


def unlike(rank, world, directory):
    """Ranks with other layers."""
    dist.init_process_group("gloo", f"file://{directory}/unlike", rank=rank, world_size=world)
    model, (x,) = model_and_batches(1)
    watcher = eplb.torch.watch(model[:1 + rank], "gate", num_gpus=1, every=1)
    model(x)
    watcher.step()


def shared(rank, world, directory, endpoint):
    """Ranks with different tokens, and a daemon that shows them."""
    dist.init_process_group("gloo", f"file://{directory}/gloo", rank=rank, world_size=world)
    model, _ = model_and_batches(0)
    watcher = eplb.torch.watch(model, "gate", num_gpus=world, every=EVERY, trace=directory / "shared.jsonl",
                               connect={"endpoint": endpoint, "job": "watched", "vote_every": 2, "require_daemon": True})
    for step in range(12):
        model(torch.randn(TOKENS * (1 + rank), WIDTH, generator=torch.Generator().manual_seed(10 * step + rank)))
        report = watcher.step()
        assert bool(report) == (step % EVERY == EVERY - 1)
    version = watcher._client.placement.version
    watcher.close()
    dist.destroy_process_group()
    return version, report["eplb/tokens"]


# Prints how long after a signal its handler ends a replay of some seconds, and exits meanwhile.
INTERRUPTED = """
import signal, time, numpy, eplb.replay
signal.signal(signal.SIGALRM, signal.default_int_handler)
loads = numpy.random.default_rng(1).integers(1, 1000, (100, 58, 256))
signal.setitimer(signal.ITIMER_REAL, 0.2)
due = time.monotonic() + 0.2
try:
    eplb.replay.replay(loads, 288, 32)
except KeyboardInterrupt:
    print(time.monotonic() - due)
"""


def one_is_wrong(rank, world, directory):
    """Connects with an option that rank 1 alone has wrong."""
    dist.init_process_group("gloo", f"file://{directory}/wrong", rank=rank, world_size=world)
    model, _ = model_and_batches(0)
    eplb.torch.watch(model, "gate", num_gpus=world, connect={"vote_every": "2"} if rank else {})


class WatchTest(ranks.RankTest):
    def test_counts_are_those_of_the_routers_and_outputs_stay(self):
        model, batches = model_and_batches(6)
        expected = [model(x) for x in batches]
        watcher = eplb.torch.watch(model, "gate", num_gpus=GPUS, every=EVERY, most_windows=2)
        for step, x in enumerate(batches):
            self.assertTrue(torch.equal(model(x), expected[step]))
            with torch.no_grad():
                model(x)  # an evaluation, which counts nothing
            watcher.step()
        self.assertEqual([(first, last) for first, last, _ in watcher.windows], [(2, 3), (4, 5)])
        watcher.close()
        total = sum(choices_of(model, x) for x in batches[4:])
        np.testing.assert_array_equal(watcher.windows[-1][2], total)
        gpus = total.reshape(2, GPUS, -1).sum(axis=2)
        self.assertAlmostEqual(watcher.last["eplb/balancedness"], float((gpus.mean(axis=1) / gpus.max(axis=1)).mean()))
        self.assertAlmostEqual(watcher.last["eplb/imbalance"], float((total.max(axis=1) / total.mean(axis=1)).mean()))
        self.assertEqual(watcher.last["eplb/dead_experts"], (total == 0).sum())
        self.assertEqual(watcher.last["eplb/tokens"], 2 * 2 * 2 * TOKENS)
        hottest = int(watcher.last["eplb/hottest_layer"]), int(watcher.last["eplb/hottest_expert"])
        self.assertAlmostEqual(watcher.last["eplb/hottest_share"], total[hottest] / total[hottest[0]].sum())
        self.assertFalse(any(module._forward_hooks for module in model.modules()))

    def test_an_attached_router_is_watched_by_expert_and_a_copy_counts_for_nobody(self):
        model, (x,) = model_and_batches(1)
        expected = choices_of(model, x)[0].tolist()
        columns = routing.SlotColumns("moe", EXPERTS, torch.device("cpu"))
        columns.set_slots(np.roll(np.arange(EXPERTS), 3))
        routing.RouterHook(columns, model[0].gate, None)
        watcher = eplb.torch.watch(model, "gate", num_gpus=1, every=1)
        copy.deepcopy(model)(x)
        pickle.loads(pickle.dumps(model[1]))(x)
        model[0](x)
        watcher.step()
        self.assertEqual(watcher.windows[-1][2].tolist(), [expected, [0] * EXPERTS])

    def test_compiled_forwards_are_counted_in_one_graph(self):
        model, batches = model_and_batches(1)
        watcher = eplb.torch.watch(model, "gate", num_gpus=1, every=1, counts_all=True)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            compiled(batches[0])
        self.assertEqual(watcher.step()["eplb/tokens"], 2 * 2 * TOKENS)
        watcher.close()

    def test_would_gain_and_files_equal_eplbctl_replay(self):
        model, batches = model_and_batches(12)
        trace, table = self.directory / "loads.jsonl", self.directory / "loads.csv"
        watcher = eplb.torch.watch(model, "gate", num_gpus=GPUS, every=EVERY, csv=table, trace=trace)
        with self.assertRaisesRegex(eplb.FailedPrecondition, "fewer than 2"):
            watcher.would_gain()
        for x in batches:
            model(x)
            watcher.step()
        with open(table, newline="") as file:
            self.assertEqual([float(row["eplb/tokens"]) for row in csv.DictReader(file)], [2.0 * EVERY * 2 * TOKENS] * 6)
        for slots, options, flags in ((8, {}, ()), (12, {"expert_bytes": 1000}, ("--expert-bytes", "1000")),
                                      (12, {"split": "batch"}, ("--split", "batch"))):
            for policy, found in watcher.would_gain(slots, ("balanced", "incremental", "flow", "auto"), **options).items():
                with self.subTest(policy=policy, slots=slots, **options):
                    run = subprocess.run([f"{os.environ['EPLB_BIN']}/eplbctl", "replay", "--trace", str(trace), "--gpus", str(GPUS),
                                          "--slots", str(slots), "--policy", policy, *flags, "-o", "json"],
                                         capture_output=True, text=True, timeout=60)
                    self.assertEqual(run.returncode, 0, run.stderr)
                    expected = json.loads(run.stdout)["summary"]
                    self.assertEqual(
                        (found.balancedness_without_eplb, found.balancedness, found.seconds_without_eplb, found.seconds_saved,
                         found.seconds_spent, found.rebalances, found.transfers, found.bytes),
                        tuple(expected[name] for name in ("balancedness_without_eplb_mean", "balancedness_mean", "seconds_without_eplb",
                                                          "seconds_saved", "seconds_spent", "rebalances", "transfers", "bytes")))
        watcher.close()

    def test_ranks_are_summed_and_the_daemon_shows_a_job_that_never_moves(self):
        daemon = self.start_daemon()
        results = self.succeed(2, shared, 2, self.directory, f"127.0.0.1:{daemon.grpc_port}")
        self.assertEqual(results, [(0, EVERY * 2 * 2 * 3 * TOKENS)] * 2)
        windows = [json.loads(line)["load"] for line in (self.directory / "shared.jsonl").read_text().splitlines()]
        self.assertEqual(np.sum(windows), 12 * 2 * 2 * 3 * TOKENS)
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.http_port}/api/v1/jobs", timeout=10) as answer:
            job, = json.load(answer)["jobs"]
        self.assertEqual((job["job"], job["version"]), ("watched", 0))

    def test_the_lines_of_the_page(self):
        page = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "watching.md").read_text(encoding="utf-8")
        loop, gain = (block.replace("num_gpus=8", f"num_gpus={GPUS}").replace("num_slots=72", "num_slots=12")
                      for block in re.findall(r"```python\n(.*?)```", page, re.S))
        model, batches = model_and_batches(45)
        logged = []
        lines = {"model": model, "batches": batches, "train_step": lambda model, batch: model(batch), "log": logged.append}
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(loop, lines)
            exec(gain, lines)
        self.assertEqual([report["eplb/tokens"] for report in logged], [20 * 2 * 2 * TOKENS] * 2)
        self.assertRegex(said.getvalue(), r"\Aauto: -?[0-9.]+% of the expert layers' time, balancedness 0\.[0-9]{3}\n\Z")

    def test_the_first_measurement_writes_the_trace_of_the_second(self):
        page = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "should-i-use-it.md").read_text(encoding="utf-8")
        block, = re.findall(r"```python\n(.*?)```", page, re.S)
        model, batches = model_and_batches(40)
        exec(block.replace("num_gpus=8", f"num_gpus={GPUS}").replace("loads.jsonl", f"{self.directory}/loads.jsonl"),
             {"model": model, "batches": batches, "train_step": lambda model, batch: model(batch)})
        loads = [json.loads(line)["load"] for line in (self.directory / "loads.jsonl").read_text().splitlines()]
        self.assertEqual((len(loads), np.sum(loads)), (2, 40 * 2 * 2 * TOKENS))

    def test_a_signal_ends_the_wait_for_a_replay(self):
        run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertLess(float(run.stdout), 0.2 * ranks.PATIENCE)

    def test_ranks_that_differ_are_named(self):
        for result in self.run_ranks(2, unlike, 2, self.directory):
            self.assert_raised(result, "InvalidArgument", "group: rank 1 watches other layers than rank 0")
        for result in self.run_ranks(2, one_is_wrong, 2, self.directory, seconds=ranks.DEADLINE / 4):  # below the all-gather's
            self.assert_raised(result, "Error", "vote_every: '2', expected an integer")

    def test_mistakes_are_named(self):
        model, _ = model_and_batches(0)
        for words, arguments in (("num_experts: 3, and the weights of 0.gate have 8 rows", {"router": "gate", "num_gpus": 1, "num_experts": 3}),
                                 ('no module named "router"', {"router": "router", "num_gpus": 1}),
                                 ("num_gpus: 3, expected", {"router": "gate", "num_gpus": 3}),
                                 ("every: 0", {"router": "gate", "num_gpus": 1, "every": 0})):
            with self.assertRaisesRegex(eplb.InvalidArgument, words):
                eplb.torch.watch(model, **arguments)
        self.assertEqual(eplb.torch.watch(model, "?.gate", num_gpus=1).names, ["0.gate"])
        with self.assertRaisesRegex(eplb.InvalidArgument, r"num_experts: give it: .* have \[6, 8\] rows"):
            eplb.torch.watch(nn.ModuleDict({"gate": Gate(WIDTH, EXPERTS), "more": nn.ModuleDict({"gate": Gate(WIDTH, 6)})}), "gate", num_gpus=1)


if __name__ == "__main__":
    unittest.main()
