"""python -m eplb.traces: traces of eplbctl and of PyTorch's profiler become one file for ui.perfetto.dev.

    eplbctl report LOGS -o trace > eplb.json
    python -m eplb.traces both.json eplb.json torch-0.json      # also .json.gz

All times become microseconds on the wall clock (CLOCK_REALTIME), which both sides have: PyTorch from 2.4 on writes times
since its file's baseTimeNanoseconds, before it wrote the wall clock itself. A PyTorch without Kineto, such as Debian's,
writes times since the profile began and not when that was: save_profile adds it.
Torch is not needed to merge. Exit: 0 done, 1 not written, 2 bad input or usage.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from typing import Any, Dict, List, Optional

from eplb._text import printable


class BadTrace(ValueError):
    """A trace file that cannot be merged; the message names the file and what was expected."""


def save_profile(profiler: Any, path: str) -> None:
    """Writes what a torch.profiler.profile has recorded, with times that can be merged, from any build of PyTorch.

    profiler: one that has stopped. Where export_chrome_trace writes such times by itself, this is export_chrome_trace.
    """
    profiler.export_chrome_trace(path)
    with _open(path) as file:
        trace = json.load(file)
    if isinstance(trace, dict):
        return
    results = profiler.profiler.kineto_results
    began_ns = results.trace_start_ns() if hasattr(results, "trace_start_ns") else 1000 * results.trace_start_us()
    with _open(path, "wt") as file:
        json.dump({"displayTimeUnit": "ms", "baseTimeNanoseconds": began_ns, "traceEvents": trace}, file)


def merge(paths: List[str]) -> Dict[str, Any]:
    """One trace with the events of all files, by time. errors: OSError; BadTrace."""
    events: List[Dict[str, Any]] = []
    for path in paths:
        events.extend(_events_of(path))
    events.sort(key=lambda event: event.get("ts", float("-inf")))  # names first; equal times as in their file
    return {"displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceEvents": events}


def _open(path: str, mode: str = "rt") -> Any:
    return gzip.open(path, mode, encoding="utf-8") if path.endswith(".gz") else open(path, mode, encoding="utf-8")


def _events_of(path: str) -> List[Dict[str, Any]]:
    try:
        with _open(path) as file:
            trace = json.load(file)
    except (ValueError, EOFError) as error:
        raise BadTrace(f"{path}: is no JSON: {error}") from error
    if isinstance(trace, list):
        raise BadTrace(f"{path}: is a list of events, whose times begin with the profile; write it with "
                       "eplb.traces.save_profile, which keeps when that was")
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise BadTrace(f"{path}: has no list of objects \"traceEvents\"")
    base = trace.get("baseTimeNanoseconds", 0)
    if not all(isinstance(number, (int, float)) for number in [base, *(event.get("ts", 0) for event in events)]):
        raise BadTrace(f"{path}: baseTimeNanoseconds or a \"ts\" is no number")
    for event in events:
        if "ts" in event and base:
            event["ts"] = base // 1000 + event["ts"] + base % 1000 / 1000
    return events


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="eplb.traces", description="Merge traces of eplbctl and of PyTorch's profiler.")
    parser.add_argument("out", metavar="OUT", help="write this file")
    parser.add_argument("traces", metavar="TRACE", nargs="+", help="files of eplbctl -o trace and of torch.profiler")
    options = parser.parse_args(arguments)
    try:
        merged = merge(options.traces)
    except (OSError, BadTrace) as error:
        print(printable(f"eplb.traces: {error}"), file=sys.stderr)
        return 2
    try:
        with _open(options.out, "wt") as file:
            json.dump(merged, file)
    except OSError as error:
        print(printable(f"eplb.traces: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
