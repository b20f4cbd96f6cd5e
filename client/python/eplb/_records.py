"""Base of the records of this package."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from eplb import _rows


class ArrayRecord:
    """Base of dataclasses with eq=False: two of one class are equal when all their fields are, arrays by their values, wherever
    they lie. There is no hash, as for arrays."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        pairs = ((getattr(self, each.name), getattr(other, each.name))
                 for each in fields(self) if each.compare)  # type: ignore[arg-type]
        return all(_equal(_on_host(mine), _on_host(theirs)) for mine, theirs in pairs)


def _equal(mine: Any, theirs: Any) -> bool:
    # A figure without a sample is nan, and equal to another one.
    kinds = {np.asarray(each).dtype.kind for each in (mine, theirs)}
    return np.array_equal(mine, theirs, equal_nan=kinds == {"f"})


def counted(number: int, one: str) -> str:
    """Returns a text such as 1 GPU, 2 GPUs."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def _on_host(value: Any) -> Any:
    return value.cpu().numpy() if _rows.is_torch(value) else value
