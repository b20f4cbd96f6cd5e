#!/usr/bin/env python3
"""Measures a router hook of eplb.torch on one core: torch.ops.eplb.turn beside torch.bincount and index_select.

  router_hook.py [--tokens T] [--top-k K] [--experts E] [--rounds N] [--check]

Each round times every way once, in an order that changes: `torch` counts with bincount and turns with index_select, and `turn`
and `count` are the operators. `hook` is the call of a router whose forward costs nothing, less the same call without a hook. Medians of N
rounds are compared, so other work on the machine slows all of them alike.
Needs a release build of libeplb (EPLB_LIBRARY=build/release/lib/libeplb.so), and torch (in build/venv, from tests/environment).
With --check (exit 1): turn takes at most 0.65 of the time of torch, count 0.61.
"""

import argparse
import pathlib
import statistics
import sys
import time

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))

from eplb.torch import routing  # noqa: E402
from eplb.torch.watcher import CountedColumns  # noqa: E402

LIMITS = {"turn": 0.65, "count": 0.61}


class Router(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, _x):
        return self.output


def ways_of(options):
    """returns: {name: call}; `torch` and `turn` give equal slots and counts."""
    weights, ids = torch.rand(options.tokens, options.experts).topk(options.top_k, dim=1)
    columns = routing.SlotColumns("moe", options.experts, torch.device("cpu"))
    columns.set_slots(np.random.RandomState(1).permutation(options.experts))
    slots, counts = columns._table[1:-1].clone(), torch.zeros(options.experts, dtype=torch.int64)
    plain, hooked = Router((weights, ids)), Router((weights, ids))
    routing.RouterHook(columns, hooked, None)
    x = torch.rand(options.tokens, 8)

    def by_torch():
        flat = ids.reshape(-1)
        counts.add_(torch.bincount(flat, minlength=options.experts))
        return slots.index_select(0, flat).view(ids.shape)

    turned = columns.count_and_turn(ids)
    assert torch.equal(by_torch(), turned) and torch.equal(counts, columns.counts)
    counted = CountedColumns("moe", options.experts, columns.ledger, counts_all=False)
    return {"torch": by_torch, "turn": lambda: columns.count_and_turn(ids), "count": lambda: counted.count_and_turn(ids), "hook": lambda: hooked(x), "plain": lambda: plain(x)}


def measure(ways, rounds):
    """returns: {name: median microseconds}."""
    times, names = {name: [] for name in ways}, list(ways)
    for each in range(rounds + 20):
        for name in names[each % len(names):] + names[:each % len(names)]:
            began = time.perf_counter_ns()
            ways[name]()
            if each >= 20:
                times[name].append((time.perf_counter_ns() - began) / 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("tokens", 4096), ("top-k", 8), ("experts", 256), ("rounds", 3000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(ways_of(options), options.rounds)
    print(f"{options.tokens} tokens, top-{options.top_k}, {options.experts} experts: medians of {options.rounds} rounds, in microseconds")
    print(f"torch.bincount + index_select  {found['torch']:8.1f}")
    for name in LIMITS:
        print(f"torch.ops.eplb.{name:15} {found[name]:8.1f}  {found[name] / found['torch']:.2f} of it")
    print(f"whole hook                     {found['hook'] - found['plain']:8.1f}")
    above = [name for name, limit in LIMITS.items() if found[name] > limit * found["torch"]]
    if options.check and above:
        print(f"{' and '.join(above)}: expected at most {LIMITS} of torch.bincount + index_select", file=sys.stderr)
    return int(options.check and bool(above))


if __name__ == "__main__":
    sys.exit(main())
