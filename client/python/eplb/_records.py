"""Equality of records whose fields are arrays."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from eplb import _rows


def equal_records(one: Any, other: Any) -> bool:
    """Whether two records of one class have equal fields; arrays are equal by their values, wherever they lie."""
    pairs = ((getattr(one, each.name), getattr(other, each.name)) for each in fields(one) if each.compare)
    return all(np.array_equal(_on_host(mine), _on_host(theirs)) for mine, theirs in pairs)


def _on_host(value: Any) -> Any:
    return value.cpu().numpy() if _rows.is_torch(value) else value
