"""EPLB in DeepSpeed, in three lines:

    import eplb.deepspeed
    attached = eplb.deepspeed.attach(engine, endpoint=.., job=..)        # after deepspeed.initialize
    attached.detach()                                                    # after training

It serves deepspeed.moe and AutoEP. A layer's choices are turned behind its gate, which sees logical experts, as do losses and
counts. Masters and moments in partitions of ZeRO stages 1 and 2 move with their experts, also those cut between two ranks.
"""

from __future__ import annotations

import inspect
from typing import Any, Dict, Optional

import torch
from torch import nn

import eplb.torch
from eplb.errors import FailedPrecondition, InvalidArgument
from eplb.torch.attached import Attached
from eplb.torch.calls import OptimizerCalls
from eplb.torch.frameworks import Framework
from eplb.torch.layers import ExpertLayer
from eplb.torch.routing import RouterHook, SlotColumns
from eplb.torch.scattered import Part
from eplb.torch.state import Masters

_DEEPSPEED = Framework("deepspeed", "0.19.8")

_PAGE = "docs/frameworks.md"

# Optimizers around torch's with partitions: their attributes with the parameters of each group, and with its flat partition.
_PARTITIONS = (("bit16_groups", "single_partition_of_fp32_groups"), ("bf16_groups", "fp32_groups_flat_partition"))


def attach(engine: Any, *, boundary: str = "optimizer", check_batch: Any = False, **options: Any) -> Attached:
    """Attaches EPLB to an engine that trains with deepspeed.moe or AutoEP. Collective; after deepspeed.initialize. The engine's
    save_checkpoint and load_checkpoint run in static order from then on.

    boundary: "optimizer": each engine.step() that updates weights ends with the boundary. "call": the training loop calls
    step_boundary behind each of these. check_batch: as of eplb.torch.attach; False, because DeepSpeed fixes the order of experts.
    options: of eplb.torch.attach and eplb.Client.connect. errors: as eplb.torch.attach; InvalidArgument naming an unsupported
    setting, or a part that this DeepSpeed does not have.
    """
    layers = _layers_of(engine)
    _expect_movable(engine, layers)
    outer = _DEEPSPEED.part(engine, "optimizer")
    name = _DEEPSPEED.part(next(iter(layers.values())), "ep_group_name")
    groups = "deepspeed.utils.groups"
    if boundary not in ("optimizer", "call"):
        raise InvalidArgument(f"boundary: {boundary!r}, expected \"optimizer\" or \"call\"")
    attached = eplb.torch.attach(
        engine.module, getattr(outer, "optimizer", outer), experts=lambda module: module in layers,
        router=lambda around: around.router if hasattr(around, "router") else around.gate,
        seam=lambda layer, columns: _seam(layers[layer.experts], layer, columns), masters=_masters(outer),
        ep_group=_DEEPSPEED.imported(groups, "_get_expert_parallel_group")(name),
        edp_group=_DEEPSPEED.imported(groups, "_get_expert_data_parallel_group")(name),
        boundary=outer if boundary == "optimizer" else boundary, check_batch=check_batch, **options)
    if attached.client is not None:
        _checkpoint_in_static_order(engine, attached)
    return attached


def _layers_of(engine: Any) -> Dict[nn.Module, nn.Module]:
    """Returns the layer around each module of experts. errors: InvalidArgument if there is none."""
    moe = _DEEPSPEED.imported("deepspeed.moe.sharded_moe", "MOELayer")
    auto = _DEEPSPEED.imported("deepspeed.module_inject.auto_ep_layer", "AutoEPMoELayer")
    layers = {module.experts: module for module in engine.module.modules() if isinstance(module, (moe, auto))}
    if not layers:
        raise InvalidArgument("the engine's model has no deepspeed.moe.layer.MoE and no layer of AutoEP")
    return layers


def _expect_movable(engine: Any, layers: Dict[nn.Module, nn.Module]) -> None:
    """errors: InvalidArgument naming an unsupported setting, or a part that this DeepSpeed does not have."""
    outer, groups = engine.optimizer, _DEEPSPEED.imported("deepspeed.utils", "groups")
    names = sorted({layer.ep_group_name for layer in layers.values()})
    tensor_parallel = _DEEPSPEED.imported("deepspeed.utils.bwc", "bwc_tensor_model_parallel_world_size")
    for is_there, what in (
            (outer is None, "the engine has no optimizer"),
            (engine.zero_optimization_stage() == 3, "ZeRO stage 3 shards every expert over ranks: use stage 1 or 2"),
            (getattr(outer, "round_robin_gradients", False), "round_robin_gradients: DeepSpeed's map of partitions is not that of its "
             "weights: turn it off"),
            (getattr(outer, "cpu_offload", False), "offload_optimizer: masters and moments in host memory do not move: turn it off"),
            (engine.checkpoint_engine.is_decoupled(), "a decoupled checkpoint engine reads weights after save_checkpoint has returned"),
            (engine.pipeline_parallelism, "a PipelineEngine: only one pipeline stage is supported"),
            (tensor_parallel(groups.mpu) > 1, "tensor parallelism: only expert and data parallelism are supported"),
            (len(names) > 1, f"layers of {' and '.join(names)}: all need one ep_size")):
        if is_there:
            raise InvalidArgument(f"deepspeed: {what} ({_PAGE})")
    forward = _DEEPSPEED.imported("deepspeed.moe.sharded_moe", "TopKGate").forward
    if "sparse_routes" not in inspect.signature(forward).parameters:
        raise _DEEPSPEED.lacking("TopKGate.forward(.., sparse_routes)", "its gates give masks")


def _masters(outer: Any) -> Optional[Masters]:
    """Returns the masters of DeepSpeed's optimizer around torch's; None for torch's own.

    errors: InvalidArgument for an optimizer that keeps them in another way.
    """
    found: Dict[int, Any] = {}
    for names, flats in _PARTITIONS:
        for parameters, flat in zip(getattr(outer, names, ()), getattr(outer, flats, ())):
            found.update((id(parameter), _part(parameter, flat)) for parameter in parameters)
    if hasattr(outer, "fp16_groups") and hasattr(outer, "fp32_groups"):
        found.update((id(parameter), master) for parameters, masters in zip(outer.fp16_groups, outer.fp32_groups)
                     for parameter, master in zip(parameters, masters))
    if not found and not isinstance(outer, torch.optim.Optimizer):
        raise InvalidArgument(f"deepspeed: {type(outer).__name__} keeps masters in a way that is not supported: use ZeRO stage 1 or "
                              f"2 ({_PAGE})")
    return (lambda parameter: found.get(id(parameter))) if found else None


def _part(parameter: torch.Tensor, flat: torch.Tensor) -> Part:
    here = _DEEPSPEED.part(parameter, "_hp_mapping")
    if here is None:
        return Part(flat)
    return Part(flat, here.hp_fragment_address.start, here.lp_fragment_address.start, here.lp_fragment_address.numel)


def _checkpoint_in_static_order(engine: Any, attached: Attached) -> None:
    """Lets an engine save and load in static order. Refusing is no way out: not every rank writes experts, so that some ranks
    would raise while others wait."""
    calls = OptimizerCalls(engine)
    for name in ("save_checkpoint", "load_checkpoint"):
        calls.within(name, attached.unmoved)
    attached.remove_at_detach(calls)


def _seam(around: nn.Module, layer: ExpertLayer, columns: SlotColumns) -> Any:
    assert layer.router is not None
    return _AutoEpHook(around, columns) if hasattr(around, "tokens_per_expert") else RouterHook(columns, layer.router, _turn)


def _turn(output: Any, columns: SlotColumns) -> Any:
    """output: 7 parts of a TopKGate, of which the ids [k, tokens] are turned; -1 is a dropped token."""
    if not isinstance(output, tuple) or len(output) != 7:
        raise FailedPrecondition(f"router {columns.name} did not return the 7 parts of a TopKGate of DeepSpeed 0.19 ({_PAGE})")
    loss, capacity, num_experts, ids, locations, gates, counts = output
    return loss, capacity, num_experts, columns.count_and_turn(ids), locations, gates, counts


class _AutoEpHook:
    """Turns the choices of an AutoEP layer's router. The layer splits tokens by the router's counts, so that it gets them by
    slots. It also adds them to its buffer tokens_per_expert, which stays by logical expert."""

    def __init__(self, around: nn.Module, columns: SlotColumns) -> None:
        self._around, self._columns = around, columns
        self._handle = around.router.register_forward_hook(self._hook)

    def remove(self) -> None:
        self._handle.remove()

    def _hook(self, _module: nn.Module, _arguments: Any, output: Any) -> Any:
        scores, ids, counts = output
        by_slot = self._columns.in_slot_order(counts, 0)
        with torch.no_grad():
            self._around.tokens_per_expert.add_(counts - by_slot)
        return scores, self._columns.count_and_turn(ids), by_slot
