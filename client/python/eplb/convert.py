"""python -m eplb.convert: recorder dumps of other engines, written by torch.save, become load files for eplbctl.

    python -m eplb.convert expert_distribution_recorder_1700000000.pt load.jsonl

Read: SGLang's recorder in its modes stat and stat_approx, {"logical_count": integers [steps, layers, experts], ..}.
Written: OUT.jsonl, one window a step, {"first_step", "last_step", "load"}; or OUT.json, one eplb.load.v1 with the sum.
Nothing in the file is executed, and torch is not needed. Exit: 0 done, 1 not written, 2 bad input or usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import Any, Iterator, List, Optional

import numpy as np

from eplb._torch_file import BadFile, read_torch_file

_EXPECTED = "expected {\"logical_count\": integers [steps, layers, experts]}, as SGLang's recorder writes"


def load_of(dump: Any) -> np.ndarray:
    """int64 [steps, layers, experts], tokens that each logical expert got; a matrix is one step.

    dump: the object in the file. errors: BadFile.
    """
    if not isinstance(dump, dict):
        raise BadFile(f"holds a {type(dump).__name__}; {_EXPECTED}")
    if "logical_count" not in dump:
        what = ", ".join(repr(key) for key in list(dump)[:8]) or "none"
        raise BadFile(f"has no key logical_count, its keys are {what}; {_EXPECTED}")
    counts = dump["logical_count"]
    if not isinstance(counts, np.ndarray):
        raise BadFile(f"has a logical_count that is a {type(counts).__name__}, not a tensor; {_EXPECTED}")
    if counts.ndim == 2:
        counts = counts[np.newaxis]
    if counts.ndim != 3 or 0 in counts.shape:
        raise BadFile(f"has a logical_count of shape {list(counts.shape)}; {_EXPECTED}")
    if counts.dtype.kind == "f" and np.array_equal(counts, np.rint(counts)) and np.abs(counts).max() < 2.0 ** 63:
        counts = counts.astype(np.int64)  # the approximate mode counts in float32
    if counts.dtype.kind not in "iu":
        raise BadFile(f"has a logical_count of {counts.dtype}, expected whole numbers; {_EXPECTED}")
    counts = counts.astype(np.int64)
    if counts.min() < 0:
        step, layer, expert = np.argwhere(counts < 0)[0]
        raise BadFile(f"has a logical_count of {counts[step, layer, expert]} at step {step}, layer {layer}, expert {expert}")
    return counts


def lines_of(load: np.ndarray, first_step: int) -> Iterator[str]:
    """One window for each step of a load [steps, layers, experts]."""
    for step, matrix in enumerate(load, first_step):
        yield json.dumps({"first_step": step, "last_step": step, "load": matrix.tolist()}, separators=(",", ":")) + "\n"


def total_of(load: np.ndarray) -> str:
    """One load, the sum over steps. errors: BadFile when it exceeds 2^63 - 1."""
    if load.sum(axis=0, dtype=np.float64).max() >= 2.0 ** 63:
        raise BadFile("has counts whose sum over steps exceeds 2^63-1; write .jsonl")
    return json.dumps({"format": "eplb.load.v1", "load": load.sum(axis=0).tolist()}, separators=(",", ":")) + "\n"


def main(arguments: Optional[List[str]] = None) -> int:
    """The command. returns: the exit code; a message of one line is on stderr unless it is 0."""
    options = _parse(arguments)
    try:
        load = load_of(read_torch_file(options.dump))
        text = total_of(load) if options.out.endswith(".json") else "".join(lines_of(load, options.first_step))
    except (BadFile, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        print(f"eplb.convert: {options.dump}: {reason}", file=sys.stderr)
        return 2
    try:
        _write(options.out, text)
    except OSError as error:
        print(f"eplb.convert: {options.out}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="eplb.convert", description="Turn a recorder dump (.pt) of SGLang into a load file.")
    parser.add_argument("dump", metavar="DUMP.pt", help="read this; nothing in it is executed")
    parser.add_argument("out", metavar="OUT", help="write this: .jsonl has a window for each step, .json the sum")
    parser.add_argument("--first-step", type=int, default=0, metavar="N", help="number of the first step, default 0")
    options = parser.parse_args(arguments)
    if not options.out.endswith((".json", ".jsonl")):
        parser.error(f"OUT is {options.out}, expected a name ending in .json or .jsonl")
    if options.first_step < 0:
        parser.error(f"--first-step is {options.first_step}, expected at least 0")
    return options


def _write(path: str, text: str) -> None:
    """All of it or nothing."""
    directory = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=directory, prefix=".eplb-", delete=False) as file:
        try:
            file.write(text)
            file.close()
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(file.name, 0o666 & ~umask)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


if __name__ == "__main__":
    sys.exit(main())
