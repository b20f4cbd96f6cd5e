"""EPLB in torchtitan, in three lines:

    import eplb.torchtitan
    attached = eplb.torchtitan.attach(trainer, endpoint=.., job=..)      # before trainer.train()
    attached.detach()                                                    # after it

Choices are turned where a layer's token dispatcher gets them: the router, its bias, metrics and losses see logical experts.
docs/frameworks.md says what is supported. Nothing of torchtitan is imported before attach.
"""

from __future__ import annotations

from typing import Any

import torch

import eplb.torch
from eplb.errors import InvalidArgument
from eplb.torch.attached import Attached
from eplb.torch.frameworks import Framework
from eplb.torch.routing import SlotColumns

_TITAN = Framework("torchtitan", "0.3.0")


def attach(trainer: Any, *, boundary: str = "optimizer", check_batch: Any = False, **options: Any) -> Attached:
    """Attaches EPLB to a trainer of torchtitan with expert parallelism. Collective; after the trainer was built.

    trainer: torchtitan's Trainer, or an object with its `model_parts`, `optimizers` and `parallel_dims`. Its `checkpointer`, if it
    has one, saves in static order. boundary: "optimizer": each optimizers.step() ends with the boundary. "call": the training loop
    calls step_boundary. check_batch: as of eplb.torch.attach; False, because the shards show which experts a rank holds. options:
    of eplb.torch.attach and eplb.Client.connect. errors: as eplb.torch.attach; InvalidArgument naming a part of torchtitan that
    is not there.
    """
    dims = _TITAN.part(trainer, "parallel_dims")
    if not _TITAN.part(dims, "ep_enabled"):
        raise InvalidArgument("torchtitan trains without expert parallelism: set parallelism.expert_parallel_degree")
    saves = _Saves(getattr(trainer, "checkpointer", None))
    kind = _TITAN.imported("torchtitan.models.common.moe", "RoutedExperts")
    chunks = list(_TITAN.part(trainer, "model_parts"))
    routed = {_TITAN.part(module, "inner_experts"): module for chunk in chunks for module in chunk.modules() if isinstance(module, kind)}
    attached = eplb.torch.attach(
        chunks, list(_TITAN.part(trainer, "optimizers")), experts=lambda module: module in routed, router="router",
        ep_group=_TITAN.part(dims, "get_mesh")("ep"), pp_group=_TITAN.part(dims, "get_optional_mesh")("pp"), boundary=boundary,
        seam=lambda layer, columns: _Dispatch(routed[layer.experts], columns), check_batch=check_batch, **options)
    saves.begin(attached)
    return attached


class _Dispatch:
    """Stands in for `dispatch` of a layer's token dispatcher, which all of torchtitan's have, and gives it slots for experts.

    A copy of the dispatcher has a copy of it. Compiled graphs trace through it.
    """

    def __init__(self, routed: torch.nn.Module, columns: SlotColumns) -> None:
        self._dispatcher = _TITAN.part(routed, "token_dispatcher")
        self._dispatch, self._columns = _TITAN.part(self._dispatcher, "dispatch"), columns
        self._own = self._dispatcher.__dict__.get("dispatch")
        self._dispatcher.dispatch = self

    def __call__(self, x: torch.Tensor, scores: torch.Tensor, experts: torch.Tensor, counts: torch.Tensor) -> Any:
        return self._dispatch(x, scores, self._columns.count_and_turn(experts), self._columns.in_slot_order(counts, 0))

    def remove(self) -> None:
        if self._dispatcher.__dict__.get("dispatch") is not self:
            return  # another wrapper is around it, and experts are in static order
        del self._dispatcher.dispatch
        if self._own is not None:
            self._dispatcher.dispatch = self._own


class _Saves:
    """Lets a checkpointer save in static order. checkpointer: of a trainer; None or a disabled one: nothing is done."""

    def __init__(self, checkpointer: Any) -> None:
        self._checkpointer = checkpointer if getattr(checkpointer, "enable", False) else None
        if self._checkpointer is not None:
            self._is_due, self._save = (_TITAN.part(checkpointer, name) for name in ("_should_save", "_save"))

    def begin(self, attached: Attached) -> None:
        if self._checkpointer is None or attached.client is None:
            return
        self._attached, self._checkpointer._save = attached, self
        attached.remove_at_detach(self)

    def __call__(self, step: int, last_step: bool = False) -> bool:
        if not self._is_due(step, last_step):
            return False
        with self._attached.static_order():
            saved: bool = self._save(step, last_step)
            self._checkpointer.maybe_wait_for_staging()  # it copies from the live memory
        return saved

    def remove(self) -> None:
        self._checkpointer.__dict__.pop("_save", None)
