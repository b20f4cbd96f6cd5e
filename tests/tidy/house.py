#!/usr/bin/env python3
"""The house in figures: how large the product is, how it is cut into files, and whether its folders form a circle.

  house.py ROOT          prints the figures of the tree at ROOT
  house.py ROOT --check  also fails when two folders include each other or a file is longer than it may be
"""
import argparse
import collections
import pathlib
import re
import statistics
import subprocess

ROOMS = ("base", "placement", "proto", "cuda", "client", "server", "deploy")
SUFFIXES = {".h", ".c", ".cc", ".cu", ".cuh", ".py"}
HEADERS = {".h", ".cuh"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
# Lines that every file repeats: includes and guards, the lines of namespaces, and empty lines.
BOILERPLATE = re.compile(r"^\s*(#\s*(include|ifndef|define \w+_H_$|endif)|namespace\b.*\{$|}\s*//\s*namespace|using \w[\w:]*;$|$)")
MOST_LINES = 600
SHORT = 40


def read_product(root):
    """{path below `root`: text} of every product file that git knows."""
    names = subprocess.run(["git", "-C", root, "ls-files", *ROOMS], check=True, capture_output=True, text=True).stdout
    return {name: (root / name).read_text(encoding="utf-8")
            for name in names.splitlines() if pathlib.PurePath(name).suffix in SUFFIXES and (root / name).is_file()}


def includers_of(files):
    """{header: product files that include it, its own x.cc left out}."""
    includers = {name: set() for name in files if pathlib.PurePath(name).suffix in HEADERS}
    for name, text in files.items():
        for target in INCLUDE.findall(text):
            if target in includers and pathlib.PurePath(name).with_suffix("") != pathlib.PurePath(target).with_suffix(""):
                includers[target].add(name)
    return includers


def mutual_folders(files):
    """Pairs of folders whose files include each other's, sorted."""
    arrows = collections.defaultdict(set)
    for name, text in files.items():
        source = pathlib.PurePath(name).parent.as_posix()
        for target in INCLUDE.findall(text):
            sink = pathlib.PurePath(target).parent.as_posix()
            if target in files and source != sink:
                arrows[source].add(sink)
    return sorted((a, b) for a in arrows for b in arrows[a] if a < b and a in arrows.get(b, ()))


def lines_of(text):
    return text.count("\n")


def percent(part, whole):
    return f"{100 * part / whole:.0f} %" if whole else "-"


def figures(files):
    """Rows of (what, figure)."""
    sizes = sorted(lines_of(text) for text in files.values())
    total = sum(sizes)
    includers = includers_of(files)
    client = [lines_of(text) for name, text in files.items() if name.startswith("client/")]
    boilerplate = sum(bool(BOILERPLATE.match(line)) for text in files.values() for line in text.splitlines())
    sources = [line.strip() for name, text in files.items() if name.endswith(".cc") for line in text.splitlines()]
    return [
        ("files", len(sizes)),
        ("lines", total),
        ("lines per file, mean", round(total / len(sizes))),
        ("lines per file, median", round(statistics.median(sizes))),
        ("lines per file, 90th percentile", sizes[int(0.9 * len(sizes))]),
        (f"files under {SHORT} lines", percent(sum(size < SHORT for size in sizes), len(sizes))),
        (f"files above {MOST_LINES} lines", sum(size > MOST_LINES for size in sizes)),
        ("headers with one includer", percent(sum(len(by) == 1 for by in includers.values()), len(includers))),
        ("boilerplate lines", percent(boilerplate, total)),
        ("comment lines in .cc", percent(sum(line.startswith("//") for line in sources), len(sources))),
        ("client, files", len(client)),
        ("client, share of the lines", percent(sum(client), total)),
        ("pairs of folders that include each other", len(mutual_folders(files))),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    files = read_product(options.root)
    assert len(files) > 100, f"only {len(files)} product files were found below {options.root}"
    for what, figure in figures(files):
        print(f"{what:42} {figure}")
    wrong = [f"{a} and {b} include each other" for a, b in mutual_folders(files)]
    wrong += [f"{name} has {lines_of(text)} lines, at most {MOST_LINES}" for name, text in sorted(files.items())
              if lines_of(text) > MOST_LINES]
    print("\n".join(wrong))
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
