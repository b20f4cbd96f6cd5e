#!/usr/bin/env python3
"""Compares the ABI of libeplb.so, its symbols and the layout of its structs, with the committed one.

  abi_test.py LIBRARY LAYOUT_PROGRAM          compares with abi_symbols.txt and abi_layout.txt
  abi_test.py LIBRARY LAYOUT_PROGRAM --write  writes them; an addition raises EPLB_ABI_VERSION, anything else the SOVERSION
"""
import difflib
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def symbols(library):
    """The dynamic symbols that the library defines, with their versions; a version itself is one of type A."""
    lines = [line.split() for line in run("nm", "-D", "--defined-only", library).splitlines()]
    return "".join(f"{kind} {name}\n" for _, kind, name in sorted(lines, key=lambda line: line[2]))


def by_struct(text):
    """Lines of the text, structs in the order of their names."""
    return "".join(sorted(re.findall(r"^\S.*\n(?:  .*\n)*", text, re.M))).splitlines()


def differences(name, found):
    expected = (HERE / name).read_text()
    return list(difflib.unified_diff(by_struct(expected), by_struct(found), name, "found", lineterm=""))


def main(library, layout_program, write=None):
    found = {"abi_symbols.txt": symbols(library), "abi_layout.txt": run(layout_program)}
    if write == "--write":
        for name, text in found.items():
            (HERE / name).write_text(text)
        return 0
    wrong = [line for name, text in found.items() for line in differences(name, text)]
    soname = re.search(r"SONAME\s+(\S+)", run("objdump", "-p", library)).group(1)
    if soname != "libeplb.so.0":
        wrong.append(f"SONAME is {soname}, expected libeplb.so.0")
    foreign = [line for line in found["abi_symbols.txt"].splitlines() if not re.match(r"(T eplb_|A EPLB_)", line)]
    wrong += [f"not a function eplb_*: {line}" for line in foreign]
    print("\n".join(wrong) or f"{len(found['abi_symbols.txt'].splitlines())} symbols and the structs are as committed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
