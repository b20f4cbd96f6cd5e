"""EPLB in transformers, in three lines:

    import eplb.transformers
    attached = eplb.transformers.attach(model, optimizer, endpoint=.., job=..)      # before the training loop
    attached.detach()                                                               # after it

Choices are turned before a layer's experts are dispatched: the router, its logits and the auxiliary loss see logical experts.
docs/frameworks.md says what is supported. Nothing of transformers is imported.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch

import eplb.torch
from eplb.errors import InvalidArgument
from eplb.torch.attached import Attached
from eplb.torch.calls import OptimizerCalls
from eplb.torch.frameworks import Framework
from eplb.torch.layers import ExpertLayer
from eplb.torch.routing import SlotColumns

_TRANSFORMERS = Framework("transformers", "5.23.0")

# Style of a plan's modules that get the whole batch with the numbers of logical experts, and send tokens to the ranks of these.
_DISPATCHES = "ep_dispatch_experts"


def attach(model: Any, optimizer: Any = None, *, boundary: str = "optimizer", check_batch: Any = False, **options: Any) -> Attached:
    """Attaches EPLB to a model that transformers has distributed with expert parallelism. Collective; after the optimizer was
    built.

    model: of from_pretrained with a DistributedConfig of ep_size > 1; its save_pretrained runs in static order from then on.
    optimizer: as of eplb.torch.attach. boundary: "optimizer": each optimizer.step() ends with the boundary. "call": the training
    loop calls step_boundary. check_batch: as of eplb.torch.attach; False, because the shards show which experts a rank holds.
    options: of eplb.torch.attach and eplb.Client.connect. errors: as eplb.torch.attach; InvalidArgument naming a part of
    transformers that is not there.
    """
    meshes = _TRANSFORMERS.part(model, "_mesh_manager")
    config = getattr(_TRANSFORMERS.part(model, "config"), "distributed_config", None)
    if meshes is None or config is None or _TRANSFORMERS.part(config, "ep_size") == 1:
        raise InvalidArgument(f"{type(model).__name__} was loaded without expert parallelism: give from_pretrained a "
                              f"distributed_config=DistributedConfig(ep_size=..)")
    plan: Dict[str, str] = _TRANSFORMERS.part(model, "_expand_parallel_plan")(_TRANSFORMERS.part(model, "_ep_plan"))
    dispatching = {model.get_submodule(name) for name, style in plan.items() if style == _DISPATCHES}
    if not dispatching:
        raise InvalidArgument(f"{type(model).__name__}: no module of its ep_plan has the style \"{_DISPATCHES}\"")
    attached = eplb.torch.attach(
        model, optimizer, experts=lambda module: module in dispatching, ep_group=_TRANSFORMERS.part(meshes, "get_mesh")("ep"),
        boundary=boundary, seam=_Dispatch, check_batch=check_batch, **options)
    if attached.client is not None:
        calls = OptimizerCalls(model)
        calls.within("save_pretrained", attached.unmoved)  # all ranks of a sharded model call it
        attached.remove_at_detach(calls)
    return attached


class _Dispatch:
    """Gives a layer's dispatch slots for experts. A copy of the module has a copy of it."""

    def __init__(self, layer: ExpertLayer, columns: SlotColumns) -> None:
        self._columns = columns
        self._handle = layer.experts.register_forward_pre_hook(self._turn, with_kwargs=True)

    def remove(self) -> None:
        self._handle.remove()

    def _turn(self, _module: torch.nn.Module, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> Any:
        if "top_k_index" in named:
            return arguments, {**named, "top_k_index": self._columns.count_and_turn(named["top_k_index"])}
        hidden, experts, *rest = arguments
        return (hidden, self._columns.count_and_turn(experts), *rest), named
