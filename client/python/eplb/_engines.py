"""Converts requests of serving engines to placements, and placements to the tensors that the engines expect."""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass, replace
from typing import Any, Dict, Optional, Tuple

import numpy as np

from eplb import _rows, placement
from eplb import profiles as profile_files
from eplb._arguments import choice, integer, integers, numbers
from eplb.errors import InvalidArgument

POLICIES = ("balanced", "incremental", "deepseek")
EFFORTS = ("default", "fast", "thorough")


@dataclass(frozen=True)
class Request:
    """A request of an engine, under EPLB's names.

    num_slots: physical experts of a layer. hierarchical: each expert group stays on one node, as DeepSeek's hierarchical
    algorithm has it; num_groups and num_nodes count only then. incumbent: [layers, slots], what runs, or None.
    """

    num_slots: int
    num_gpus: int
    num_groups: int
    num_nodes: int
    hierarchical: bool
    incumbent: Any = None


@dataclass(frozen=True)
class Settings:
    """How to plan. profiles: loads to plan for beside the one that the engine measured. max_moves_per_gpu: experts that a GPU
    receives from others in a layer, -1: as many as the policy finds useful."""

    policy: str
    effort: str
    profiles: Optional[profile_files.Profiles] = None
    max_moves_per_gpu: int = -1


def checked(policy: Any = None, effort: Any = None, profiles: Any = None, max_moves_per_gpu: Any = None) -> Settings:
    """Returns the settings, with defaults for None.

    profiles: path of a file; default: EPLB_PROFILES of the environment. errors: InvalidArgument for a policy or an effort that
    there is not, and for a limit of moves without policy "incremental". Also for profiles that cannot be read or that the
    policy cannot plan for.
    """
    policy = "incremental" if policy is None else policy
    settings = Settings(choice("policy", policy, POLICIES), choice("effort", "default" if effort is None else effort, EFFORTS),
                        max_moves_per_gpu=-1 if max_moves_per_gpu is None else integer("max_moves_per_gpu", max_moves_per_gpu))
    if settings.max_moves_per_gpu < -1 or (settings.max_moves_per_gpu >= 0 and policy != "incremental"):
        raise InvalidArgument(f"max_moves_per_gpu is {settings.max_moves_per_gpu}, expected -1, or at least 0 with policy "
                              f"incremental")
    path = profiles or os.environ.get("EPLB_PROFILES")
    if not path:
        return settings
    if policy == "deepseek":
        raise InvalidArgument(f"{path}: policy deepseek plans for one load; use incremental or balanced with profiles")
    return replace(settings, profiles=profile_files.read(path))


def counts_from(name: str, load: Any) -> np.ndarray:
    """int64 or float64 [layers, experts] of a torch tensor, an array or lists. errors: InvalidArgument naming `name`."""
    if _rows.is_torch(load) and load.is_floating_point():
        load = load.double()  # numpy has no bfloat16
    cells = numbers(name, load, "iuf")
    return integers(name, cells, "[layers, experts]") if cells.dtype.kind in "iu" else cells.astype(np.float64)


def plan_for(name: str, load: np.ndarray, request: Request, settings: Settings) -> np.ndarray:
    """Returns a placement [layers, slots] that obeys the constraints of the engine's own algorithm. Without profiles it is on
    each layer at most as uneven as DeepSeek's.

    name: of the load, for messages. load: [layers, experts]. settings: policy "incremental" without an incumbent is "balanced";
        profiles of another shape than the load are logged once and not used.
    errors: InvalidArgument with one line. cost: as eplb.placement.plan with allow_duplicates, which DeepSeek's algorithm
        uses too. Equal input gives an equal placement in every process.
    """
    expect_load(name, load, request)
    groups, nodes = (request.num_groups, request.num_nodes) if request.hierarchical else (1, 1)
    if settings.policy == "deepseek":
        return placement.rebalance_experts(load, request.num_slots, groups, nodes, request.num_gpus)[0]
    incumbent = _usable(request.incumbent, load.shape, request.num_slots)
    policy = "balanced" if incumbent is None else settings.policy
    return placement.plan(**_loads(name, load, settings.profiles), num_slots=request.num_slots, num_gpus=request.num_gpus,
                          num_nodes=nodes, num_groups=groups, hierarchy="strict" if request.hierarchical else "none",
                          policy=policy, effort=settings.effort, previous=incumbent,
                          max_moves_per_gpu=-1 if incumbent is None else settings.max_moves_per_gpu,
                          allow_duplicates=True).physical_to_logical_map


def expect_load(name: str, load: np.ndarray, request: Request) -> None:
    """errors: InvalidArgument for a load or a number of slots that no policy can plan for."""
    if load.ndim != 2 or 0 in load.shape:
        raise InvalidArgument(f"{name} has shape {list(load.shape)}, expected [layers, experts]")
    wrong = np.argwhere(~((load >= 0) & np.isfinite(load)))  # NaN fails both
    if wrong.size:
        layer, expert = wrong[0]
        raise InvalidArgument(f"{name}: layer {layer} expert {expert} is {load[layer, expert]}, expected tokens: finite and "
                              f"at least 0")
    if request.num_gpus < 1 or request.num_slots % request.num_gpus:
        raise InvalidArgument(f"{request.num_slots} physical experts on {request.num_gpus} ranks: expected as many on every "
                              f"rank")


def useful_plan(name: str, load: np.ndarray, request: Request, settings: Settings) -> Optional[np.ndarray]:
    """Returns plan_for, with the incumbent's layer where the plan does not lower the largest GPU load: the mean over the
    profiles and the measured load, if there are profiles. None if no layer is left. If expert groups must stay on a node, which
    those of an incumbent may not, only layers without tokens keep it. request.incumbent: complete, or None."""
    slots = plan_for(name, load, request, settings)
    if request.incumbent is None:
        return slots
    given = _loads(name, load, settings.profiles)
    loads, weights = np.array(given.get("loads", [load]), np.float64), np.array(given.get("weights", [1.0]))
    before, after = (_unevenness(each, loads, weights, request.num_gpus) for each in (request.incumbent, slots))
    useful = before > 0 if request.hierarchical and request.num_nodes > 1 else after < before * (1 - 1e-9)
    moves = useful & (slots != request.incumbent).any(axis=1)
    return np.where(moves[:, None], slots, request.incumbent) if moves.any() else None


def _unevenness(slots: np.ndarray, loads: np.ndarray, weights: np.ndarray, num_gpus: int) -> np.ndarray:
    """Returns [layers], the weighted sum over loads [loads, layers, experts] of a layer's largest GPU load / its load."""
    tokens = np.take_along_axis(loads / _replica_counts(slots, loads.shape[2]), slots[None], axis=2)
    peaks = tokens.reshape(*tokens.shape[:2], num_gpus, -1).sum(axis=3).max(axis=2)
    return weights @ (peaks / np.maximum(loads.sum(axis=2), np.finfo(float).tiny))


def _replica_counts(slots: np.ndarray, experts: int) -> np.ndarray:
    """Returns [layers, experts]."""
    counts = np.zeros((slots.shape[0], experts), np.int64)
    np.add.at(counts, (np.arange(slots.shape[0])[:, None], slots), 1)
    return counts


def _loads(name: str, load: np.ndarray, profiles: Optional[profile_files.Profiles]) -> Dict[str, Any]:
    """Returns arguments of placement.plan: the measured load, or the profiles with it."""
    if profiles is not None and profiles.loads.shape[1:] != load.shape:
        _warn_once(f"{profiles.source} is not used: its loads have shape {list(profiles.loads.shape[1:])}, {name} has "
                   f"{list(load.shape)}")
        profiles = None
    if profiles is None:
        return {"load": load}
    if profiles.measured_weight == 0 or not load.any():
        return {"loads": profiles.loads, "weights": profiles.weights}
    return {"loads": [*profiles.loads, load], "weights": [*profiles.weights, profiles.measured_weight]}


def tensors_of(slots: np.ndarray, device: Any) -> Tuple[Any, Any, Any]:
    """Returns the maps of a complete placement [layers, slots] as int64 torch tensors on a device: physical_to_logical_map
    [layers, slots], logical_to_physical_map [layers, experts, X], -1 padded, and logical_replica_count [layers, experts]."""
    import torch

    rows = np.arange(slots.shape[0])[:, None]
    counts = _replica_counts(slots, slots.max() + 1)
    by_expert = np.argsort(slots, axis=1, kind="stable")
    experts = np.take_along_axis(slots, by_expert, axis=1)
    ordinals = np.arange(slots.shape[1]) - (np.cumsum(counts, axis=1) - counts)[rows, experts]
    replicas = np.full((*counts.shape, counts.max()), -1, np.int64)
    replicas[rows, experts, ordinals] = by_expert
    return tuple(torch.from_numpy(each).to(device) for each in (slots, replicas, counts))  # type: ignore[return-value]


def device_of(load: Any) -> Any:
    return load.device if _rows.is_torch(load) else "cpu"


def slots_of(incumbent: Any) -> np.ndarray:
    """Returns an incumbent as int64 [layers, slots]. errors: InvalidArgument for other things than integers."""
    return integers("incumbent placement", incumbent, "[layers, physical experts]")


def is_complete(slots: np.ndarray, shape: Tuple[int, ...], num_slots: int) -> bool:
    """Returns True for [layers, num_slots] with one expert of `shape`, (layers, experts), in each slot, and every expert."""
    usable = _usable(slots, shape, num_slots)
    return usable is not None and usable.min() >= 0


def counts_of_request(**given: Any) -> Tuple[int, ...]:
    """Integers by their names in the engine. errors: InvalidArgument naming one that is none, or below 1."""
    found = {name: integer(name, value) for name, value in given.items()}
    for name, value in found.items():
        if value < 1:
            raise InvalidArgument(f"{name} is {value}, expected at least 1")
    return tuple(found.values())


@functools.lru_cache(maxsize=64)
def _warn_once(message: str) -> None:
    logging.getLogger("eplb").warning("%s", message)


def _usable(incumbent: Any, shape: Tuple[int, ...], num_slots: int) -> Optional[np.ndarray]:
    """The incumbent placement, or None where it cannot be followed: of another size, as while an engine grows or shrinks, or
    with an expert that is nowhere."""
    if incumbent is None:
        return None
    slots = slots_of(incumbent)
    layers, experts = shape
    if slots.shape != (layers, num_slots) or slots.max() >= experts or slots.min() < -1:
        return None
    held = np.zeros((layers, experts + 1), bool)
    np.put_along_axis(held, slots, True, axis=1)  # -1 marks the last column
    return slots if held[:, :experts].all() else None
