"""Placements without a daemon: DeepSeek's algorithm, bit for bit, and EPLB's own policies.

    from eplb.placement import rebalance_experts      # instead of: from eplb import rebalance_experts

Threads: safe; the library computes without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int64
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple, Union

import numpy as np

from eplb import _library, _rows
from eplb import _structs as structs
from eplb._arguments import choice, expect_fields, integer, integers, numbers, switch, text
from eplb._records import ArrayRecord, counted
from eplb.errors import InvalidArgument

_TIES = ("stable", "compat")
_HIERARCHIES = ("default", "strict", "soft", "none")
_EFFORTS = ("default", "fast", "thorough")
_OBJECTIVES = ("mean", "worst")


@dataclass(frozen=True, eq=False)
class Plan(ArrayRecord):
    """A placement, and how even it makes the load that it was made for. Integers are int64. There is no hash, as for arrays.

    physical_to_logical_map: [layers, slots], the expert in each slot; -1 in an unused slot. logical_to_physical_map: [layers,
    experts, X], -1 padded, slots of an expert, its primary first. logical_replica_count: [layers, experts].
    balancedness: float64 [layers], mean / max load of a GPU; 1 is best; nan without load. max_gpu_load: float64 [layers].
    num_gpus, num_nodes: those of the options. scenarios: float64 [loads, layers], the balancedness under each of `loads`, None
    without them. For two or more the other figures are those of their mean, in which each layer of a load has a sum of 1.
    """

    physical_to_logical_map: np.ndarray
    logical_to_physical_map: np.ndarray
    logical_replica_count: np.ndarray
    balancedness: np.ndarray
    max_gpu_load: np.ndarray
    num_gpus: Optional[int] = None
    num_nodes: int = 1
    scenarios: Optional[np.ndarray] = None

    def __repr__(self) -> str:
        layers, experts = self.logical_replica_count.shape
        slots = self.physical_to_logical_map.shape[1]
        return (f"<eplb.placement.Plan: {counted(layers, 'layer')} of {counted(experts, 'expert')} in "
                f"{counted(slots, 'slot')}, {self._balancedness_text()}>")

    def _balancedness_text(self) -> str:
        if np.isnan(self.balancedness).all():
            return "no load"
        if self.scenarios is not None:
            lowest = float(np.nanmean(self.scenarios, axis=1).min())
            return f"balancedness {lowest:.4f} under the worst of {counted(len(self.scenarios), 'load')}"
        worst = int(np.nanargmin(self.balancedness))
        return (f"balancedness {float(np.nanmean(self.balancedness)):.4f} "
                f"(worst layer {worst}: {float(self.balancedness[worst]):.4f})")


@dataclass(frozen=True, eq=False)
class PlanOptions(ArrayRecord):
    """Options of plan. docs/choosing-a-policy.md describes the policies; "auto" is refused, because it needs windows of a job.

    num_slots, num_gpus: of a layer. num_groups: of the router; it divides the experts. policy: "balanced", "incremental",
    "deepseek" or "flow". previous: placement to start from, which "incremental" needs: a Plan, or a map [layers, slots], where
    an expert's lowest slot is its primary. gpu_speeds: [num_gpus], 0: holds nothing. hierarchy: "default", "strict", "soft" or
    "none". effort: "default", "fast" or "thorough". tie_break: of "deepseek". allow_duplicates: two replicas of an expert may
    share a GPU. max_moves_per_gpu: of "incremental", per layer; -1: its own rule.
    """

    num_slots: int
    num_gpus: int
    num_nodes: int = 1
    num_groups: int = 1
    policy: str = "balanced"
    previous: Optional[Union[Plan, np.ndarray, Sequence[Sequence[int]]]] = None
    gpu_speeds: Optional[Sequence[float]] = None
    tie_break: str = "stable"
    hierarchy: str = "default"
    effort: str = "default"
    allow_duplicates: bool = False
    max_moves_per_gpu: int = -1


def rebalance_experts(weight: Any, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int,
                      tie_break: str = "compat") -> Tuple[Any, Any, Any]:
    """Returns DeepSeek's rebalance_experts bit for bit: physical_to_logical_map [layers, num_replicas], logical_to_physical_map
    [layers, experts, X], -1 padded, and expert_count [layers, experts]; int64, on the CPU; torch tensors for a tensor.

    weight: [layers, experts], a torch tensor on any device or an array; rounded to float32, as the reference does. tie_break:
        order of equal loads: "compat", as torch's sort on the CPU, or "stable", by index.
    errors: InvalidArgument for what the reference asserts, and with its place for a load that is negative, infinite or NaN.
    """
    torch_in = _rows.is_torch(weight)
    cells = _rounded(numbers("weight", weight.float() if torch_in else weight), np.float32)
    _expect_load("weight", cells, "tokens: finite in float32 and at least 0")
    options = structs.sized(structs.RebalanceOptions, num_layers=cells.shape[0], num_experts=cells.shape[1],
                            num_replicas=integer("num_replicas", num_replicas), num_groups=integer("num_groups", num_groups),
                            num_nodes=integer("num_nodes", num_nodes), num_gpus=integer("num_gpus", num_gpus),
                            tie_break=_index("tie_break", tie_break, _TIES))
    handle = ctypes.c_void_p()
    library = _library.load()
    _library.check(library.eplb_rebalance_experts(ctypes.byref(options), _pointer(cells, c_float), ctypes.byref(handle)))
    maps = _take_maps(handle)
    if torch_in:
        import torch

        return tuple(torch.from_numpy(each) for each in maps)  # type: ignore[return-value]
    return maps


def plan(load: Any = None, *, loads: Any = None, weights: Any = None, objective: str = "mean", **options: Any) -> Plan:
    """A policy's placement for a load, or one placement for several loads. options: the fields of PlanOptions.

    load: [layers, experts], tokens of each: integers are counts, floats estimates; array, torch tensor or lists.
    loads: in place of `load`, up to 64 such loads of one shape, as of prefill and decode. Each layer of a load counts as if
        scaled to the same sum. Under any mixture of these a layer is at least as balanced as under the worst of them.
        "deepseek" refuses them.
    weights: of the loads, 1e-9..1e9; default: all equal. objective: what is minimized, of largest / mean GPU load over the
        loads: the "mean", by weight, or the "worst".
    errors: InvalidArgument naming what cannot be planned.
    """
    return plan_with(load, _options(options), loads=loads, weights=weights, objective=objective)


def plan_with(load: Any, options: PlanOptions, *, loads: Any = None, weights: Any = None, objective: str = "mean") -> Plan:
    """Overload of plan with the options in one object. With loads, `load` is None."""
    chosen = _index("objective", objective, _OBJECTIVES)
    if loads is not None:
        if load is not None:
            raise InvalidArgument("load and loads are given, expected one of them")
        stacked = _stacked(loads)
        shares = np.ascontiguousarray(np.ones(len(stacked)) if weights is None else numbers("weights", weights, "iuf"), np.float64)
        _expect_shape("weights", shares, stacked.shape[:1])
        return _solve(stacked.shape[1:], options, "eplb_plan_from_scenarios", len(stacked), _pointer(stacked, c_double),
                      _pointer(shares, c_double), chosen, num_loads=len(stacked))
    if weights is not None:
        raise InvalidArgument("weights: given without loads")
    given = numbers("load", load, "iuf")
    counts = np.issubdtype(given.dtype, np.integer)
    cells = integers("load", given, "[layers, experts]") if counts else _rounded(given, np.float64)
    _expect_load("load", cells, "tokens: finite and at least 0")
    if counts:
        return _solve(cells.shape, options, "eplb_plan_from_counts", _pointer(cells, c_int64))
    return _solve(cells.shape, options, "eplb_plan_from_estimates", _pointer(cells, c_double))


def _stacked(loads: Any) -> np.ndarray:
    """float64 [loads, layers, experts], contiguous. errors: InvalidArgument naming the load by its index."""
    try:
        given = list(loads)
    except TypeError:
        raise InvalidArgument(f"loads: {type(loads).__name__}, expected loads [layers, experts]") from None
    cells = [_rounded(numbers(f"loads[{index}]", each, "iuf"), np.float64) for index, each in enumerate(given)]
    for index, each in enumerate(cells):
        _expect_load(f"loads[{index}]", each, "tokens: finite and at least 0")
        _expect_shape(f"loads[{index}]", each, cells[0].shape)
    if not cells:
        raise InvalidArgument("loads: none, expected 1..64")
    return np.stack(cells)


def _solve(shape: Tuple[int, ...], options: PlanOptions, function: str, *given: Any, num_loads: int = 0) -> Plan:
    """Calls a function of the library that plans, with `given` between its options and its result. num_loads: number of
    scenarios, for their figures."""
    library = _library.load()
    struct = structs.PlanOptions()
    _library.check(library.eplb_plan_options_init(ctypes.byref(struct), ctypes.sizeof(struct)))
    struct.num_layers, struct.num_experts = shape
    kept = _fill(struct, options)
    handle = ctypes.c_void_p()
    _library.check(getattr(library, function)(ctypes.byref(struct), *given, ctypes.byref(handle)))
    del kept  # the arrays that the struct points to
    scenarios = np.empty((num_loads, shape[0])) if num_loads else None
    try:
        figures = np.empty((2, shape[0]))
        _library.check(library.eplb_plan_copy_figures(handle, _pointer(figures[0], c_double),
                                                      _pointer(figures[1], c_double)))
        if scenarios is not None:
            _library.check(library.eplb_plan_copy_scenario_figures(handle, _pointer(scenarios, c_double)))
    except Exception:
        library.eplb_plan_destroy(handle)
        raise
    return Plan(*_take_maps(handle), balancedness=figures[0], max_gpu_load=figures[1], num_gpus=struct.num_gpus,
                num_nodes=struct.num_nodes, scenarios=scenarios)


def _rounded(given: np.ndarray, kind: Any) -> np.ndarray:
    """Contiguous; what is above the range of `kind` is infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(given, dtype=kind)


def _expect_load(name: str, cells: np.ndarray, expected: str) -> None:
    """errors: InvalidArgument for what is not [layers, experts], and with the place of a load that is negative, infinite or
    NaN."""
    if cells.ndim != 2:
        raise InvalidArgument(f"{name} has shape {list(cells.shape)}, expected [layers, experts]")
    wrong = np.argwhere(~((cells >= 0) & np.isfinite(cells)))  # NaN fails both
    if wrong.size:
        layer, expert = wrong[0]
        raise InvalidArgument(f"{name}: layer {layer} expert {expert} is {cells[layer, expert]}, expected {expected}")


def _options(given: Any) -> PlanOptions:
    expect_fields(given, PlanOptions)
    for name in ("num_slots", "num_gpus"):
        if name not in given:
            raise InvalidArgument(f"option {name}: missing")
    return PlanOptions(**given)


def _fill(struct: structs.PlanOptions, options: PlanOptions) -> Tuple[np.ndarray, ...]:
    """returns: the arrays that the struct points to."""
    struct.policy = text("policy", options.policy)
    for name in ("num_slots", "num_gpus", "num_nodes", "num_groups", "max_moves_per_gpu"):
        setattr(struct, name, integer(name, getattr(options, name)))
    struct.tie_break = _index("tie_break", options.tie_break, _TIES)
    struct.hierarchy = _index("hierarchy", options.hierarchy, _HIERARCHIES)
    struct.effort = _index("effort", options.effort, _EFFORTS)
    struct.allow_duplicates = switch("allow_duplicates", options.allow_duplicates)
    kept: Tuple[np.ndarray, ...] = ()
    layers, experts = struct.num_layers, struct.num_experts
    if options.gpu_speeds is not None:
        speeds = np.ascontiguousarray(numbers("gpu_speeds", options.gpu_speeds), dtype=np.float64)
        _expect_shape("gpu_speeds", speeds, (struct.num_gpus,))
        struct.gpu_speeds, kept = speeds.ctypes.data, kept + (speeds,)
    if options.previous is not None:
        whole = options.previous if isinstance(options.previous, Plan) else None
        slots = integers("previous", options.previous if whole is None else whole.physical_to_logical_map, "[layers, slots]")
        _expect_shape("previous", slots, (layers, struct.num_slots))
        struct.previous, kept = slots.ctypes.data, kept + (slots,)
        if whole is not None:
            replicas = integers("previous.logical_to_physical_map", whole.logical_to_physical_map, "[layers, experts, X]")
            _expect_shape("previous.logical_to_physical_map", replicas, (layers, experts, replicas.shape[-1]))
            struct.previous_replicas, struct.previous_max_replicas = replicas.ctypes.data, replicas.shape[-1]
            kept += (replicas,)
    return kept


def _take_maps(handle: ctypes.c_void_p) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Copies the maps out of a plan, and destroys it."""
    library = _library.load()
    try:
        sizes = structs.sized(structs.PlanSizes)
        _library.check(library.eplb_plan_get_sizes(handle, ctypes.byref(sizes)))
        slots = np.empty((sizes.num_layers, sizes.num_slots), np.int64)
        replicas = np.empty((sizes.num_layers, sizes.num_experts, sizes.max_replicas), np.int64)
        counts = np.empty((sizes.num_layers, sizes.num_experts), np.int64)
        _library.check(library.eplb_plan_copy_maps(handle, *(_pointer(each, c_int64) for each in (slots, replicas, counts))))
        return slots, replicas, counts
    finally:
        library.eplb_plan_destroy(handle)


def _pointer(array: np.ndarray, kind: Any) -> Any:
    return array.ctypes.data_as(POINTER(kind))


def _index(name: str, value: Any, choices: Sequence[str]) -> int:
    return choices.index(choice(name, value, choices))


def _expect_shape(name: str, array: np.ndarray, shape: Tuple[int, ...]) -> None:
    if array.shape != shape:
        raise InvalidArgument(f"{name} has shape {list(array.shape)}, expected {list(shape)}")
