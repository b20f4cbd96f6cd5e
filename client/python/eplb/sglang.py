"""EPLB's placements inside SGLang: its hook for the algorithm, without a daemon.

    import eplb.sglang
    eplb.sglang.register()        # in every process of SGLang: docs/serving-engines.md

SGLang counts, decides when to rebalance, and moves the weights; only the placement is EPLB's. Nothing of SGLang is imported
before register. Threads: safe; the library computes without the interpreter's lock.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Optional, Tuple

from eplb import _engines
from eplb._rows import is_torch
from eplb.errors import FailedPrecondition, InvalidArgument

# Newer first: the package moved.
_ALGORITHMS = ("sglang.srt.eplb.eplb_algorithms", "sglang.srt.managers.eplb_algorithms")
# Asks which ranks are alive, which the hook does not get.
_THEIRS = "elasticity_aware"

Hook = Callable[..., Tuple[Any, Any, Any]]


def rebalance_experts(tokens_per_expert: Any, num_physical_experts: int, num_local_physical_experts: int,
                      num_groups: Optional[int], num_nodes: int, algorithm: Any) -> Tuple[Any, Any, Any]:
    """A placement for a load: as SGLang's function of this name, with the policy "balanced".

    tokens_per_expert: [steps, layers, logical experts] or [layers, logical experts], tokens of each, a torch tensor on any
        device; steps are summed up. num_physical_experts: of a layer. num_local_physical_experts: of a rank.
    num_groups: of the router, or None. algorithm: SGLang's EplbAlgorithm or its name: with one that ends in "hierarchical"
        each expert group stays on one node, and num_nodes must divide num_groups.
    returns: physical_to_logical_map [layers, num_physical_experts], logical_to_physical_map [layers, logical experts, X], -1
        padded, and logical_replica_count [layers, logical experts], int64, on the device of tokens_per_expert.
    errors: eplb.InvalidArgument with one line. cost: 0.7 s for 58 layers of 256 experts on 288 slots.
    """
    return _rebalance(tokens_per_expert, num_physical_experts, num_local_physical_experts, num_groups, num_nodes, algorithm)


def make_hook(policy: str = "balanced", effort: str = "default", incumbent: Optional[Callable[[], Any]] = None) -> Hook:
    """rebalance_experts with these settings.

    policy: "balanced", "incremental" or "deepseek". effort: "default", "fast" or "thorough". incumbent: gives the placement
        that runs, [layers, num_physical_experts], or None; SGLang's hook does not pass it, "incremental" needs it.
    errors: InvalidArgument naming a setting.
    """
    policy, effort = _engines.checked(policy, effort)
    if policy == "incremental" and incumbent is None:
        raise InvalidArgument("policy incremental needs `incumbent`, which gives the placement to start from")

    def hook(tokens_per_expert: Any, num_physical_experts: int, num_local_physical_experts: int, num_groups: Optional[int],
             num_nodes: int, algorithm: Any) -> Tuple[Any, Any, Any]:
        return _rebalance(tokens_per_expert, num_physical_experts, num_local_physical_experts, num_groups, num_nodes,
                          algorithm, policy, effort, None if incumbent is None else incumbent())

    return hook


def register(policy: str = "balanced", effort: str = "default", incumbent: Optional[Callable[[], Any]] = None) -> Hook:
    """Puts the hook in the place of SGLang's function, in this process; again does no harm. Settings: of make_hook.

    SGLang's elasticity_aware stays SGLang's: it asks which ranks are alive. returns: the function that is there now.
    errors: FailedPrecondition where no SGLang with a load balancer can be imported.
    """
    algorithms = _algorithms()
    own = getattr(algorithms.rebalance_experts, "_eplb_own", algorithms.rebalance_experts)
    chosen = make_hook(policy, effort, incumbent)

    def hook(tokens_per_expert: Any, num_physical_experts: int, num_local_physical_experts: int, num_groups: Optional[int],
             num_nodes: int, algorithm: Any) -> Tuple[Any, Any, Any]:
        function = own if _name_of(algorithm) == _THEIRS else chosen
        return function(tokens_per_expert=tokens_per_expert, num_physical_experts=num_physical_experts,
                        num_local_physical_experts=num_local_physical_experts, num_groups=num_groups, num_nodes=num_nodes,
                        algorithm=algorithm)

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


def _rebalance(tokens_per_expert: Any, num_physical_experts: Any, num_local_physical_experts: Any, num_groups: Any,
               num_nodes: Any, algorithm: Any, policy: str = "balanced", effort: str = "default",
               incumbent: Any = None) -> Tuple[Any, Any, Any]:
    slots, local, nodes, groups = _engines.counts_of_request(
        num_physical_experts=num_physical_experts, num_local_physical_experts=num_local_physical_experts, num_nodes=num_nodes,
        num_groups=1 if num_groups is None else num_groups)
    if slots % local:
        raise InvalidArgument(f"num_local_physical_experts is {local}, expected a divisor of the {slots} physical experts")
    hierarchical = _name_of(algorithm).endswith("hierarchical")
    if hierarchical and groups % nodes:
        raise InvalidArgument(f"algorithm {_name_of(algorithm)}: {nodes} nodes do not divide the {groups} expert groups")
    load = _engines.counts_from("tokens_per_expert", tokens_per_expert)
    if load.ndim == 3:
        load = load.sum(axis=0)
    request = _engines.Request(slots, slots // local, groups, nodes, hierarchical, incumbent)
    plan = _engines.plan_for("tokens_per_expert", load, request, policy, effort)
    return _engines.tensors_of(plan, _engines.device_of(tokens_per_expert))


def _name_of(algorithm: Any) -> str:
    """Of an enumeration's member, or a name. errors: InvalidArgument for another thing."""
    name = getattr(algorithm, "name", algorithm)
    if not isinstance(name, str):
        shown = type(algorithm).__name__ if is_torch(algorithm) else repr(algorithm)
        raise InvalidArgument(f"algorithm: {shown}, expected a member of EplbAlgorithm")
    return name
