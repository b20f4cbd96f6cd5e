#!/usr/bin/env python3
"""Says which systems programs and libraries run on, from the symbol versions that they ask for.

  baseline.py [--glibc 2.36] [--alone] [--json] [--tag] FILE ..

Of glibc and libstdc++ it prints the newest versions that the files need together, and every library that they need besides the
system's and those in FILE. --glibc: exit 1 where a newer glibc is needed. --alone: exit 1 where a library is needed that is
none of glibc's or GCC's. --tag: the platform tag of a wheel that has exactly these files, which is manylinux_2_N where PEP
600's rules hold: a libstdc++ as old as N's systems have, and no library from outside.
"""

import argparse
import json
import pathlib
import platform
import re
import subprocess
import sys

import linked

FAMILIES = ("GLIBC", "GLIBCXX", "CXXABI", "GCC")
# The libstdc++ of the oldest common system with that glibc: Debian 10, Ubuntu 20.04, RHEL 9, Ubuntu 22.04, Ubuntu 23.10, Ubuntu 24.04.
LIBSTDCXX_OF_GLIBC = {(2, 28): (3, 4, 25), (2, 31): (3, 4, 28), (2, 34): (3, 4, 29), (2, 35): (3, 4, 30), (2, 38): (3, 4, 32),
                      (2, 39): (3, 4, 33)}


def numbers(text):
    return tuple(int(part) for part in text.split("."))


def text_of(version):
    return ".".join(str(part) for part in version)


def versions_in(text):
    """{family: newest version} of what `objdump -p` prints as references."""
    newest = {}
    references = text.split("Version References:")[-1] if "Version References:" in text else ""
    for family, version in re.findall(r"\b(GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)\b", references):
        newest[family] = max(newest.get(family, ()), numbers(version))
    return newest


def examine(files):
    """returns: ({family: newest version}, {library from outside: files that need it})."""
    newest, outside = {}, {}
    names = {file.name for file in files}
    for file in files:
        done = subprocess.run(["objdump", "-p", str(file)], capture_output=True, text=True)
        if done.returncode != 0:
            raise linked.NotLinked(f"{file}: {done.stderr.strip()}")
        if soname := re.search(r"^\s*SONAME\s+(\S+)", done.stdout, re.M):
            names.add(soname[1])
        for family, version in versions_in(done.stdout).items():
            newest[family] = max(newest.get(family, ()), version)
        for needed in re.findall(r"^\s*NEEDED\s+(\S+)", done.stdout, re.M):
            if not linked.is_of_the_system(needed):
                outside.setdefault(needed, []).append(file.name)
    return newest, {name: by for name, by in outside.items() if name not in names}


def tag_of(newest, outside):
    """manylinux_2_N_ARCH with the least N of which the rules hold, else linux_ARCH."""
    machine = platform.machine()
    glibc, libstdcxx = newest.get("GLIBC", (2, 28)), newest.get("GLIBCXX", ())
    fitting = [least for least, has in sorted(LIBSTDCXX_OF_GLIBC.items()) if libstdcxx <= has]
    if outside or not fitting:
        return f"linux_{machine}"
    major, minor = max(glibc[:2], fitting[0])
    return f"manylinux_{major}_{minor}_{machine}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--glibc", type=numbers, help="the newest that may be needed")
    parser.add_argument("--alone", action="store_true", help="no library but the system's may be needed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tag", action="store_true")
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    try:
        newest, outside = examine(options.files)
    except linked.NotLinked as error:
        print(f"baseline: {error}", file=sys.stderr)
        return 2
    if options.tag:
        print(tag_of(newest, outside))
    elif options.json:
        print(json.dumps({"needs": {family: text_of(newest[family]) for family in FAMILIES if family in newest},
                          "libraries": sorted(outside)}))
    else:
        for family in FAMILIES:
            if family in newest:
                print(f"{family} {text_of(newest[family])}")
        for name in sorted(outside):
            print(f"needs {name}, for {', '.join(outside[name])}")
    if options.glibc and newest.get("GLIBC", ()) > options.glibc:
        print(f"baseline: glibc {text_of(newest['GLIBC'])} is needed, expected at most {text_of(options.glibc)}", file=sys.stderr)
        return 1
    if options.alone and outside:
        print(f"baseline: {', '.join(sorted(outside))} is needed besides glibc and GCC's libraries", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
