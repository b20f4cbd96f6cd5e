#!/usr/bin/env python3
"""Prints, as Markdown, how policy `auto` does beside each of its candidates alone and beside doing nothing.

Series: 15 regimes (regimes.py), in windows of 50 steps as a job of default settings has them; or a trace of your own. Prices: moving all
rows of a GPU takes that part of an even window. Split: tokens of an expert are split equally among its replicas, or each window exactly.
Net: seconds saved less seconds spent, as a part of the seconds without any move. The best candidate is the best replay of one candidate as
a fixed policy (forecasts have no flag), or "do nothing".

Needs numpy (in build/venv, from tests/environment). Exit 1 when `auto` is in a row more than 2 points behind the best candidate or
more than 0.3 points below doing nothing. Exit 1 also when less than 85 % of the predictions of one price and split hold.

  tests/bench/auto_table.py [--bin build/release/bin] [--windows 96] [--layers 3] [--price P].. [--split equal|batch]
                            [--trace FILE --slots S --gpus G] [REGIME ..]
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import regimes

PRICES = [0.03, 0.3, 3.0]
SPLITS = ["equal", "batch"]
MOST_BEHIND = 0.02
MOST_HARM = 0.003
LEAST_HELD = 0.85
TOKEN_NS = 100
EXPERT_BYTES = 1_000_000
WINDOW_FLAGS = {"last": "last", "ema": "ema:0.5", "sum": "sum"}

SLOTS, GPUS = 72, 8

Series = collections.namedtuple("Series", "name loads slots gpus text")


def series_of(name, windows, layers):
    loads = regimes.windows(name, windows, layers)
    return Series(name, loads, SLOTS, GPUS, regimes.json_lines(loads, 50))


def replay(binary, series, split, price):
    """The summary and the net of `auto`, the net of the best candidate, and its name."""
    window_seconds = series.loads.sum() / len(series.loads) / series.gpus * TOKEN_NS * 1e-9
    gpu_bytes = EXPERT_BYTES * -(-series.slots // series.gpus) * series.loads.shape[1]
    gigabytes_per_second = gpu_bytes / (price * window_seconds) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.jsonl"
        path.write_text(series.text)

        def run(policy, min_gain, *more):
            # Steps of any length: no pause is too long.
            command = [f"{binary}/eplbctl", "replay", "--trace", path, "--slots", series.slots, "--gpus", series.gpus,
                       "--policy", policy, "--split", split, "--hierarchy", "none", "--effort", "fast", "--max-pause", "1h",
                       "--min-gain", min_gain, "--expert-bytes", EXPERT_BYTES, "--token-ns", TOKEN_NS,
                       "--link-gbps", f"{gigabytes_per_second:.9g},{gigabytes_per_second:.9g}", *more, "-o", "json"]
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600,
                                  check=True)
            return json.loads(done.stdout)

        def net(summary):
            return summary["seconds_saved"] - summary["seconds_spent"]

        # The starting layout: no gain is all of the peak load.
        unmoved = run("incremental", 1)["summary"]
        seconds = unmoved["seconds_without_eplb"] - unmoved["seconds_saved"]
        result = run("auto", 0.01)
        best = (0, "none")
        for one in result["candidates"]:
            policy, _, rest = one["name"].partition("/")
            estimate, _, cadence = rest.partition("/")
            if estimate in WINDOW_FLAGS:
                alone = run(policy, 0.01, "--every", cadence, "--history", 4, "--window", WINDOW_FLAGS[estimate])["summary"]
                best = max(best, ((net(alone) - net(unmoved)) / seconds, one["name"]))
        return result["summary"], (net(result["summary"]) - net(unmoved)) / seconds, *best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bin", help="the folder of eplbctl")
    parser.add_argument("--windows", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--price", type=float, action="append", help="may be repeated; all by default")
    parser.add_argument("--split", choices=SPLITS, help="both by default")
    parser.add_argument("--trace", metavar="FILE", help="JSON lines as `eplbctl replay` reads them, in place of the regimes")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("names", nargs="*", metavar="REGIME", choices=[[], *regimes.REGIMES], help="all by default")
    arguments = parser.parse_args()
    if (arguments.trace is None) != (arguments.slots is None) or (arguments.trace is None) != (arguments.gpus is None):
        parser.error("--trace, --slots and --gpus are given together")
    if arguments.trace is not None:
        text = pathlib.Path(arguments.trace).read_text(encoding="utf-8")
        loads = np.array([json.loads(line)["load"] for line in text.splitlines()])
        every = [Series(pathlib.Path(arguments.trace).stem, loads, arguments.slots, arguments.gpus, text)]
    else:
        names = arguments.names or regimes.REGIMES
        every = [series_of(name, arguments.windows, arguments.layers) for name in names]

    print("| series | split | price | auto | best candidate | behind | balancedness | transfers | predictions held |")
    print("|---|---|---|---|---|---|---|---|---|")
    missed = []
    held = collections.defaultdict(lambda: [0, 0])  # by split and price: held, all
    rows = [(one, split, price) for one in every for split in SPLITS if arguments.split in (None, split)
            for price in arguments.price or PRICES]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda row: replay(arguments.bin, *row), rows)
        for (one, split, price), (summary, net, best_net, best_name) in zip(rows, results):
            held[split, price][0] += summary["predictions_held"]
            held[split, price][1] += summary["predictions"]
            print(f"| {one.name} | {split} | {price:g} | {net:.2%} | {best_net:.2%} {best_name} | {best_net - net:.2%} "
                  f"| {summary['balancedness_mean']:.4f} | {summary['transfers']} "
                  f"| {summary['predictions_held']} of {summary['predictions']} |", flush=True)
            row = f"{one.name}, {split}, price {price:g}"
            if best_net - net > MOST_BEHIND or net < -MOST_HARM:
                missed.append(row)
    for (split, price), (of, predictions) in held.items():
        print(f"held, {split}, price {price:g}: {of} of {predictions}, {of / max(1, predictions):.1%}")
        if of < LEAST_HELD * predictions:
            missed.append(f"predictions, {split}, price {price:g}")
    for row in missed:
        print(f"missed: {row}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
