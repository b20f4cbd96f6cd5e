"""What calls accept, made what the library takes."""

from __future__ import annotations

import hashlib
from typing import Any, Union

import numpy as np

from eplb import _rows
from eplb.errors import InvalidArgument

# What a probe gives: an integer (its low 64 bits count), bytes, or a numpy array or torch tensor, whose bytes count.
Digest = Union[int, bytes, np.ndarray, Any]


def counts_of(counts: Any) -> np.ndarray:
    """int64 [n], contiguous. errors: InvalidArgument for what are no integers."""
    if _rows.is_torch(counts):
        counts = counts.detach().cpu().numpy()
    array = np.asarray(counts)
    if array.ndim != 1 or not np.can_cast(array.dtype, np.int64, "same_kind") or array.dtype == np.bool_:
        raise InvalidArgument(f"counts are {array.dtype} {list(array.shape)}, expected integers [experts]")
    return np.ascontiguousarray(array, dtype=np.int64)


def digest_of(given: Digest) -> int:
    """64 bits of what a probe gave."""
    output: Any = given
    if _rows.is_torch(output):
        import torch

        output = output.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    if isinstance(output, np.ndarray):
        output = output.tobytes()
    if isinstance(output, (bytes, bytearray, memoryview)):
        return int.from_bytes(hashlib.blake2b(output, digest_size=8).digest(), "little")
    return int(output) & 0xFFFFFFFFFFFFFFFF
