#!/usr/bin/env python3
"""Each event that counts against a job's budget (kRepeatable in server/core/state/decision_context.cc) is one that the core
records.

A name that nothing records budgets nothing: the event that it once stood for fills the audit log.
"""
import pathlib
import re
import sys


def main():
    core = pathlib.Path(sys.argv[1]) / "server" / "core"
    table = re.search(r"kRepeatable\[\] = \{(.*?)\};", (core / "state" / "decision_context.cc").read_text(), re.DOTALL)
    assert table, "server/core/state/decision_context.cc has no kRepeatable: has the code's form changed?"
    names = re.findall(r'"(\w+)"', table[1])
    assert len(names) > 10, f"only {len(names)} names were found: has the code's form changed?"
    others = "".join(path.read_text() for path in sorted(core.rglob("*.cc")) if path.name != "decision_context.cc")
    dead = [name for name in names if f'"{name}"' not in others]
    for name in dead:
        print(f"server/core/state/decision_context.cc: kRepeatable has {name}, an event that nothing records")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
