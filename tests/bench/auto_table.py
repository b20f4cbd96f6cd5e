#!/usr/bin/env python3
"""Prints, as Markdown, how policy `auto` does beside each of its candidates alone and beside doing nothing.

Series: the recorded trace in windows of 10, 20 and 50 steps; experts whose shares drift (tests/data/workloads); a shift of the
domain, after which another distribution holds; two distributions that alternate; a distribution drawn anew in each window.
Prices: moving all rows of a GPU takes that part of an even window. Split: tokens of an expert are split equally among its
replicas, or each window exactly. Net: seconds saved less seconds spent, as a part of the seconds without any move; the best
candidate is that of the back-test, as it would have run alone; "do nothing" is a candidate too.

Needs numpy (in build/venv, from tests/environment). Exit 1 when `auto` is more than 2 points behind the best candidate (trace,
drift, shift), more than 0.5 points below doing nothing (anywhere), or when less than 85 % of its predictions hold, over the
rows of one price and split.

  tests/bench/auto_table.py [--bin build/release/bin] [--windows 48] [--layers 3] [--price P].. [--split equal|batch]
                            [--trace FILE --slots S --gpus G] [SERIES ..]
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

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
sys.path.insert(0, str(DATA / "workloads"))

PRICES = [0.01, 0.1, 1.0, 10.0]
SPLITS = ["equal", "batch"]
MOST_BEHIND = 0.02
MOST_HARM = 0.005
LEAST_HELD = 0.85
TOKEN_NS = 100
EXPERT_BYTES = 1_000_000

Series = collections.namedtuple("Series", "name loads slots gpus has_bar")


def recorded(numpy, path, records):
    """A recorded trace [windows, layers, experts], so many of its records a window."""
    rows = [json.loads(line)["load"] for line in open(path, encoding="utf-8")]
    loads = numpy.array(rows[:len(rows) // records * records])
    return loads.reshape(-1, records, *loads.shape[1:]).sum(1)


def drawn(workloads, numpy, shape, kind, windows):
    """Windows of logn1 distributions: shift, alternate (every 4 windows), anew."""
    config = workloads.SCN[shape]
    random = numpy.random.default_rng(7)

    def draw():
        return workloads._probs("logn1", config["L"], config["E"], random)

    first, second = draw(), draw()
    shares = {"shift": lambda t: first if t < windows // 2 else second,
              "alternate": lambda t: first if t // 4 % 2 == 0 else second,
              "anew": lambda t: draw()}[kind]
    return [workloads._counts(shares(t), config["tot"], random) for t in range(windows)]


def all_series(workloads, numpy, windows):
    for records in (2, 4, 10):
        for slots in (64, 72):
            loads = recorded(numpy, DATA / "moe64_aux.jsonl", records)
            yield Series(f"moe64_aux/{5 * records}/{slots}", loads, slots, 8, True)
    # The large shape takes half of the time with one load.
    for shape, drifting in (("d_qwen3_235b", ("zipf08", "zipf12", "logn1", "unif")), ("a_dsv3_prefill", ("logn1",))):
        config = workloads.SCN[shape]
        for load in drifting:
            for sigma in (0.05, 0.2):
                drift, _ = workloads.series(shape, load, 0, windows, sigma)
                yield Series(f"{shape}/{load}/{sigma}", drift, config["S"], config["G"], True)
        for kind in ("shift", "alternate", "anew") if shape == "d_qwen3_235b" else ("shift",):
            loads = drawn(workloads, numpy, shape, kind, windows)
            yield Series(f"{shape}/{kind}", loads, config["S"], config["G"], kind == "shift")


def replay(numpy, binary, series, split, price):
    """The replay of `auto`, and the net seconds without any move."""
    loads = numpy.array(series.loads)
    window_seconds = loads.sum() / len(loads) / series.gpus * TOKEN_NS * 1e-9
    gpu_bytes = EXPERT_BYTES * -(-series.slots // series.gpus) * loads.shape[1]
    gigabytes_per_second = gpu_bytes / (price * window_seconds) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.npy"
        numpy.save(path, loads)

        def run(policy, min_gain):
            command = [f"{binary}/eplbctl", "replay", "--trace", path, "--slots", series.slots, "--gpus", series.gpus,
                       "--policy", policy, "--split", split, "--hierarchy", "none", "--effort", "fast",
                       "--min-gain", min_gain, "--expert-bytes", EXPERT_BYTES, "--token-ns", TOKEN_NS,
                       "--link-gbps", f"{gigabytes_per_second:.9g},{gigabytes_per_second:.9g}", "-o", "json"]
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600,
                                  check=True)
            return json.loads(done.stdout)

        # The starting layout: no gain is all of the peak load.
        unmoved = run("incremental", 1)["summary"]
        net = unmoved["seconds_saved"] - unmoved["seconds_spent"]
        return run("auto", 0.01), unmoved["seconds_without_eplb"] - unmoved["seconds_saved"], net


def parts_of(result, unmoved_seconds, unmoved_net):
    """(net of auto, net of the best candidate, its name), as parts of the seconds without any move."""
    summary = result["summary"]
    net = summary["seconds_saved"] - summary["seconds_spent"] - unmoved_net
    best = max(result["candidates"], key=lambda one: one["seconds_saved"] - one["seconds_spent"])
    best_net = best["seconds_saved"] - best["seconds_spent"]
    return net / unmoved_seconds, best_net / unmoved_seconds, best["name"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bin", help="the folder of eplbctl")
    parser.add_argument("--windows", type=int, default=48)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--price", type=float, action="append", help="may be repeated; all by default")
    parser.add_argument("--split", choices=SPLITS, help="both by default")
    parser.add_argument("--trace", metavar="FILE", help="JSON lines as `eplbctl replay` reads them, in place of the series")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("names", nargs="*", metavar="SERIES", help="all by default; a beginning is enough")
    arguments = parser.parse_args()
    if (arguments.trace is None) != (arguments.slots is None) or (arguments.trace is None) != (arguments.gpus is None):
        parser.error("--trace, --slots and --gpus are given together")
    import numpy
    import workloads  # beside the data, needs numpy
    for config in workloads.SCN.values():
        config["L"] = arguments.layers
    if arguments.trace is not None:
        every = [Series(pathlib.Path(arguments.trace).stem, recorded(numpy, arguments.trace, 1), arguments.slots,
                        arguments.gpus, True)]
    else:
        every = list(all_series(workloads, numpy, arguments.windows))
    if arguments.names:
        every = [one for one in every if any(one.name.startswith(start) for start in arguments.names)]

    print("| series | split | price | auto | best candidate | behind | balancedness | transfers | predictions held |")
    print("|---|---|---|---|---|---|---|---|---|")
    missed = []
    held = collections.defaultdict(lambda: [0, 0])  # by split and price: held, all
    rows = [(one, split, price) for one in every for split in SPLITS if arguments.split in (None, split)
            for price in arguments.price or PRICES]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda row: replay(numpy, arguments.bin, *row), rows)
        for (one, split, price), (result, unmoved_seconds, unmoved_net) in zip(rows, results):
            summary = result["summary"]
            net, best_net, best_name = parts_of(result, unmoved_seconds, unmoved_net)
            held[split, price][0] += summary["predictions_held"]
            held[split, price][1] += summary["predictions"]
            print(f"| {one.name} | {split} | {price:g} | {net:.2%} | {best_net:.2%} {best_name} | {best_net - net:.2%} "
                  f"| {summary['balancedness_mean']:.4f} | {summary['transfers']} "
                  f"| {summary['predictions_held']} of {summary['predictions']} |", flush=True)
            if (one.has_bar and best_net - net > MOST_BEHIND) or net < -MOST_HARM:
                missed.append(f"{one.name}, {split}, price {price:g}")
    for (split, price), (of, predictions) in held.items():
        print(f"held, {split}, price {price:g}: {of} of {predictions}, {of / max(1, predictions):.1%}")
        if of < LEAST_HELD * predictions:
            missed.append(f"predictions, {split}, price {price:g}")
    for row in missed:
        print(f"missed: {row}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
