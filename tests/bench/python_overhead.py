#!/usr/bin/env python3
"""Measures the cost of the Python client in a training step: ranks on this machine, no daemon, nothing to move.

  python_overhead.py [--ranks N] [--steps N] [--step-ms T] [--layers L] [--experts E] [--tensors N] [--busy] [--check]

Each call is timed by itself on every rank, between steps of step-ms, in which a rank waits as for a GPU (with --busy:
computes). With --step-ms 0 steps follow each other, and calls find in the caches what they need. A vote takes from the moment
when the last rank has come until the last one has left. The table has medians over steps, and over ranks where ranks do not
wait for each other, and their ratio to the step. Needs EPLB_LIBRARY, or an installed libeplb, and torch for the store that
ranks meet at (in build/venv, from tests/environment). With --check the medians must be below what docs promise for an
optimised build on an idle machine (exit 1):
  record, a layer                  20 us
  step_boundary without a vote     10 us
  step_boundary with a vote       300 us for 8 ranks
"""

import argparse
import multiprocessing
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))

import eplb  # noqa: E402

LIMITS_US = {"record, a layer": 20.0, "step_boundary without a vote": 10.0, "step_boundary with a vote": 300.0}
VOTE_EVERY = 8


def timed(times, name, call, *arguments):
    """Notes when it began and ended, in seconds of a clock that all processes share."""
    began = time.monotonic()
    call(*arguments)
    times.setdefault(name, []).append((began, time.monotonic()))


def work(seconds, busy):
    if not busy:
        time.sleep(seconds)
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def make_client(rank, options, directory):
    all_gather = eplb.StoreAllGather(dist.FileStore(f"{directory}/store", options.ranks), rank, options.ranks)
    client = eplb.Client.connect(all_gather, num_layers=options.layers, num_experts=options.experts, vote_every=VOTE_EVERY)
    for layer in range(options.layers):
        for number in range(options.tensors):
            client.register(np.zeros((client.placement.num_local_slots, 64), np.float32), name=f"{layer}.{number}",
                            layer=layer, role="weight" if number == 0 else "state")
    client.finish_registration()
    return client


def run_rank(rank, options, directory, results):
    client = make_client(rank, options, directory)
    counts = np.arange(options.experts, dtype=np.int64)
    times = {}
    for step in range(options.steps):
        work(options.step_ms / 1e3, options.busy)
        for layer in range(options.layers):
            timed(times, "record, a layer", client.record, layer, counts)
        voted = (step + 1) % VOTE_EVERY == 0
        timed(times, f"step_boundary with{'' if voted else 'out'} a vote", client.step_boundary, step)
    client.close()
    results.put(times)


def measure(options):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        processes = [context.Process(target=run_rank, args=(rank, options, directory, results)) for rank in range(options.ranks)]
        for process in processes:
            process.start()
        of_ranks = [results.get(timeout=600) for _ in processes]
        for process in processes:
            process.join(60)
    return {name: microseconds([times[name] for times in of_ranks], together=name.endswith("with a vote")) for name in LIMITS_US}


def microseconds(of_ranks, together):
    """Rising. of_ranks: (began, ended) of each call of each rank; together: one call of all ranks is one figure."""
    if not together:
        return sorted((ended - began) * 1e6 for times in of_ranks for began, ended in times)
    return sorted((max(ended for _, ended in call) - max(began for began, _ in call)) * 1e6 for call in zip(*of_ranks))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("ranks", 8), ("steps", 200), ("layers", 4), ("experts", 64), ("tensors", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    times = measure(options)
    print(f"{options.ranks} ranks, {options.layers} layers x {options.experts} experts, {options.tensors} tensors a layer, "
          f"steps of {options.step_ms:g} ms")
    print(f"{'call':32}{'median us':>12}{'p90 us':>12}{'of a step':>12}")
    slow = []
    for name, sorted_times in times.items():
        median, high = statistics.median(sorted_times), sorted_times[int(len(sorted_times) * 0.9)]
        calls = options.layers if name.startswith("record") else 1
        share = f"{median * calls / options.step_ms / 1e3:12.3%}" if options.step_ms > 0 else f"{'-':>12}"
        print(f"{name:32}{median:12.1f}{high:12.1f}{share}")
        if median >= LIMITS_US[name]:
            slow.append(f"{name}: median {median:.1f} us, expected below {LIMITS_US[name]:g} us")
    if options.check and slow:
        print("\n".join(slow), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
