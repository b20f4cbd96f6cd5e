#!/usr/bin/env python3
"""Expert loads of several workloads of one model, drawn from a seed, that resemble two public sets.

serving(): three workloads of 58 layers of 256 experts, as DeepSeek-R1 has at 1k/1k, 1k/8k and 8k/1k input/output tokens
(NVIDIA/srt-slurm, configs/expert-distributions). The first two differ by little more than chance; the third has the same hot experts
with other shares.
domains(): four workloads of 26 layers of 64 experts, as DeepSeek-V2-Lite has on intents, law, summaries and translation
(deepseek-ai/ESFT, results/expert_scores). Each has its own hot experts.

Both return {name: int64 counts [layers, experts]}. As a program it writes them as files that `eplbctl plan --load` reads, or prints
their statistics, and with --public those of the public files:

  tests/bench/workload_families.py serving|domains --out DIR
  tests/bench/workload_families.py serving|domains --statistics [--public DIR]
"""
import argparse
import itertools
import json
import pathlib

import numpy as np

# Constants that give the statistics of the public files; --statistics prints both.
#
# Largest part of a layer's tokens that an expert can have. In the first family each token takes 8 experts, and some experts are among
# them nearly always; in the second it takes 6, but no expert has more than an eighth.
LARGEST_SHARE = 1 / 8
# Standard deviation of the logarithm of the experts' weights, by layer.
SERVING_SPREAD_LAYERS, SERVING_SPREAD = [0, 6, 15, 48, 57], [0.75, 0.95, 1.9, 1.95, 2.5]
# The third workload keeps this part of the logarithms. Its changes have this part of the standard deviation, and heavy tails (of
# Student's t): most experts stay near, some do not.
SERVING_KEPT, SERVING_CHANGE, SERVING_CHANGE_FREEDOM = 0.95, 0.17, 4
# Tokens of a layer. Counts are drawn, and the first two workloads differ by that alone.
SERVING_TOKENS, DOMAINS_TOKENS = 3_000_000, 50_000
DOMAINS_SPREAD = {"intent": 0.87, "law": 0.62, "summary": 0.76, "translation": 1.2}
DOMAINS_COMMON = 0.22  # the part of the variance that all domains share

PUBLIC_FILES = {"serving": {name: f"r1_{name}.json" for name in ["1k1k", "1k8k", "8k1k"]},
                "domains": {name: f"esft_{name}.json" for name in DOMAINS_SPREAD}}


def shares(weights):
    """Returns shares [layers, experts] that grow with the weights, up to LARGEST_SHARE."""
    # A choice out of several without repetition: a token takes an expert with probability 1 - exp(-rate * weight). Bisection finds
    # the rate at which the shares sum to 1.
    low, high = np.zeros((len(weights), 1)), np.full((len(weights), 1), 1e9)
    weights = weights / weights.sum(1, keepdims=True)
    for _ in range(100):
        rate = (low + high) / 2
        above = LARGEST_SHARE * (1 - np.exp(-rate * weights)).sum(1, keepdims=True) > 1
        low, high = np.where(above, low, rate), np.where(above, rate, high)
    return LARGEST_SHARE * (1 - np.exp(-low * weights))


def serving(seed=1, layers=58, experts=256):
    random = np.random.default_rng(seed)
    spread = np.interp(np.linspace(0, 57, layers), SERVING_SPREAD_LAYERS, SERVING_SPREAD)[:, None]
    log_weights = spread * random.normal(size=(layers, experts))
    change = random.standard_t(SERVING_CHANGE_FREEDOM, size=(layers, experts)) * (1 - 2 / SERVING_CHANGE_FREEDOM) ** 0.5
    changed = SERVING_KEPT * log_weights + SERVING_CHANGE * spread * change
    each = {"1k1k": log_weights, "1k8k": log_weights, "8k1k": changed}
    return {name: random.poisson(SERVING_TOKENS * shares(np.exp(logs))) for name, logs in each.items()}


def domains(seed=1, layers=26, experts=64):
    random = np.random.default_rng(seed)
    common = random.normal(size=(layers, experts))
    loads = {}
    for name, spread in DOMAINS_SPREAD.items():
        own = random.normal(size=(layers, experts))
        weights = np.exp(spread * (DOMAINS_COMMON ** 0.5 * common + (1 - DOMAINS_COMMON) ** 0.5 * own))
        loads[name] = random.poisson(DOMAINS_TOKENS * shares(weights))
    return loads


FAMILIES = {"serving": serving, "domains": domains}


def read_public(family, folder):
    files = {name: pathlib.Path(folder) / file for name, file in PUBLIC_FILES[family].items()}
    return {name: np.array(json.loads(path.read_text())["load"]) for name, path in files.items()}


def write(loads, folder):
    """Writes a file for each load and returns their paths."""
    paths = {name: pathlib.Path(folder) / f"{name}.json" for name in loads}
    for name, load in loads.items():
        paths[name].write_text(json.dumps({"format": "eplb.load.v1", "load": load.tolist()}))
    return paths


def rank_correlation(a, b):
    """Returns the mean over layers of Spearman's correlation."""
    ranks = [np.argsort(np.argsort(load, axis=1), axis=1) for load in (a, b)]
    return np.mean([np.corrcoef(x, y)[0, 1] for x, y in zip(*ranks)])


def print_statistics(title, loads):
    print(f"{title}: largest expert / mean, experts in the exponential of the entropy / all (means over layers)")
    for name, load in loads.items():
        parts = load / load.sum(1, keepdims=True)
        entropy = -(parts * np.log(np.maximum(parts, 1e-300))).sum(1)
        print(f"  {name:12} {(parts.max(1) * parts.shape[1]).mean():6.2f} {(np.exp(entropy) / parts.shape[1]).mean():.3f}")
    for a, b in itertools.combinations(loads, 2):
        moved = np.abs(loads[a] / loads[a].sum(1, keepdims=True) - loads[b] / loads[b].sum(1, keepdims=True)).sum(1).mean() / 2
        print(f"  {a}, {b}: rank correlation {rank_correlation(loads[a], loads[b]):.3f}, tokens at other experts {moved:.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="write the loads into this folder")
    parser.add_argument("--statistics", action="store_true")
    parser.add_argument("--public", type=pathlib.Path, metavar="DIR", help="folder of the public files")
    options = parser.parse_args()
    loads = FAMILIES[options.family](options.seed)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        write(loads, options.out)
    if options.statistics:
        print_statistics("drawn", loads)
        if options.public:
            print_statistics("public", read_public(options.family, options.public))


if __name__ == "__main__":
    main()
