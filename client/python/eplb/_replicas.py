"""Rows beside the registered tensors, of experts in several slots, as the library takes them."""

from __future__ import annotations

from typing import Any, Mapping

from eplb import _rows
from eplb import _structs as structs
from eplb._arguments import integer
from eplb.errors import InvalidArgument


def to_structs(rows: Mapping[int, Any], num_local_slots: int, call: str) -> Any:
    """rows: layer -> a tensor [local slots, ..] or several. returns: the structs, layers rising, which point to the tensors.

    errors: InvalidArgument naming layer and tensor.
    """
    if not isinstance(rows, Mapping):
        raise InvalidArgument(f"{call}: {type(rows).__name__}, expected a dict: layer -> tensor [local slots, ..], or several")
    views = []
    for layer in sorted(integer("layer", each) for each in rows):
        given = rows[layer]
        for number, tensor in enumerate(given if isinstance(given, (list, tuple)) else [given]):
            name = f"{call} of layer {layer}, tensor {number}"
            view, kind = _rows.rows_of(tensor, name, num_local_slots), _rows.dtype_of(tensor)
            if kind not in structs.GRADIENT_TYPES and call != "broadcast_weights":  # which only copies
                raise _rows.refused(name, f"is {kind}, expected {', '.join(structs.GRADIENT_TYPES)}")
            views.append(structs.sized(structs.ReplicaRows, name=name.encode(), base=view.base, row_bytes=view.row_bytes,
                                       row_stride=view.row_stride, num_rows=view.num_rows, layer=layer,
                                       type=structs.GRADIENT_TYPES.get(kind, 0)))
    return (structs.ReplicaRows * len(views))(*views)
