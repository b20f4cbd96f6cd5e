#!/usr/bin/env python3
"""Measures the cost of eplb.torch in a training step in Python: one rank, no daemon, nothing to move.

  attach_overhead.py [--layers L] [--experts E] [--steps N] [--check]

A model of L layers with E local experts of two weights each, AdamW with amsgrad: 8 * L * E pieces that are looked at in each
boundary, 4,096 by default. Of each boundary the thread's CPU time is taken, which other work on the machine does not
add to, and calls by which a host waits for a GPU are counted in it.
Needs EPLB_LIBRARY, or an installed libeplb, and torch (in build/venv, from tests/environment).
With --check on an idle machine (exit 1): a boundary without a vote takes at most 1 ms (median), and none waits for a device
but those at which a vote or a window ends.
"""

import argparse
import pathlib
import statistics
import sys
import time

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))

import eplb  # noqa: E402

LIMIT_MS = 1.0
VOTE_EVERY, REPORT_EVERY, TOKENS, WIDTH = 8, 50, 16, 4
# By which the host waits for a device.
WAITS = ("item", "cpu", "numpy", "tolist", "__bool__", "__int__", "__float__", "nonzero", "__array__")


class Router(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.experts = experts

    def forward(self, x):
        weights, chosen = (x @ torch.ones(x.shape[1], self.experts)).topk(2, dim=1)
        return weights, chosen


class Layer(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.router = Router(experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))
                                     for _ in range(experts))

    def forward(self, x):
        weights, _ = self.router(x)
        return x + weights.sum() * sum(expert(x) for expert in self.experts)


class Waits:
    """Counts calls that wait while it is entered."""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        self.count, self._originals = 0, {name: getattr(torch.Tensor, name) for name in WAITS}
        for name, original in self._originals.items():
            setattr(torch.Tensor, name, self._counting(original))
        return self

    def __exit__(self, *_):
        for name, original in self._originals.items():
            setattr(torch.Tensor, name, original)

    def _counting(self, original):
        def call(*arguments, **named):
            self.count += 1
            return original(*arguments, **named)
        return call


def measure(options):
    """returns: {kind of boundary: milliseconds}, {kind: largest number of waits}."""
    model = nn.Sequential(*(Layer(options.experts) for _ in range(options.layers)))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    attached = eplb.torch.attach(model, optimizer, experts=nn.ModuleList, router="router", vote_every=VOTE_EVERY,
                                 report_every=REPORT_EVERY, check_batch=False)
    attached._counts.is_on_device = True  # reads counts as from a GPU
    times, waits, counting = {}, {}, Waits()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for step in range(options.steps):
        optimizer.step()
        ends = step > 0 and (step % VOTE_EVERY == VOTE_EVERY - 1 or step % REPORT_EVERY == REPORT_EVERY - 1)
        kind = "first, which registers" if step == 0 else "at a vote or a window's end" if ends else "without"
        with counting:
            began = time.thread_time()
            attached.step_boundary(step)
            times.setdefault(kind, []).append((time.thread_time() - began) * 1e3)
        waits[kind] = max(waits.get(kind, 0), counting.count)
    attached.detach()
    return times, waits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 16), ("experts", 32), ("steps", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    times, waits = measure(options)
    print(f"{options.layers} layers x {options.experts} local experts, {8 * options.layers * options.experts} pieces")
    print(f"{'step_boundary':32}{'median ms':>12}{'least ms':>12}{'waits':>8}")
    for kind, each in times.items():
        print(f"{kind:32}{statistics.median(each):12.3f}{min(each):12.3f}{waits[kind]:8}")
    if options.check and (statistics.median(times["without"]) > LIMIT_MS or waits["without"]):
        print(f"expected at most {LIMIT_MS:g} ms and no wait without a vote or a window's end", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
