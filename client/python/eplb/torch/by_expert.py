"""A stack of moved experts as torch.distributed.checkpoint writes and reads it: row by row, each at its expert's place.

torch's LocalShardsWrapper tells where each row belongs among all experts. Rows stay in their own memory, and nothing travels.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

from eplb._rows import local_of
from eplb.errors import FailedPrecondition

_aten = torch.ops.aten
# By id of rows that are live memory: whether each expert is still where the rows say.
_are_current: Dict[int, Callable[[], bool]] = {}

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
        rows, is_current = ExpertRows(made.local_shards(), made.local_offsets()), _are_current.get(id(args[0]))
        if func is _aten.detach.default and is_current is not None:
            _note(rows, is_current)
        return rows

    def __create_write_items__(self, fqn: str, object: Any) -> Any:
        self._expect_current(fqn)
        return super().__create_write_items__(fqn, object)

    def __create_chunk_list__(self) -> Any:
        self._expect_current("a stack of experts")
        return super().__create_chunk_list__()

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        self._expect_current(index.fqn)
        return super().__get_tensor_shard__(index)

    def _expect_current(self, name: str) -> None:
        is_current = _are_current.get(id(self))
        if is_current is not None and not is_current():
            raise FailedPrecondition(f"{name}: experts have moved since this state dict was taken, which shows live memory: take it "
                                     f"anew for each save and load")

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise _refused("pickle")

    def untyped_storage(self) -> Any:
        raise _refused("untyped_storage")


def by_expert(stack: DTensor, experts: Sequence[int], moved: Optional[Callable[[], Any]] = None) -> DTensor:
    """stack: sharded by its first dimension. experts: in the local slots. moved: tells them later; what is returned refuses to be
    saved or loaded once they are others. returns: the same by expert, over the same memory."""
    rows, starts = local_of(stack), _starts_of_runs(experts)
    shards = [rows[start:end] for start, end in zip(starts, [*starts[1:], len(experts)])]
    offsets = [torch.Size((experts[start], *[0] * (rows.dim() - 1))) for start in starts]
    made = ExpertRows(shards, offsets)
    if moved is not None:
        _note(made, lambda: moved() == experts)
    # Rows tell their own places; for a strided shard transformers would exchange them.
    spec = DTensorSpec(stack.device_mesh, tuple(Shard(0) if hasattr(each, "dim") else each for each in stack.placements),
                       tensor_meta=stack._spec.tensor_meta)
    return DTensor(made, spec, requires_grad=False)


def is_by_expert(value: Any, stack: DTensor, experts: Sequence[int]) -> bool:
    """True if `value` is by_expert(stack, experts), as a load in place leaves it."""
    rows = getattr(value, "_local_tensor", None)
    if not isinstance(rows, ExpertRows):
        return False
    own = by_expert(stack, experts)._local_tensor
    return rows.local_offsets() == own.local_offsets() and _addresses(rows) == _addresses(own)


def _note(rows: ExpertRows, is_current: Callable[[], bool]) -> None:
    _are_current[id(rows)] = is_current
    weakref.finalize(rows, _are_current.pop, id(rows), None)


def _addresses(rows: ExpertRows) -> List[int]:
    return [shard.data_ptr() for shard in rows.local_shards()]


def _starts_of_runs(experts: Sequence[int]) -> List[int]:
    return [slot for slot, expert in enumerate(experts) if slot == 0 or expert != experts[slot - 1] + 1]


def _refused(what: str) -> FailedPrecondition:
    return FailedPrecondition(f"{what} of experts that have moved would take them by slot: use torch.distributed.checkpoint, or "
                              f"`with attached.static_order():`")
