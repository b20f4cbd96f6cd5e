"""What the hooks of serving engines share: an engine's request becomes a plan, and the plan the tensors that it expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import numpy as np

from eplb import _rows, placement
from eplb._arguments import choice, integer, integers, numbers
from eplb.errors import InvalidArgument

POLICIES = ("balanced", "incremental", "deepseek")
EFFORTS = ("default", "fast", "thorough")


@dataclass(frozen=True)
class Request:
    """What an engine asks for, under EPLB's names.

    num_slots: physical experts of a layer. hierarchical: each expert group stays on one node, as DeepSeek's hierarchical
    algorithm has it; num_groups and num_nodes count only then. incumbent: [layers, slots], what runs, or None.
    """

    num_slots: int
    num_gpus: int
    num_groups: int
    num_nodes: int
    hierarchical: bool
    incumbent: Any = None


def checked(policy: Any, effort: Any) -> Tuple[str, str]:
    """errors: InvalidArgument for a policy or an effort that there is not."""
    return choice("policy", policy, POLICIES), choice("effort", effort, EFFORTS)


def counts_from(name: str, load: Any) -> np.ndarray:
    """int64 or float64 [layers, experts] of a torch tensor, an array or lists. errors: InvalidArgument naming `name`."""
    if _rows.is_torch(load) and load.is_floating_point():
        load = load.double()  # numpy has no bfloat16
    cells = numbers(name, load, "iuf")
    return integers(name, cells, "[layers, experts]") if cells.dtype.kind in "iu" else cells.astype(np.float64)


def plan_for(name: str, load: np.ndarray, request: Request, policy: str, effort: str) -> placement.Plan:
    """A plan that obeys the constraints of the engine's own algorithm, on each layer at most as uneven as DeepSeek's.

    name: of the load, for messages. load: [layers, experts].
    errors: InvalidArgument with one line. cost: as eplb.placement.plan with allow_duplicates, which DeepSeek's algorithm
        uses too. Equal input gives an equal plan in every process.
    """
    if load.ndim != 2 or 0 in load.shape:
        raise InvalidArgument(f"{name} has shape {list(load.shape)}, expected [layers, experts]")
    wrong = np.argwhere(~((load >= 0) & np.isfinite(load)))  # of NaN neither holds
    if wrong.size:
        layer, expert = wrong[0]
        raise InvalidArgument(f"{name}: layer {layer} expert {expert} is {load[layer, expert]}, expected tokens: finite and "
                              f"at least 0")
    if request.num_gpus < 1 or request.num_slots % request.num_gpus:
        raise InvalidArgument(f"{request.num_slots} physical experts on {request.num_gpus} ranks: expected as many on every "
                              f"rank")
    if policy == "deepseek":
        return _deepseek(load, request)
    incumbent = _usable(request.incumbent, load.shape, request.num_slots)
    if policy == "incremental" and incumbent is None:
        policy = "balanced"
    return placement.plan(load, num_slots=request.num_slots, num_gpus=request.num_gpus,
                          num_nodes=request.num_nodes if request.hierarchical else 1,
                          num_groups=request.num_groups if request.hierarchical else 1,
                          hierarchy="strict" if request.hierarchical else "none", policy=policy, effort=effort,
                          previous=incumbent, allow_duplicates=True)


def tensors_of(plan: placement.Plan, device: Any) -> Tuple[Any, Any, Any]:
    """The plan's maps as int64 torch tensors on a device: physical_to_logical_map [layers, slots], logical_to_physical_map
    [layers, experts, X], -1 padded, and logical_replica_count [layers, experts]."""
    import torch

    maps = (plan.physical_to_logical_map, plan.logical_to_physical_map, plan.logical_replica_count)
    return tuple(torch.from_numpy(each).to(device) for each in maps)  # type: ignore[return-value]


def device_of(load: Any) -> Any:
    return load.device if _rows.is_torch(load) else "cpu"


def counts_of_request(**given: Any) -> Tuple[int, ...]:
    """Integers by their names in the engine. errors: InvalidArgument naming one that is none, or below 1."""
    found = {name: integer(name, value) for name, value in given.items()}
    for name, value in found.items():
        if value < 1:
            raise InvalidArgument(f"{name} is {value}, expected at least 1")
    return tuple(found.values())


def _deepseek(load: np.ndarray, request: Request) -> placement.Plan:
    groups, nodes = (request.num_groups, request.num_nodes) if request.hierarchical else (1, 1)
    maps = placement.rebalance_experts(load, request.num_slots, groups, nodes, request.num_gpus)
    slots, _, counts = maps
    shares = np.take_along_axis(load / counts, slots, axis=1).reshape(load.shape[0], request.num_gpus, -1).sum(axis=2)
    peak = shares.max(axis=1)
    return placement.Plan(*maps, balancedness=np.where(peak > 0, shares.mean(axis=1) / np.where(peak > 0, peak, 1), np.nan),
                          max_gpu_load=peak, num_gpus=request.num_gpus, num_nodes=nodes)


def _usable(incumbent: Any, shape: Tuple[int, ...], num_slots: int) -> Optional[np.ndarray]:
    """The incumbent placement, or None where it cannot be followed: of another size, as while an engine grows or shrinks, or
    with an expert that is nowhere."""
    if incumbent is None:
        return None
    slots = integers("incumbent placement", incumbent, "[layers, physical experts]")
    layers, experts = shape
    if slots.shape != (layers, num_slots) or slots.max() >= experts or slots.min() < -1:
        return None
    held = np.zeros((layers, experts + 1), bool)
    np.put_along_axis(held, slots, True, axis=1)  # of -1 the last column
    return slots if held[:, :experts].all() else None
