#!/usr/bin/env python3
"""Expert loads of 15 regimes, drawn from a seed: how shares stay, drift, return, jump or scatter from window to window.

windows(name, ..) returns int64 counts [windows, layers, experts]. As a program it writes one regime as the JSON lines that
`eplbctl replay` reads:

  tests/bench/regimes.py REGIME [--windows 48] [--layers 3] [--experts 64] [--steps 50] [--seed 1] > trace.jsonl
"""
import argparse
import json
import sys

import numpy as np

SPREAD = 0.8  # standard deviation of the logarithms of the experts' shares
TOKENS = 4000  # mean tokens of an expert in a window


def walk(random, shape, windows, sigma, memory=1.0):
    """A random walk; with memory < 1 it returns to 0."""
    now = np.zeros(shape)
    for _ in range(windows):
        yield now.copy()
        now = memory * now + random.normal(0, sigma, shape)


def drift(sigma, memory=1.0):
    return lambda random, base, windows: [base + moved for moved in walk(random, base.shape, windows, sigma, memory)]


def profiles(random, base, count):
    return [base] + [random.normal(0, SPREAD, base.shape) for _ in range(count - 1)]


def takes_turns(count, windows_each):
    def draw(random, base, windows):
        each = profiles(random, base, count)
        return [each[t // windows_each % count] for t in range(windows)]
    return draw


def day_night(random, base, windows):
    day, night = profiles(random, base, 2)
    parts = [(1 - np.cos(2 * np.pi * t / 24)) / 2 for t in range(windows)]
    return [np.log((1 - part) * np.exp(day) + part * np.exp(night)) for part in parts]


def heavy_noise(random, base, windows):
    return [base + 0.5 * random.standard_t(3, base.shape) for _ in range(windows)]


def spikes(random, base, windows):
    now = drift(0.02)(random, base, windows)
    return [one + np.log(10) * (random.random(base.shape) < 0.01) for one in now]


def step_change(random, base, windows):
    before, after = profiles(random, base, 2)
    return [before if t < windows // 2 else after for t in range(windows)]


def hot_expert(random, base, windows):
    def draw(t):
        one = 0.3 * base
        one[:, (t // 6 * 7) % base.shape[1]] += np.log(12)
        return one
    return [draw(t) for t in range(windows)]


def early_training(random, base, windows):
    """Uneven at first, then ever more even; what is left drifts."""
    later = drift(0.05)(random, 0.2 * base, windows)
    return [2 * base * np.exp(-t / 10) + later[t] for t in range(windows)]


def domains(mood, memory):
    """A mixture of five domains, whose weights drift (memory near 1) or are drawn for each window (0)."""
    def draw(random, base, windows):
        each = np.exp(profiles(random, base, 5))
        weights = np.exp(np.array(list(walk(random, 5, windows + 1, mood, memory))[1:]))
        return [np.log(np.tensordot(one / one.sum(), each, 1)) for one in weights]
    return draw


def trend(random, base, windows):
    """Every share rises or falls at its own pace, which changes after 16 windows."""
    paces = [random.normal(0, 0.05, base.shape) for _ in range(windows // 16 + 1)]
    return [base + sum(min(max(t - 16 * i, 0), 16) * pace for i, pace in enumerate(paces)) for t in range(windows)]


REGIMES = {
    "steady": drift(0), "slow_drift": drift(0.02), "fast_drift": drift(0.15), "wander": drift(0.25, 0.9), "trend": trend,
    "day_night": day_night, "alternating_4": takes_turns(2, 4), "cycle_6": takes_turns(6, 1), "step": step_change,
    "hot_expert": hot_expert, "spikes": spikes, "heavy_noise": heavy_noise, "early_training": early_training,
    "domains": domains(0.2, 0.98), "batch_mixes": domains(1.0, 0),
}


def windows(name, count=48, layers=3, experts=64, seed=1):
    random = np.random.default_rng([seed, sorted(REGIMES).index(name)])
    base = random.normal(0, SPREAD, (layers, experts))
    logarithms = REGIMES[name](random, base, count)
    shares = [np.exp(one) / np.exp(one).sum(1, keepdims=True) for one in logarithms]
    return np.stack([[random.multinomial(TOKENS * experts, layer) for layer in one] for one in shares])


def json_lines(loads, steps):
    return "".join(json.dumps({"first_step": t * steps, "last_step": (t + 1) * steps - 1, "load": load.tolist()}) + "\n"
                   for t, load in enumerate(loads))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("regime", choices=REGIMES)
    for flag, default in (("--windows", 48), ("--layers", 3), ("--experts", 64), ("--steps", 50), ("--seed", 1)):
        parser.add_argument(flag, type=int, default=default)
    arguments = parser.parse_args()
    loads = windows(arguments.regime, arguments.windows, arguments.layers, arguments.experts, arguments.seed)
    sys.stdout.write(json_lines(loads, arguments.steps))


if __name__ == "__main__":
    main()
