#!/usr/bin/env python3
"""Prints, as Markdown, how many experts `eplbctl plan --survive 1` covers, and what that costs. Further columns are the means over
the losses of each GPU (`--without-gpus each`), from the plan as it is and from the one that survives.

Loads are those of workload_families.serving(), and with --public the public files that it resembles. Coverage and balancedness are
computed here from placements and loads. *All* is with --survive-cost 1: as many experts as slots allow, whatever that costs.

Exit 1 when a bar is missed: a layer costs more than MOST_COST, has fewer experts covered than LEAST_COVERED, the hottest first, or
the answers for all GPUs take more than MOST_SECONDS.

  tests/bench/losses.py [--bin build/release/bin] [--public DIR] [--seed 1] [--no-time] [LOAD ..]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

import workload_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = [(288, 32), (320, 64)]
MOST_COST = 0.01
LEAST_COVERED = {288: 20, 320: 32}
MOST_SECONDS = 1


def plan(options, path, shape, *more):
    slots, gpus = shape
    command = [options.bin / "eplbctl", "plan", "--load", path, "--slots", slots, "--gpus", gpus, "-o", "json", *more]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"eplbctl plan: {done.stderr}")
    return json.loads(done.stdout)


def hottest_covered(placement, load, gpus):
    """[number of the hottest experts of a layer that all have slots on two GPUs]"""
    numbers = []
    for held, row in zip(placement["physical_to_logical_map"], load):
        on = [set() for _ in row]
        for slot, expert in enumerate(held):
            on[expert].add(slot * gpus // len(held))
        order = np.argsort(-row, kind="stable")
        numbers.append(next((i for i, expert in enumerate(order) if len(on[expert]) < 2), len(order)))
    return numbers


def balancedness(placement, load, gpus):
    figures = []
    for held, row in zip(np.array(placement["physical_to_logical_map"]), load):
        tokens = (row / np.bincount(held, minlength=len(row)))[held].reshape(gpus, -1).sum(1)
        figures.append(tokens.mean() / tokens.max())
    return np.array(figures)


def judge(options, name, path, load, shape, folder):
    """Prints the row of a load and a shape; returns the bars that it misses."""
    slots, gpus = shape
    files = {kind: folder / f"{kind}.json" for kind in ("plain", "covered")}
    plain = plan(options, path, shape, "--out", files["plain"])["placement"]
    covered = plan(options, path, shape, "--survive", 1, "--survive-cost", MOST_COST, "--out", files["covered"])["placement"]
    everything = plan(options, path, shape, "--survive", 1, "--survive-cost", 1)["placement"]
    before = balancedness(plain, load, gpus)
    cost, all_cost = (before - balancedness(one, load, gpus) for one in (covered, everything))
    numbers, all_numbers = hottest_covered(covered, load, gpus), hottest_covered(everything, load, gpus)
    cells = [f"{name}, {slots} / {gpus}", f"{min(hottest_covered(plain, load, gpus))}",
             f"{min(numbers)}, {np.mean(numbers):.1f}", f"{cost.mean():.4f}, {cost.max():.4f}",
             f"{min(all_numbers)}", f"{all_cost.mean():.3f}"]
    missed = [f"{name}, {slots} slots: {text}" for holds, text in (
        (cost.max() <= MOST_COST + 1e-9, f"a layer costs {cost.max():.4f}"),
        (min(numbers) >= LEAST_COVERED[slots], f"a layer has {min(numbers)} covered"),
        (min(all_numbers) == slots - len(load[0]), f"with any cost a layer has {min(all_numbers)} covered")) if not holds]
    for file in files.values():
        start = time.monotonic()
        answers = plan(options, path, shape, "--previous", file, "--without-gpus", "each")
        seconds = time.monotonic() - start
        losses = answers["losses"]
        lost = np.mean([row["num_experts_lost"] for row in losses]) / len(load)
        cells.append(f"{np.mean([row['balancedness']['mean'] for row in losses]):.3f}, {lost:.1f}")
        if len(losses) != gpus or any(row["slots_to_fill"] != row["num_experts_lost"] for row in losses):
            missed.append(f"{name}, {slots} slots: a loss fills other slots than those of lost experts")
        if options.time and gpus == 32 and seconds > MOST_SECONDS:
            missed.append(f"{name}, {slots} slots: the answers for each GPU take {seconds:.2f} s")
    print("|", " | ".join(cells), "|", flush=True)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("loads", nargs="*", metavar="LOAD", help="1k1k, 1k8k, 8k1k")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--public", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-time", dest="time", action="store_false")
    options = parser.parse_args()
    loads = workload_families.serving(options.seed)
    if options.public:
        loads.update({f"public {name}": load for name, load in workload_families.read_public("serving", options.public).items()})
    missed = []
    print("| load, slots / GPUs | covered without | covered: least, mean | cost: mean, max | all | cost | after a loss, lost a layer "
          "| the same from the covered plan |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, load in loads.items():
            if options.loads and name not in options.loads:
                continue
            path = pathlib.Path(folder, "load.json")
            path.write_text(json.dumps(load.tolist()))
            for shape in SHAPES:
                missed += judge(options, name, path, load.astype(float), shape, pathlib.Path(folder))
    for text in missed:
        print(text, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
