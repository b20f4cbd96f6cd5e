"""python -m eplb.convert: what engines and trainers record becomes JSON for eplbctl.

    python -m eplb.convert expert_distribution_recorder_1700000000.pt load.jsonl --first-layer 3
    python -m eplb.convert recorder_*.pt load.jsonl          # one dump after the other
    python -m eplb.convert expert_location.pt map.json       # then: eplbctl convert --from sglang .. map.json
    python -m eplb.convert router_trace_rank*.jsonl load.jsonl --experts 64       # summed over ranks
    python -m eplb.convert routed_experts.pt load.json --experts 256              # [tokens, layers, top-k]

Read: files of torch.save with counts, a tensor [steps, layers, experts] or SGLang's recorder in its modes stat and
stat_approx, {"logical_count": such a tensor, ..}; SGLang's maps, {"physical_to_logical_map": integers [layers, slots], ..};
with --experts single choices: a tensor [tokens, layers, top-k], as a routing replay has, one window a file, and Megatron's
router traces (.jsonl), of one rank for each part of the tokens. Layers of SGLang are the model's: dense layers have rows too.
Written: of counts OUT.jsonl, one window a step, {"first_step", "last_step", "load"}, or OUT.json, one eplb.load.v1 with
the sum; of a map OUT.json, {"physical_to_logical_map"} with the file's own rows.
Nothing in the file is executed, and torch is not needed. Exit: 0 done, 1 not written, 2 bad input or usage; a line on
stderr beginning with "note:" says what looks odd.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import numpy as np

from eplb._choices import Trace, add, counts_of_choices, load_of_trace, trace_of
from eplb._text import printable
from eplb._torch_file import BadFile, read_torch_file

_MAP = "physical_to_logical_map"
_EXPECTED = (f"expected integers [steps, layers, experts], also as \"logical_count\" of SGLang's recorder, or "
             f"{{\"{_MAP}\": integers [layers, slots]}}")
_MAX_EXPERTS = 1 << 16


def load_of(dump: Any) -> np.ndarray:
    """int64 [steps, layers, experts], tokens that each logical expert got; a matrix is one step.

    dump: the object in the file. errors: BadFile.
    """
    if isinstance(dump, np.ndarray):
        dump = {"logical_count": dump}
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
    if counts.dtype.kind == "f" and np.array_equal(counts, np.rint(counts)) and float(np.abs(counts).max()) < 2.0 ** 63:
        counts = counts.astype(np.int64)  # the approximate mode counts in float32
    if counts.dtype.kind not in "iu":
        raise BadFile(f"has a logical_count of {counts.dtype}, expected whole numbers; {_EXPECTED}")
    counts = counts.astype(np.int64)
    if counts.min() < 0:
        step, layer, expert = np.argwhere(counts < 0)[0]
        raise BadFile(f"has a logical_count of {counts[step, layer, expert]} at step {step}, layer {layer}, expert {expert}")
    return counts


def map_of(dump: Any) -> Optional[np.ndarray]:
    """int64 [layers, slots], the expert in each slot, or None when the dump holds no map. errors: BadFile."""
    if not isinstance(dump, dict) or _MAP not in dump:
        return None
    slots = dump[_MAP]
    if not isinstance(slots, np.ndarray) or slots.ndim != 2 or 0 in slots.shape or slots.dtype.kind not in "iu":
        what = f"{slots.dtype} {list(slots.shape)}" if isinstance(slots, np.ndarray) else type(slots).__name__
        raise BadFile(f"has a {_MAP} that is {what}, expected integers [layers, slots]")
    return slots.astype(np.int64)


def moe_layers(load: np.ndarray, first_layer: Optional[int]) -> Tuple[np.ndarray, str]:
    """The load without the rows of `first_layer` dense layers in front, and a note, or "".

    errors: BadFile when no row would be left.
    """
    if first_layer is not None and first_layer >= load.shape[1]:
        raise BadFile(f"has {load.shape[1]} rows a step, --first-layer {first_layer} leaves none of them; dense layers have "
                      f"rows too")
    idle = ~load.any(axis=(0, 2))
    if first_layer is not None:
        busy = int((~idle[:first_layer]).sum())
        return load[:, first_layer:], f"--first-layer {first_layer} leaves out {busy} rows that have tokens" if busy else ""
    leading = int(np.argmin(idle)) if not idle.all() else 0
    if leading == 0:
        return load, ""
    return load, (f"rows 0..{leading - 1} of each step have no tokens, as dense layers have; give --first-layer {leading} to "
                  f"leave them out")


def lines_of(load: np.ndarray, steps: Iterable[int]) -> Iterator[str]:
    """One window for each step of a load [steps, layers, experts]."""
    for step, matrix in zip(steps, load):
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
        text = _text_of(options)
    except _In as error:
        print(printable(f"eplb.convert: {error}"), file=sys.stderr)
        return 2
    try:
        _write(options.out, text)
    except OSError as error:
        print(f"eplb.convert: {options.out}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


class _In(Exception):
    """A fault of a file; the message begins with its name."""


def _text_of(options: argparse.Namespace) -> str:
    loads: List[np.ndarray] = []
    trace: Trace = {}
    traces: Dict[str, Trace] = {}
    for path in options.dumps:
        try:
            if path.endswith(".jsonl"):
                traces[path] = trace_of(path, _experts_of(options))
                add(trace, traces[path])
                continue
            dump = read_torch_file(path)
            slots = map_of(dump)
            if slots is not None:
                return _text_of_map(options, path, slots)
            counts = load_of(dump) if options.experts is None or not isinstance(dump, np.ndarray) else \
                counts_of_choices(dump, options.experts)
            load, note = moe_layers(counts, options.first_layer)
            if loads and load.shape[1:] != loads[0].shape[1:]:
                raise BadFile(f"has {load.shape[1]} layers x {load.shape[2]} experts, {options.dumps[0]} has "
                              f"{loads[0].shape[1]} x {loads[0].shape[2]}")
        except (BadFile, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise _In(f"{path}: {reason}") from None
        if note:
            print(printable(f"eplb.convert: note: {path}: {note}"), file=sys.stderr)
        loads.append(load)
    if trace and loads:
        raise _In(f"{options.dumps[0]}: router traces are summed over ranks, and files of torch.save follow each other: convert them apart")
    for path, each in traces.items():
        if len(each) < len(trace):
            print(printable(f"eplb.convert: note: {path}: it lacks {len(trace) - len(each)} of {len(trace)} pairs of a step and a layer "
                            f"that other files have"), file=sys.stderr)
    if trace:
        loads.append(load_of_trace(trace))
    whole = np.concatenate(loads)
    if not options.out.endswith(".json"):
        own_steps = trace and options.first_step is None
        return "".join(lines_of(whole, sorted({step for step, _ in trace}) if own_steps else itertools.count(options.first_step or 0)))
    try:
        return total_of(whole)
    except BadFile as error:
        raise _In(f"{', '.join(options.dumps)}: {error}") from None


def _experts_of(options: argparse.Namespace) -> int:
    """errors: BadFile where --experts is missing."""
    if options.experts is None:
        raise BadFile("is a router trace, which does not tell the number of experts: give --experts")
    if options.first_layer is not None:
        raise BadFile("is a router trace, which has no dense layers: leave out --first-layer")
    return int(options.experts)


def _text_of_map(options: argparse.Namespace, path: str, slots: np.ndarray) -> str:
    problem = ("holds a map, expected one file alone" if len(options.dumps) > 1 else
               "holds a map, write it as OUT.json" if options.out.endswith(".jsonl") else
               "holds a map, whose rows stay as they are; give --first-layer to `eplbctl convert --from sglang`"
               if options.first_layer is not None else "")
    if problem:
        raise _In(f"{path}: {problem}")
    return json.dumps({_MAP: slots.tolist()}, separators=(",", ":")) + "\n"


def _parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="eplb.convert", description="Turn dumps of engines and router traces into JSON for eplbctl.")
    parser.add_argument("dumps", metavar="DUMP", nargs="+",
                        help="read these in order, .pt, or .jsonl of ranks; nothing in them is executed")
    parser.add_argument("out", metavar="OUT", help="write this: .jsonl has a window for each step, .json the sum, or a map")
    parser.add_argument("--first-step", type=int, metavar="N", help="number of the first step, default 0, or the steps of a trace")
    parser.add_argument("--first-layer", type=int, metavar="L",
                        help="the model's number of the first MoE layer: rows of dense layers before it are left out")
    parser.add_argument("--experts", type=int, metavar="E", help="the files hold choices among this many experts, not counts")
    options = parser.parse_args(arguments)
    if not options.out.endswith((".json", ".jsonl")):
        parser.error(f"OUT is {options.out}, expected a name ending in .json or .jsonl")
    if options.out.endswith(".jsonl") and os.path.exists(options.out):
        with open(options.out, encoding="utf-8", errors="replace") as file:
            if '"top_indices"' in file.readline():
                parser.error(f"OUT is {options.out}, a router trace: name the file to write at the end")
    for name in ("first_step", "first_layer"):
        if (getattr(options, name) or 0) < 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}, expected at least 0")
    if options.experts is not None and not 1 <= options.experts <= _MAX_EXPERTS:
        parser.error(f"--experts is {options.experts}, expected 1..{_MAX_EXPERTS}")
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
