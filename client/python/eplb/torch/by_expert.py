"""A stack of moved experts as torch.distributed.checkpoint writes and reads it: row by row, each at its expert's place.

torch's LocalShardsWrapper tells where each row belongs among all experts. Rows stay in their own memory, and nothing travels.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

from eplb._rows import local_of
from eplb.errors import FailedPrecondition

_aten = torch.ops.aten
_COPIES = (_aten.detach.default, _aten.clone.default, _aten._to_copy.default, _aten.new_empty.default)


class ExpertRows(LocalShardsWrapper):  # type: ignore[misc]
    """The local part of a DTensor [experts, ..]: runs of neighbouring experts, each with its first expert as offset.

    It may be copied, saved and loaded by torch.distributed.checkpoint. Whatever else would read it by slot, and is refused.
    """

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _COPIES:
            raise _refused(str(func))
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return ExpertRows(made.local_shards(), made.local_offsets())

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise _refused("pickle")

    def untyped_storage(self) -> Any:
        raise _refused("untyped_storage")


def by_expert(stack: DTensor, experts: Sequence[int]) -> DTensor:
    """stack: sharded by its first dimension. experts: in the local slots. returns: the same by expert, over the same memory."""
    rows, starts = local_of(stack), _starts_of_runs(experts)
    shards = [rows[start:end] for start, end in zip(starts, [*starts[1:], len(experts)])]
    offsets = [torch.Size((experts[start], *[0] * (rows.dim() - 1))) for start in starts]
    return DTensor(ExpertRows(shards, offsets), stack._spec, requires_grad=False)


def is_by_expert(value: Any, stack: DTensor, experts: Sequence[int]) -> bool:
    """True if `value` is by_expert(stack, experts), as a load in place leaves it."""
    rows = getattr(value, "_local_tensor", None)
    if not isinstance(rows, ExpertRows):
        return False
    own = by_expert(stack, experts)._local_tensor
    return rows.local_offsets() == own.local_offsets() and _addresses(rows) == _addresses(own)


def _addresses(rows: ExpertRows) -> List[int]:
    return [shard.data_ptr() for shard in rows.local_shards()]


def _starts_of_runs(experts: Sequence[int]) -> List[int]:
    return [slot for slot, expert in enumerate(experts) if slot == 0 or expert != experts[slot - 1] + 1]


def _refused(what: str) -> FailedPrecondition:
    return FailedPrecondition(f"{what} of experts that have moved would take them by slot: use torch.distributed.checkpoint, or "
                              f"`with attached.static_order():`")
