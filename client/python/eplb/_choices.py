"""Counts of experts' tokens from records of single choices: Megatron's router traces, and the experts of a routing replay."""

from __future__ import annotations

import json
from typing import Any, Dict, Tuple

import numpy as np

from eplb._torch_file import BadFile

_MOST_CELLS = 1 << 26

# A layer as a router trace names it: its block, in order of running, the number of a prediction head, and the number in it.
_Layer = Tuple[str, int, int]

# By step and layer: int64 [experts].
Trace = Dict[Tuple[int, _Layer], np.ndarray]


def counts_of_choices(choices: np.ndarray, num_experts: int) -> np.ndarray:
    """choices: integers [tokens, layers, top-k], logical experts; below 0 is no expert. returns: int64 [1, layers, experts].

    errors: BadFile for another shape, or a number above the experts.
    """
    if choices.ndim != 3 or 0 in choices.shape or choices.dtype.kind not in "iu":
        raise BadFile(f"holds {choices.dtype} {list(choices.shape)}, expected choices, integers [tokens, layers, top-k]")
    if choices.shape[1] * num_experts > _MOST_CELLS:
        raise BadFile(f"has {choices.shape[1]} layers of {num_experts} experts, at most {_MOST_CELLS} in all are read")
    return np.stack([_counted(choices[:, layer], num_experts, f"layer {layer}") for layer in range(choices.shape[1])])[np.newaxis]


def trace_of(path: str, num_experts: int) -> Trace:
    """Reads a router_trace_rank*.jsonl. errors: BadFile naming the line; OSError."""
    found: Trace = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                step, layer, counts = _read(line, num_experts)
            except BadFile as error:
                raise BadFile(f"line {number} {error}") from None
            add(found, {(step, layer): counts})
    if not found:
        raise BadFile("has no line: no layer was traced")
    return found


def add(total: Trace, trace: Trace) -> None:
    """Adds the counts of another rank."""
    for key, counts in trace.items():
        total[key] = total[key] + counts if key in total else counts


def load_of_trace(trace: Trace) -> np.ndarray:
    """Returns int64 [steps, layers, experts], steps and layers in order, decoder layers first."""
    steps, layers = _places({step for step, _ in trace}), _places({layer for _, layer in trace})
    load = np.zeros((len(steps), len(layers), len(next(iter(trace.values())))), dtype=np.int64)
    for (step, layer), counts in trace.items():
        load[steps[step], layers[layer]] = counts
    return load


def _places(found: Any) -> Dict[Any, int]:
    return {each: place for place, each in enumerate(sorted(found))}


def _read(line: str, num_experts: int) -> Tuple[int, _Layer, np.ndarray]:
    """errors: BadFile, whose message goes on after the number of the line."""
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise BadFile("is no JSON") from None
    places = [record.get(key, default) for key, default in (("step", None), ("layer", None), ("mtp_idx", 0))] \
        if isinstance(record, dict) else [None]
    if not all(type(each) is int and each >= 0 for each in places) or "top_indices" not in record:
        raise BadFile("has no step, layer and top_indices, as a line of Megatron's router trace has")
    rows = record["top_indices"]
    if not isinstance(rows, list) or not all(isinstance(row, list) and all(type(each) is int for each in row) for row in rows) \
            or len({len(row) for row in rows}) > 1:
        raise BadFile("has top_indices that are no integers [tokens, top-k]")
    try:
        choices = np.array(rows, dtype=np.int64)
    except OverflowError:
        raise BadFile("has top_indices above 64 bits") from None
    step, layer, head = places
    return step, (str(record.get("block", "decoder")), head, layer), _counted(choices, num_experts, f"layer {layer}")


def _counted(choices: np.ndarray, num_experts: int, where: str) -> np.ndarray:
    chosen = choices[choices >= 0].reshape(-1)
    if chosen.size and chosen.max() >= num_experts:
        raise BadFile(f"has expert {chosen.max()} in {where}, --experts is {num_experts}")
    return np.bincount(chosen.astype(np.int64), minlength=num_experts)
