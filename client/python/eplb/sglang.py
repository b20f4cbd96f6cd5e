"""EPLB's placements inside SGLang: its hook for the algorithm, which asks a daemon or plans by itself.

    import eplb.sglang
    eplb.sglang.register()        # in every process of SGLang: docs/serving-engines.md

SGLang counts, decides when to rebalance, and moves the weights; only the placement is EPLB's. Nothing of SGLang is imported
before register. Threads: safe; the library computes without the interpreter's lock.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

from eplb import _engines
from eplb._guard import Engine, Guard
from eplb._planning import daemon_of
from eplb._rows import is_torch
from eplb.errors import FailedPrecondition, InvalidArgument

# Newer first: the package moved.
_ALGORITHMS = ("sglang.srt.eplb.eplb_algorithms", "sglang.srt.managers.eplb_algorithms")
_KNOWN = (("tokens_per_expert", "num_physical_experts", "num_local_physical_experts", "num_groups", "num_nodes", "algorithm"),)
# These algorithms avoid dead ranks, which the hook is not told of.
_THEIRS = "elasticity"

Hook = Callable[..., Tuple[Any, Any, Any]]


def rebalance_experts(tokens_per_expert: Any, num_physical_experts: int, num_local_physical_experts: int,
                      num_groups: Optional[int], num_nodes: int, algorithm: Any) -> Tuple[Any, Any, Any]:
    """Returns a placement for a load, with the signature of SGLang's function: physical_to_logical_map [layers,
    num_physical_experts], logical_to_physical_map [layers, logical experts, X], -1 padded, and logical_replica_count [layers,
    logical experts], int64, on the device of tokens_per_expert. It plans in its own process, from no incumbent, and raises.

    tokens_per_expert: [steps, layers, logical experts], summed over steps, or [layers, logical experts], a torch tensor on any
        device. num_local_physical_experts: of a rank. num_groups: of the router; None and 0 mean one. algorithm: SGLang's
        EplbAlgorithm or its name; one that ends in "hierarchical" keeps each expert group on one node.
    errors: eplb.InvalidArgument with one line. cost: 0.7 s for 58 layers of 256 experts on 288 slots.
    """
    return make_hook()(tokens_per_expert, num_physical_experts, num_local_physical_experts, num_groups, num_nodes, algorithm)


def make_hook(policy: str = "incremental", effort: str = "default", incumbent: Optional[Callable[[], Any]] = None,
              profiles: Any = None, max_moves_per_gpu: int = -1) -> Hook:
    """Returns rebalance_experts with these settings. It plans in its own process and raises.

    policy: "incremental", "balanced" or "deepseek". effort: "default", "fast" or "thorough". incumbent: returns the current
        placement, [layers, num_physical_experts], or None; without one "incremental" is "balanced". profiles: path of a file of
        eplb.profiles, whose loads the placement serves as well; default: EPLB_PROFILES of the environment. max_moves_per_gpu:
        experts that a GPU receives from others in a layer at most, with "incremental" and an incumbent; -1: no limit.
    errors: InvalidArgument, also for such a file.
    """
    settings = _engines.checked(policy, effort, profiles, max_moves_per_gpu)

    def hook(tokens_per_expert: Any, num_physical_experts: int, num_local_physical_experts: int, num_groups: Optional[int],
             num_nodes: int, algorithm: Any) -> Tuple[Any, Any, Any]:
        load, request = _request(tokens_per_expert, num_physical_experts, num_local_physical_experts, num_groups, num_nodes,
                                 algorithm, None if incumbent is None else incumbent())
        slots = _engines.plan_for("tokens_per_expert", load, request, settings)
        return _engines.tensors_of(slots, _engines.device_of(tokens_per_expert))

    return hook


def register(policy: Optional[str] = None, effort: Optional[str] = None, incumbent: Optional[Callable[[], Any]] = None,
             timeout: float = 20.0, profiles: Any = None, max_moves_per_gpu: Optional[int] = None, endpoint: Optional[str] = None,
             job: Optional[str] = None, expert_bytes: int = 0) -> Hook:
    """Puts EPLB's hook in the place of SGLang's function, in this process. Every process must call it; a second call has no
    effect.

    The hook never raises: rank 0 of the default process group plans, and all ranks use its plan or all keep the current
    placement. If a process has not called register, all ranks use SGLang's own function. So do SGLang's elasticity_aware
    algorithms, which avoid dead ranks (docs/serving-engines.md).

    policy, effort, profiles, max_moves_per_gpu: of make_hook, with its defaults. incumbent: returns the current placement; default: SGLang's
    global metadata. timeout: seconds that ranks wait for each other in one step of an agreement; a request takes at most 8 of them.
    endpoint, job, expert_bytes: of eplb.vllm.register. All pipeline stages are one job.
    returns: the function in place. errors: FailedPrecondition if no SGLang with a load balancer can be imported;
    Unimplemented for a function with other parameters; InvalidArgument for a setting.
    """
    daemon = daemon_of("SGLang", endpoint, job, expert_bytes, policy=policy, effort=effort, profiles=profiles,
                       max_moves_per_gpu=max_moves_per_gpu)
    settings, algorithms = _engines.checked(policy, effort, profiles, max_moves_per_gpu), _algorithms()
    own = getattr(algorithms.rebalance_experts, "_eplb_own", algorithms.rebalance_experts)
    location = algorithms.__name__.rpartition(".")[0] + ".expert_location"
    guard = Guard(Engine("SGLang", "0.5.23", own, _KNOWN, _request,
                         lambda _: (incumbent or (lambda: _current(location)))(), _answer, _group), settings, timeout, daemon)

    def hook(*given: Any, **named: Any) -> Tuple[Any, Any, Any]:
        algorithm = named.get("algorithm", given[-1] if given else None)
        function = own if str(getattr(algorithm, "name", algorithm)).startswith(_THEIRS) else guard
        return function(*given, **named)

    hook._eplb_own = own  # type: ignore[attr-defined]
    algorithms.rebalance_experts = hook
    return hook


def _algorithms() -> Any:
    missing = None
    for name in _ALGORITHMS:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if missing is None:
                missing = error
            if error.name is None or not name.startswith(error.name):
                break
    raise FailedPrecondition(f"no SGLang with a load balancer here: {missing}")


def _request(tokens_per_expert: Any, num_physical_experts: Any, num_local_physical_experts: Any, num_groups: Any,
             num_nodes: Any, algorithm: Any, incumbent: Any = None) -> Tuple[np.ndarray, _engines.Request]:
    slots, local, nodes, groups = _engines.counts_of_request(
        num_physical_experts=num_physical_experts, num_local_physical_experts=num_local_physical_experts, num_nodes=num_nodes,
        num_groups=num_groups or 1)
    if slots % local:
        raise InvalidArgument(f"num_local_physical_experts is {local}, expected a divisor of the {slots} physical experts")
    hierarchical = _name_of(algorithm).endswith("hierarchical")
    if hierarchical and groups % nodes:
        raise InvalidArgument(f"algorithm {_name_of(algorithm)}: {nodes} nodes do not divide the {groups} expert groups")
    load = _engines.counts_from("tokens_per_expert", tokens_per_expert)
    return (load.sum(axis=0) if load.ndim == 3 else load,
            _engines.Request(slots, slots // local, groups, nodes, hierarchical, incumbent))


def _answer(slots: np.ndarray, arguments: Dict[str, Any]) -> Tuple[Any, Any, Any]:
    return _engines.tensors_of(slots, _engines.device_of(arguments.get("tokens_per_expert")))


def _current(location: str) -> Any:
    """Returns the placement in SGLang's global metadata, None before there is one."""
    metadata = importlib.import_module(location).get_global_expert_location_metadata()
    return None if metadata is None else metadata.physical_to_logical_map_cpu


def _group() -> Any:
    """Returns the default process group. None without torch.distributed, and after a scale-up: SGLang then asks rank 0 alone,
    and broadcasts its answer."""
    import torch.distributed as dist

    elastic = sys.modules.get("sglang.srt.elastic_ep.elastic_ep")
    state = None if elastic is None else elastic.ElasticEPStateManager.instance()
    if getattr(state, "has_scaled", False) or not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.group.WORLD


def _name_of(algorithm: Any) -> str:
    """Returns the name of an enumeration's member, or a name itself. errors: InvalidArgument for another type."""
    name = getattr(algorithm, "name", algorithm)
    if not isinstance(name, str):
        shown = type(algorithm).__name__ if is_torch(algorithm) else repr(algorithm)
        raise InvalidArgument(f"algorithm: {shown}, expected a member of EplbAlgorithm")
    return name
