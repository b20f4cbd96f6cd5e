"""EPLB in torchtitan, in three lines:

    import eplb.torchtitan
    attached = eplb.torchtitan.attach(trainer, endpoint=.., job=..)      # before trainer.train()
    attached.detach()                                                    # after it

Choices are turned where a layer's token dispatcher gets them: the router, its bias, metrics and losses see logical experts.
docs/frameworks.md says what is supported. Nothing of torchtitan is imported before attach.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch

import eplb.torch
from eplb.errors import InvalidArgument
from eplb.torch.attached import Attached
from eplb.torch.calls import OptimizerCalls
from eplb.torch.frameworks import Framework
from eplb.torch.routing import SlotColumns

_TITAN = Framework("torchtitan", "0.3.0")


def attach(trainer: Any, *, boundary: str = "optimizer", check_batch: Any = False, **options: Any) -> Attached:
    """Attaches EPLB to a trainer of torchtitan with expert parallelism. Collective; after the trainer was built.

    trainer: torchtitan's Trainer, or an object with its `model_parts`, `optimizers` and `parallel_dims`. Its `checkpointer`, if it
    has one, saves each expert under its own place. boundary: "optimizer": each optimizers.step() ends with the boundary. "call":
    the training loop calls step_boundary. check_batch: as of eplb.torch.attach; False, because the shards show which experts a
    rank holds. options: of eplb.torch.attach and eplb.Client.connect. errors: as eplb.torch.attach; InvalidArgument naming a part
    of torchtitan that is not there.
    """
    dims = _TITAN.part(trainer, "parallel_dims")
    if not _TITAN.part(dims, "ep_enabled"):
        raise InvalidArgument("torchtitan trains without expert parallelism: set parallelism.expert_parallel_degree")
    checkpointer = getattr(trainer, "checkpointer", None)
    is_due = _TITAN.part(checkpointer, "_should_save") if getattr(checkpointer, "enable", False) else None
    kind = _TITAN.imported("torchtitan.models.common.moe", "RoutedExperts")
    chunks = list(_TITAN.part(trainer, "model_parts"))
    routed = {_TITAN.part(module, "inner_experts"): module
              for chunk in chunks for module in chunk.modules() if isinstance(module, kind)}
    attached = eplb.torch.attach(
        chunks, list(_TITAN.part(trainer, "optimizers")), experts=lambda module: module in routed, router="router",
        ep_group=_TITAN.part(dims, "get_mesh")("ep"), pp_group=_TITAN.part(dims, "get_optional_mesh")("pp"), boundary=boundary,
        seam=lambda layer, columns: _Dispatch(routed[layer.experts], columns), check_batch=check_batch, **options)
    if is_due is not None and attached.client is not None:
        _save(checkpointer, is_due, attached)
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


def _save(checkpointer: Any, is_due: Callable[..., bool], attached: Attached) -> None:
    """Lets a checkpointer save moved experts from where they are, and in static order what torch.distributed.checkpoint does not
    read by expert: the last checkpoint, which may have another format, and copies in pinned memory."""
    model, mode = _TITAN.part(checkpointer, "states")["model"], _TITAN.part(checkpointer, "async_mode")
    _TITAN.part(model, "cached_state_dict")

    @contextlib.contextmanager
    def saving(step: int, last_step: bool = False) -> Iterator[None]:
        in_order = last_step or mode == "async_with_pinned_mem"
        # Otherwise it would hold the live memory by slot, in which values by expert must not be written.
        cached, model.cached_state_dict = model.cached_state_dict, model.cached_state_dict if in_order else {}
        try:
            with attached.unmoved() if in_order and is_due(step, last_step) else contextlib.nullcontext():
                yield
                checkpointer.maybe_wait_for_staging()
        finally:
            model.cached_state_dict = cached

    calls = OptimizerCalls(checkpointer)
    calls.within("_save", saving)
    attached.remove_at_detach(calls)
