#!/usr/bin/env python3
"""One name means one thing: no type or constant of a namespace is defined in two files.

Two files that both define eplb::kPieceBytes break the one-definition rule: a program that links both takes either value,
and no compiler or linker says so.
"""
import collections
import pathlib
import re
import sys

ROOMS = ("base", "placement", "cuda", "proto", "server", "client")
NAMESPACE = re.compile(r"^(?:inline )?namespace\s*([\w:]*)\s*\{")
END = re.compile(r"^\}\s*//\s*namespace")
DEFINITION = re.compile(r"^(?:class|struct|union|enum class|enum)\s+(?:[A-Z_]+(?:\([^)]*\))?\s+)?([\w:]+)(?:\s+final)?(?:\s*:[^;(]*)?\s*\{"
                        r"|^inline constexpr\s.*?\b(k[A-Z]\w*)(?:\[\])?\s*[={]")


def definitions(path):
    """Yields "namespace::name" for each definition of `path` with external linkage."""
    namespaces = []
    for line in path.read_text().splitlines():
        if found := NAMESPACE.match(line):
            namespaces.append(found[1])
        elif END.match(line):
            namespaces.pop()
        elif "" not in namespaces and (found := DEFINITION.match(line)):
            yield "::".join(namespaces + [found[1] or found[2]])


def main():
    root = pathlib.Path(sys.argv[1])
    where = collections.defaultdict(list)
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in (".h", ".cuh", ".cc", ".cu"):
                for name in definitions(path):
                    where[name].append(path.relative_to(root))
    assert len(where) > 300, f"only {len(where)} definitions were found: has the code's form changed?"
    # x.cc and x_none.cc are two builds of one file.
    twice = {name: paths for name, paths in where.items()
             if len({str(path).replace("_none.", ".") for path in paths}) > 1}
    for name, paths in sorted(twice.items()):
        print(f"{name} is defined in {', '.join(map(str, paths))}")
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main())
