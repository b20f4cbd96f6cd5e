#!/usr/bin/env python3
"""The table of docs/configuration.md, made of what eplbd knows of its keys: tests/docs/configuration_page.py PROGRAM [--write]

Without --write: exit 1 when the page differs. Text outside the two marks of the page is left alone.
"""

import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
BEGIN, END = "<!-- keys: made by tests/docs/configuration_page.py -->\n", "<!-- end of keys -->\n"


def keys_of(text):
    """The entries of `eplbd --help-config` as (name, what it does, values, default)."""
    keys = []
    for name, body in re.findall(r"^([a-z_.]+)  EPLB_\w+\n((?:    .+\n)+)", text, flags=re.M):
        lines = [line.strip() for line in body.splitlines()]
        # A key's effect ends with a full stop; its values begin a line and have no full stop at the end.
        end = max(i for i, line in enumerate(lines) if line.endswith(".")) + 1
        values, default = " ".join(lines[end:]).rsplit("; default ", 1)
        keys.append((name, " ".join(lines[:end]), values, default))
    return keys


def tables(keys):
    """One table, in which the keys of each table of the file are together."""
    lines = ["| key | what it does | values |", "|---|---|---|"]
    for table in dict.fromkeys(key[0].split(".")[0] for key in keys):
        for name, what, values, default in (key for key in keys if key[0].split(".")[0] == table):
            cells = (f"`{name}`", what, f"{values}; default {default}")
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def page_with(text, program):
    help_text = subprocess.run([program, "--help-config"], capture_output=True, text=True, check=True, timeout=60).stdout
    before, rest = text.split(BEGIN)
    return before + BEGIN + tables(keys_of(help_text)) + END + rest.split(END)[1]


def main(program, write):
    text = PAGE.read_text(encoding="utf-8")
    new = page_with(text, program)
    if write:
        PAGE.write_text(new, encoding="utf-8")
    elif new != text:
        print(f"{PAGE.name} is not what {program} says of its keys: run {pathlib.Path(__file__).name} PROGRAM --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--write" in sys.argv[2:]))
