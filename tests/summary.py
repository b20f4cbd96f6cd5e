#!/usr/bin/env python3
"""Summary of the last test run of a build tree: tests that ran, and tests left out and why. Prints a page; exit 1 if something
must not be missing.

  summary.py BUILD

Reads BUILD/tests/results.xml (written by ctest), gtest/*.xml (written by the binaries of gtest), left_out.txt and torch.txt (written
by CMake). The exit status is 1 if nvcc was found and no test of NCCL ran, or if no test of the web page ran although CI is set.
"""
import collections
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# Binaries whose tests need NCCL's header.
NCCL = re.compile(r"^(nccl_test|nccl_path_test|nccl_streams_test|nccl_seeds_test|hybrid_path_test)\b")
PAGE = "page."
MOST_NAMES = 6
# The lines in which unittest and scripts give the reason of a skip.
REASON = re.compile(r"skipped ['\"](.+?)['\"]\s*$|^SKIP(?:PED)?: (.+)$|is skipped: (.+)$", re.M)


def named(names):
    shown = ", ".join(sorted(names)[:MOST_NAMES])
    return shown + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def reason_of(case):
    """Why a test of ctest that did not run did not."""
    if case.get("status") == "disabled":
        return "needs torch, which the tests' interpreter lacks"
    found = REASON.search(case.findtext("system-out") or "")
    if found:
        return next(group for group in found.groups() if group).strip()
    skipped = case.find("skipped")
    return skipped.get("message", "") if skipped is not None else "not run"


class Run:
    """Names of the tests that passed, failed and did not run, each TEST of a gtest binary by itself."""

    def __init__(self, tests):
        self.ran, self.failed, self.partly, self.left = [], [], {}, collections.defaultdict(list)
        for case in ElementTree.parse(tests / "results.xml").getroot().iter("testcase"):
            name, status = case.get("name"), case.get("status")
            gtest = tests / f"gtest/{name}.xml"
            if status == "fail":
                self.failed.append(name)
            elif status == "run" and gtest.exists():
                self.add_gtest(name, gtest)
            elif status == "run" and case.find("skipped") is None:
                self.ran.append(name)
                parts = re.search(r"^OK \(skipped=(\d+)\)", case.findtext("system-out") or "", re.M)
                if parts:
                    self.partly[name] = int(parts[1])
            else:
                self.left[reason_of(case)].append(name)

    def add_gtest(self, binary, path):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name, skipped = f"{binary}.{case.get('classname')}.{case.get('name')}", case.find("skipped")
            if skipped is not None:
                self.left[(skipped.get("message") or "").strip().split("\n")[-1]].append(name)
            elif case.get("status") == "run":
                self.ran.append(name)


def main():
    if len(sys.argv) != 2:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    build = pathlib.Path(sys.argv[1])
    run = Run(build / "tests")
    nccl = sum(NCCL.match(name) is not None for name in run.ran)
    page = sum(name.startswith(PAGE) for name in run.ran)
    torch = (build / "tests/torch.txt").read_text().strip() or "none"
    configuration = (build / "tests/left_out.txt").read_text().split("\n")
    print(f"\ntests: {len(run.ran)} passed, {len(run.failed)} failed, {sum(map(len, run.left.values()))} not run; "
          f"{nccl} of NCCL, {page} of the web page; torch {torch}, Python {sys.version.split()[0]}")
    for line in filter(None, configuration):
        print(f"left out of this build: {line}")
    for reason, names in sorted(run.left.items()):
        print(f"not run: {len(names)}: {reason}: {named(names)}")
    if run.partly:
        print(f"skipped in parts: {named([f'{name} ({count})' for name, count in run.partly.items()])}")
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
