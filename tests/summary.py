#!/usr/bin/env python3
"""Summary of the last test run of a build tree: tests that ran, and tests left out and why. Prints a page; exit 1 if something
must not be missing.

  summary.py BUILD

Reads BUILD/tests/results.xml (written by ctest) and left_out.txt and torch.txt (written by CMake). The exit status is 1 if nvcc
was found and no test of NCCL ran, or if no test of the web page ran although CI is set.
"""
import collections
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# Binaries whose tests need NCCL's header, by the first word of the test's name.
NCCL = ("nccl_test.", "nccl_path_test.", "nccl_streams_test.", "nccl_seeds_test.", "hybrid_path_test.")
PAGE = "page."
MOST_NAMES = 6
# The lines in which unittest, gtest and scripts give the reason of a skip.
REASON = re.compile(r"skipped ['\"](.+?)['\"]\s*$|: Skipped\n(.+)|^SKIP(?:PED)?: (.+)$|is skipped: (.+)$", re.M)


def named(names):
    shown = ", ".join(sorted(names)[:MOST_NAMES])
    return shown + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def reason_of(case):
    """Why a test that did not run did not."""
    if case.get("status") == "disabled":
        return "needs torch, which the tests' interpreter lacks"
    found = REASON.search(case.findtext("system-out") or "")
    if found:
        return next(group for group in found.groups() if group).strip()
    skipped = case.find("skipped")
    return skipped.get("message", "") if skipped is not None else "not run"


def main():
    if len(sys.argv) != 2:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    build = pathlib.Path(sys.argv[1])
    ran, failed, partly, left = [], [], {}, collections.defaultdict(list)
    for case in ElementTree.parse(build / "tests/results.xml").getroot().iter("testcase"):
        name, status = case.get("name"), case.get("status")
        if status == "fail":
            failed.append(name)
        elif status == "run" and case.find("skipped") is None:
            ran.append(name)
            parts = re.search(r"^OK \(skipped=(\d+)\)", case.findtext("system-out") or "", re.M)
            if parts:
                partly[name] = int(parts[1])
        else:
            left[reason_of(case)].append(name)
    nccl = sum(name.startswith(NCCL) for name in ran)
    page = sum(name.startswith(PAGE) for name in ran)
    torch = (build / "tests/torch.txt").read_text().strip() or "none"
    configuration = (build / "tests/left_out.txt").read_text().split("\n")
    print(f"\ntests: {len(ran)} passed, {len(failed)} failed, {sum(map(len, left.values()))} not run; "
          f"{nccl} of NCCL, {page} of the web page; torch {torch}, Python {sys.version.split()[0]}")
    for line in filter(None, configuration):
        print(f"left out of this build: {line}")
    for reason, names in sorted(left.items()):
        print(f"not run: {len(names)}: {reason}: {named(names)}")
    if partly:
        print(f"skipped in parts: {named([f'{name} ({count})' for name, count in partly.items()])}")
    wrong = []
    if not nccl and not any("without CUDA" in line for line in configuration):
        wrong.append("nvcc was found, but no test of NCCL ran")
    if not page and os.environ.get("CI"):
        wrong.append("no test of the web page ran")
    for line in wrong:
        print(f"tests/summary.py: {line}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
