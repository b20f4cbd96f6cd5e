#!/usr/bin/env python3
"""Prints, as Markdown, how policy `flow` does beside the other policies on the recorded trace with exact splits.

Each row is a replay of tests/data/moe64_aux.jsonl (1,200 steps in windows of 5, 64 experts in 72 slots on 8 GPUs): a decision
each so many windows on so many windows before, in force as in a job of default settings, every change taken (--min-gain 0). Judges the constants of
placement/policies/flow_policy.cc and placement/search/outlets.cc. Exit 1 when `flow` reaches less than 0.91 in a row, or less
than another policy.

  tests/bench/flow_table.py [--bin build/release/bin]
"""
import argparse
import json
import pathlib
import subprocess
import sys

TRACE = pathlib.Path(__file__).resolve().parent.parent / "data" / "moe64_aux.jsonl"
POLICIES = ["flow", "incremental", "balanced", "deepseek"]
CADENCES = [(8, 6), (10, 4), (10, 10)]  # windows between decisions, windows that a decision looks at
LEAST = 0.91


def replay(binary, policy, every, history):
    command = [f"{binary}/eplbctl", "replay", "--trace", TRACE, "--gpus", 8, "--slots", 72, "--split", "batch", "--policy", policy,
               "--every", every, "--history", history, "--min-gain", 0, "-o", "json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout)["summary"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bin", help="the folder of eplbctl")
    arguments = parser.parse_args()
    print("| every, history | " + " | ".join(f"{policy}: balancedness, transfers" for policy in POLICIES) + " |")
    print("|---|" + "---|" * len(POLICIES))
    missed = []
    for every, history in CADENCES:
        rows = {policy: replay(arguments.bin, policy, every, history) for policy in POLICIES}
        reached = {policy: row["balancedness_mean"] for policy, row in rows.items()}
        print(f"| {every}, {history} | " + " | ".join(
            f"{reached[policy]:.4f}, {rows[policy]['transfers']}" for policy in POLICIES) + " |", flush=True)
        if reached["flow"] < max(LEAST, *reached.values()):
            missed.append(f"every {every}, history {history}")
    if missed:
        print("missed:", ", ".join(missed), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
