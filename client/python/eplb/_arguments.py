"""Converts arguments of calls to values of the library."""

from __future__ import annotations

import difflib
import hashlib
import operator
import os
import struct
from dataclasses import fields
from typing import Any, Iterable, Union

import numpy as np

from eplb import _rows
from eplb.errors import InvalidArgument

# Output of a probe: an integer (its low 64 bits count), a float, bytes, or a numpy array or torch tensor, of which every bit
# counts.
Digest = Union[int, float, bytes, np.ndarray, Any]


def integer(name: str, value: Any, num_bytes: int = 4) -> int:
    """errors: InvalidArgument for what is no integer, or does not fit into num_bytes."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name}: {value!r}, expected an integer") from None
    # ctypes would cut it without a word.
    if not -(1 << (8 * num_bytes - 1)) <= number < 1 << (8 * num_bytes - 1):
        raise InvalidArgument(f"{name}: {_shown(number)} does not fit into {8 * num_bytes} bits")
    return number


def real(name: str, value: Any) -> float:
    """errors: InvalidArgument for what is no number, or above a double's range."""
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgument(f"{name}: {_shown(value)} is above a double's range") from None
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name}: {value!r}, expected a number") from None


def text(name: str, value: Any) -> bytes:
    """errors: InvalidArgument for what is neither text nor a path."""
    try:
        given = os.fspath(value)
    except TypeError:
        raise InvalidArgument(f"{name}: {value!r}, expected text") from None
    encoded = os.fsencode(given)
    if b"\0" in encoded:
        raise InvalidArgument(f"{name}: {given!r} has a zero in it")
    return encoded


def switch(name: str, value: Any) -> int:
    """1 for True. errors: InvalidArgument for what is no truth value."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"{name}: {_value(value)}, expected True or False")
    return int(value)


def choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """errors: InvalidArgument for what is none of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgument(f"{name}: {_value(value)}, expected one of {', '.join(choices)}")
    return value


def expect_fields(given: Iterable[str], record: type) -> None:
    """errors: InvalidArgument for an option that is no field of the record, with the nearest one that there is."""
    known = [field.name for field in fields(record)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            hint = f", perhaps {nearest[0]}" if nearest else f"; {record.__module__}.{record.__name__} has the names"
            raise InvalidArgument(f"option {name}: there is none of this name{hint}")


def numbers(name: str, given: Any, kinds: str = "biuf", expected: str = "numbers") -> np.ndarray:
    """Returns an array of an array, a torch tensor on any device, or lists. kinds: numpy's letters. errors: InvalidArgument
    for others.
    """
    try:
        array = given.detach().cpu().numpy() if _rows.is_torch(given) else np.asarray(given)
    except (TypeError, ValueError) as error:  # a dtype that numpy does not have, or lists of different lengths
        raise InvalidArgument(f"{name}: {_described(given)}, expected {expected}: {error}") from None
    if array.dtype.kind not in kinds:
        raise InvalidArgument(f"{name}: {_described(array)}, expected {expected}")
    return array


def integers(name: str, given: Any, shape: str) -> np.ndarray:
    """int64, contiguous. shape: as a message says it. errors: InvalidArgument for what are no integers of 64 bits."""
    array = numbers(name, given, "iu", f"integers {shape}")
    if array.ndim == 0:
        raise InvalidArgument(f"{name}: {array}, expected integers {shape}")
    # numpy would wrap it without a word.
    if array.dtype == np.uint64 and array.size > 0:
        integer(name, array.max(), 8)
    return np.ascontiguousarray(array, dtype=np.int64)


def counts_of(counts: Any, name: str = "counts", shape: str = "[experts]") -> np.ndarray:
    """int64 [n], contiguous. errors: InvalidArgument for what are no integers, naming the argument."""
    array = integers(name, counts, shape)
    if array.ndim != 1:
        raise InvalidArgument(f"{name}: {_described(array)}, expected integers {shape}")
    return array


def digest_of(given: Digest) -> int:
    """64 bits of what a probe gave. errors: InvalidArgument naming the type of what has no bits to compare.

    A truth value is refused: one bit does not tell experts apart.
    """
    output: Any = given
    if _rows.is_torch(output):
        import torch

        output = output.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    if isinstance(output, np.ndarray) and not output.dtype.hasobject:
        output = output.tobytes()
    if isinstance(output, (float, np.floating)):
        output = struct.pack("<d", output)  # int() of it would drop what is behind the point
    if isinstance(output, (bytes, bytearray, memoryview)):
        return int.from_bytes(hashlib.blake2b(output, digest_size=8).digest(), "little")
    if hasattr(output, "__index__") and not isinstance(output, (bool, np.bool_, np.ndarray)):
        return operator.index(output) & 0xFFFFFFFFFFFFFFFF
    raise InvalidArgument(f"probe: it gave {_described(output)}, expected an integer, a float, bytes, or an array")


def _shown(value: Any) -> str:
    """A number as a message shows it."""
    bits = value.bit_length() if isinstance(value, int) else 0
    return f"an integer of {bits} bits" if bits > 128 else str(value)


def _value(value: Any) -> str:
    """An argument in one line."""
    return _described(value) if _rows.is_torch(value) or isinstance(value, np.ndarray) else repr(value)


def _described(value: Any) -> str:
    if _rows.is_torch(value) or isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
