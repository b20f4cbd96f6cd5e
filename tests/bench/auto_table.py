#!/usr/bin/env python3
"""Prints, as Markdown, how policy `auto` does beside each of its candidates alone and beside doing nothing.

Series: the recorded trace in windows of 10, 20 and 50 steps; experts whose shares drift (tests/data/workloads); a shift of the
domain, after which another distribution holds; two distributions that alternate; a distribution drawn anew in each window.
Prices: moving all rows of a GPU takes that part of an even window. Net: seconds saved less seconds spent, as a part of the
seconds without any move; the best candidate is that of the back-test, as it would have run alone.

Needs numpy (python3-numpy). Exit 1 when `auto` is more than 2 points behind the best candidate (trace, drift, shift), more than
0.5 points below doing nothing (anywhere), or when less than 85 % of its predictions hold.

  tests/bench/auto_table.py [--bin build/release/bin] [--windows 48] [--layers 3] [SERIES ..]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
sys.path.insert(0, str(DATA / "workloads"))

PRICES = [0.01, 0.1, 1.0]
MOST_BEHIND = 0.02
MOST_HARM = 0.005
LEAST_HELD = 0.85
TOKEN_NS = 100
EXPERT_BYTES = 1_000_000


def recorded(numpy, records):
    """The recorded trace, so many of its records a window."""
    rows = [json.loads(line)["load"] for line in open(DATA / "moe64_aux.jsonl", encoding="utf-8")]
    loads = numpy.array(rows)
    return loads.reshape(-1, records, *loads.shape[1:]).sum(1)


def drawn(workloads, numpy, shape, kind, windows):
    """Windows of logn1 distributions: shift, alternate (every 4 windows), anew."""
    config = workloads.SCN[shape]
    random = numpy.random.default_rng(7)
    draw = lambda: workloads._probs("logn1", config["L"], config["E"], random)  # pylint: disable=protected-access
    first, second = draw(), draw()
    shares = {"shift": lambda t: first if t < windows // 2 else second,
              "alternate": lambda t: first if t // 4 % 2 == 0 else second,
              "anew": lambda t: draw()}[kind]
    return [workloads._counts(shares(t), config["tot"], random) for t in range(windows)]  # pylint: disable=protected-access


def all_series(workloads, numpy, windows):
    """name -> (windows, slots, GPUs, whether the best candidate is a bar)."""
    series = {}
    for records in (2, 4, 10):
        for slots in (64, 72):
            series[f"moe64_aux/{5 * records}/{slots}"] = (recorded(numpy, records), slots, 8, True)
    for shape in ("a_dsv3_prefill", "d_qwen3_235b"):
        config = workloads.SCN[shape]
        for load in ("zipf08", "zipf12", "logn1", "unif"):
            for sigma in (0.05, 0.2):
                drift, _ = workloads.series(shape, load, 0, windows, sigma)
                series[f"{shape}/{load}/{sigma}"] = (drift, config["S"], config["G"], True)
        for kind in ("shift", "alternate", "anew"):
            series[f"{shape}/{kind}"] = (drawn(workloads, numpy, shape, kind, windows), config["S"], config["G"],
                                         kind == "shift")
    return series


def replay(numpy, binary, loads, slots, gpus, price):
    loads = numpy.array(loads)
    window_seconds = loads.sum() / len(loads) / gpus * TOKEN_NS * 1e-9
    gpu_bytes = EXPERT_BYTES * -(-slots // gpus) * loads.shape[1]
    gigabytes_per_second = gpu_bytes / (price * window_seconds) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.npy"
        numpy.save(path, loads)
        command = [f"{binary}/eplbctl", "replay", "--trace", path, "--slots", slots, "--gpus", gpus, "--policy", "auto",
                   "--hierarchy", "none", "--effort", "fast", "--min-gain", 0.01, "--expert-bytes", EXPERT_BYTES,
                   "--token-ns", TOKEN_NS, "--link-gbps", f"{gigabytes_per_second:.9g}", "-o", "json"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--windows", type=int, default=48)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("names", nargs="*", metavar="SERIES", help="all by default; a beginning is enough")
    arguments = parser.parse_args()
    import numpy
    import workloads  # beside the data, needs numpy
    for config in workloads.SCN.values():
        config["L"] = arguments.layers

    print("| series | price | auto | best candidate | behind | balancedness | transfers | predictions held |")
    print("|---|---|---|---|---|---|---|---|")
    missed = []
    for name, (loads, slots, gpus, has_bar) in all_series(workloads, numpy, arguments.windows).items():
        if arguments.names and not any(name.startswith(start) for start in arguments.names):
            continue
        for price in PRICES:
            result = replay(numpy, arguments.bin, loads, slots, gpus, price)
            summary = result["summary"]
            net = (summary["seconds_saved"] - summary["seconds_spent"]) / summary["seconds_static"]
            best = max(result["candidates"], key=lambda one: one["seconds_saved"] - one["seconds_spent"])
            best_net = (best["seconds_saved"] - best["seconds_spent"]) / summary["seconds_static"]
            held = summary["predictions_held"] / max(1, summary["predictions"])
            print(f"| {name} | {price} | {net:.2%} | {best_net:.2%} {best['name']} | {best_net - net:.2%} "
                  f"| {summary['balancedness_mean']:.4f} | {summary['transfers']} "
                  f"| {summary['predictions_held']} of {summary['predictions']} |", flush=True)
            if (has_bar and best_net - net > MOST_BEHIND) or net < -MOST_HARM or held < LEAST_HELD:
                missed.append(f"{name} at price {price}")
    if missed:
        print("missed:", ", ".join(missed), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
