"""The router's choices as the library takes them, in the memory where they lie."""

from __future__ import annotations

import sys
from typing import Any, Optional, Sequence

import numpy as np

from eplb import _rows
from eplb import _structs as structs
from eplb.errors import InvalidArgument


def choices_of(expert_ids: Any, num_experts: int, counters: Any, is_padding: Any) -> structs.Choices:
    """Points to the arrays, which must outlive it. errors: InvalidArgument naming the argument."""
    check("expert_ids", expert_ids, ("int32", "int64"), ("tokens", "top_k"))
    tokens, top_k = expert_ids.shape
    choices = structs.sized(structs.Choices, expert_ids=_rows.address_of(expert_ids), num_tokens=tokens, top_k=top_k,
                            num_experts=num_experts, id_type=structs.ID_TYPES[_rows.dtype_of(expert_ids)])
    if counters is not None:
        check("counters", counters, ("int64",), (num_experts + 1,), written=True)
        choices.counters = _rows.address_of(counters)
    if is_padding is not None:
        check("is_padding", is_padding, ("bool", "uint8"), (tokens,))
        choices.is_padding = _rows.address_of(is_padding)
    return choices


def check_slots(slots: Any, expert_ids: Any) -> None:
    check("slots", slots, (_rows.dtype_of(expert_ids),), expert_ids.shape, written=True)


def check(name: str, array: Any, types: Sequence[str], shape: Sequence[Any], written: bool = False) -> None:
    """shape: a word stands for any size. errors: InvalidArgument for what is no such array in one piece of memory."""
    expected = f"expected {' or '.join(types)} [{', '.join(map(str, shape))}]"
    if not (_rows.is_torch(array) or isinstance(array, np.ndarray)):
        raise InvalidArgument(f"{name}: {type(array).__name__}, {expected} as a numpy array or a torch tensor")
    found = list(array.shape)
    fits = len(found) == len(shape) and all(isinstance(want, str) or want == size for want, size in zip(shape, found))
    if _rows.dtype_of(array) not in types or not fits:
        raise InvalidArgument(f"{name}: {_rows.described(array)}, {expected}")
    if not (array.is_contiguous() if _rows.is_torch(array) else array.flags.c_contiguous):
        raise InvalidArgument(f"{name}: not contiguous, {expected} in one piece")
    if written and not _rows.is_torch(array) and not array.flags.writeable:
        raise InvalidArgument(f"{name}: read-only, the counts and slots are written")


def zeros_beside(array: Any, size: int) -> Any:
    """int64 [size], of the kind and in the memory of `array`."""
    return array.new_zeros(size, dtype=sys.modules["torch"].int64) if _rows.is_torch(array) else np.zeros(size, np.int64)


def empty_like(array: Any) -> Any:
    return sys.modules["torch"].empty_like(array) if _rows.is_torch(array) else np.empty_like(array)


def stream_of(stream: Any, array: Any) -> Optional[int]:
    """stream: as of step_boundary; None: torch's current one on the device of `array`."""
    if stream is None and _rows.is_torch(array) and array.is_cuda:
        return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    return getattr(stream, "cuda_stream", stream)
