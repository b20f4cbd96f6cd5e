#!/usr/bin/env python3
"""Holds what a self-contained libeplb.so asks of the machine that loads it.

  baseline_test.py LIBRARY

It needs libraries of glibc and GCC alone, with symbols no newer than the baseline of docs/installing.md.
"""
import pathlib
import re
import subprocess
import sys

# Ubuntu 22.04 has glibc 2.35 and GCC 12's libstdc++; Debian 12 has glibc 2.36. Every container of PyTorch or NVIDIA is newer.
BASELINE = {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libstdc++.so.6", "libgcc_s.so.1",
             "ld-linux-x86-64.so.2"}
MIB = 1 << 20


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def main(library):
    wrong = []
    headers = run("objdump", "-p", library)
    needed = set(re.findall(r"NEEDED\s+(\S+)", headers))
    wrong += [f"it needs {name}" for name in sorted(needed - LIBRARIES)]
    newest = {}
    for family, numbers in re.findall(r"\b(GLIBCXX|GLIBC|CXXABI|GCC)_([0-9.]+)", headers):
        newest[family] = max(newest.get(family, ()), tuple(int(part) for part in numbers.split(".")))
    for family, limit in BASELINE.items():
        if newest.get(family, ()) > limit:
            wrong.append(f"it needs {family}_{'.'.join(map(str, newest[family]))}, the baseline is {family}_{'.'.join(map(str, limit))}")
    if re.search(r"R(UN)?PATH\s", headers):
        wrong.append("it has a run path: the folder of the machine that built it")
    found = ", ".join(f"{family} {'.'.join(map(str, numbers))}" for family, numbers in sorted(newest.items()))
    print("\n".join(wrong) or f"needs {', '.join(sorted(needed))}; {found}; {pathlib.Path(library).stat().st_size / MIB:.1f} MiB")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
