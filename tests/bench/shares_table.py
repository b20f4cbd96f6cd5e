#!/usr/bin/env python3
"""Prints, as Markdown, what shares that are solved from the last window are worth in the next one, beside equal shares.

A placement for each window of the recorded trace and of drifting series (tests/data/workloads), by `incremental` from the one
before. `part` of an expert's tokens goes to its replicas by the exact split of the window that was planned for, the rest in
equal shares. Balancedness (mean / max GPU load) of the window after it, mean over layers. Judges
docs/adr/2026-11-25-no-shares-from-the-daemon.md.

Needs numpy (in build/venv, from tests/environment) and the library of a build.

  EPLB_LIBRARY=build/release/lib/libeplb.so tests/bench/shares_table.py [--windows 16] [--layers 3]
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
sys.path[:0] = [str(ROOT / "client" / "python"), str(DATA / "workloads")]

PARTS = [0, 0.1, 0.3, 0.5, 1.0]


def all_series(numpy, workloads, windows):
    """(name, loads [windows, layers, experts], slots, GPUs)."""
    rows = [json.loads(line)["load"] for line in open(DATA / "moe64_aux.jsonl", encoding="utf-8")]
    records = numpy.array(rows, dtype=numpy.int64)
    for length in (2, 4, 10):
        yield f"moe64_aux, windows of {5 * length} steps", records.reshape(-1, length, *records.shape[1:]).sum(1), 72, 8
    for shape in ("a_dsv3_prefill", "d_qwen3_235b"):
        config = workloads.SCN[shape]
        for load in ("zipf08", "logn1"):
            for sigma in (0.05, 0.2):
                drift, _ = workloads.series(shape, load, 0, windows, sigma)
                yield f"{shape}/{load}, sigma {sigma}", numpy.array(drift, dtype=numpy.int64), config["S"], config["G"]


def balancedness(numpy, loads, slots, gpus):
    """Returns the figure of each part, over all windows but the first."""
    from eplb.placement import plan
    from eplb.splits import Splitter
    previous, seen = None, {part: [] for part in PARTS}
    for now, later in zip(loads, loads[1:]):
        previous = plan(now.astype(float), num_slots=slots, num_gpus=gpus, previous=previous,
                        policy="balanced" if previous is None else "incremental")
        splitter = Splitter(previous, num_gpus=gpus)
        for layer, experts in enumerate(previous.physical_to_logical_map):
            equal = 1 / previous.logical_replica_count[layer][experts]
            quotas = numpy.asarray(splitter.split(layer, now[layer]).quotas)
            shares = numpy.where(now[layer][experts] > 0, quotas / numpy.maximum(now[layer][experts], 1), equal)
            for part, ratios in seen.items():
                on_slots = later[layer][experts] * ((1 - part) * equal + part * shares)
                on_gpus = on_slots.reshape(gpus, -1).sum(1)
                ratios.append(on_gpus.mean() / on_gpus.max())
    return {part: float(numpy.mean(ratios)) for part, ratios in seen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--layers", type=int, default=3)
    arguments = parser.parse_args()
    import numpy
    import workloads  # beside the data, needs numpy
    for config in workloads.SCN.values():
        config["L"] = arguments.layers
    print("| series | " + " | ".join("equal shares" if part == 0 else f"{part:.0%}" for part in PARTS) + " |")
    print("|---" * (1 + len(PARTS)) + "|")
    for name, loads, slots, gpus in all_series(numpy, workloads, arguments.windows):
        seen = balancedness(numpy, loads, slots, gpus)
        print(f"| {name} | " + " | ".join(f"{seen[part]:.4f}" for part in PARTS) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
