"""EPLB's placements inside vLLM: a policy for its expert-parallel load balancer, without a daemon.

    import eplb.vllm
    eplb.vllm.register()          # in every process of vLLM: docs/serving-engines.md

vLLM counts, decides when to rearrange, and moves the weights; only the placement is EPLB's. Nothing of vLLM is imported
before register. Threads: safe; the library computes without the interpreter's lock.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Optional, Tuple, Type, Union

from eplb import _engines
from eplb._arguments import choice
from eplb.errors import FailedPrecondition, Unimplemented

_RETURNS = ("maps", "map")
_STATE = "vllm.distributed.eplb.eplb_state"
_ALGORITHM = "vllm.distributed.eplb.rebalance_algo"
_POLICIES = "vllm.distributed.eplb.policy"


class EplbPolicy:
    """What vLLM's AbstractEplbPolicy asks for; vLLM uses the class, not an object of it.

    policy: "balanced", the best placement that a bounded search finds, aligned to the incumbent; "incremental", few moves
        from the incumbent, and "balanced" where vLLM passes none; "deepseek", the reference, bit for bit.
    effort: "default", "fast" or "thorough", of "balanced". returns: "maps" or "map", what rebalance_experts gives.
    """

    policy: str = "balanced"
    effort: str = "default"
    returns: str = "maps"

    @classmethod
    def rebalance_experts(cls, weight: Any, num_replicas: int, num_groups: int, num_nodes: int, num_ranks: int,
                          old_global_expert_indices: Any = None) -> Union[Any, Tuple[Any, Any, Any]]:
        """A placement for a load.

        weight: [layers, logical experts], tokens of each, a torch tensor on any device. num_replicas: physical experts of a
            layer, a multiple of num_ranks. num_groups: of the router. num_nodes: where it divides num_groups, each expert
            group stays on one node. old_global_expert_indices: [layers, num_replicas], the incumbent, or None; one of
            another size is left aside.
        returns: with returns = "maps": physical_to_logical_map [layers, num_replicas], logical_to_physical_map [layers,
            logical experts, X], -1 padded, and logical_replica_count [layers, logical experts], int64, on the weight's
            device. With "map" the first of them, on the CPU.
        errors: eplb.InvalidArgument with one line. cost: 0.7 s for 58 layers of 256 experts on 288 slots with "balanced",
            0.15 s with effort "fast".
        """
        slots, groups, nodes, gpus = _engines.counts_of_request(num_replicas=num_replicas, num_groups=num_groups,
                                                                num_nodes=num_nodes, num_ranks=num_ranks)
        request = _engines.Request(slots, gpus, groups, nodes, hierarchical=groups % nodes == 0,
                                   incumbent=old_global_expert_indices)
        plan = _engines.plan_for("weight", _engines.counts_from("weight", weight), request, cls.policy, cls.effort)
        if cls.returns == "map":
            return _engines.tensors_of(plan, "cpu")[0]
        return _engines.tensors_of(plan, _engines.device_of(weight))


def make_policy(policy: str = "balanced", effort: str = "default", returns: str = "maps") -> Type[EplbPolicy]:
    """A policy class with these settings, for an engine that takes vLLM's interface. errors: InvalidArgument naming one."""
    policy, effort = _engines.checked(policy, effort)
    return type("EplbPolicy", (EplbPolicy,), {"policy": policy, "effort": effort,
                                              "returns": choice("returns", returns, _RETURNS), "__module__": __name__})


def register(policy: str = "balanced", effort: str = "default", name: str = "default",
             returns: Optional[str] = None) -> Type[EplbPolicy]:
    """Puts EPLB's policy in the place of one of vLLM's, in this process; again does no harm.

    name: of the policy in vLLM's `eplb_config` that is replaced; vLLM takes only the names that it has.
    returns: what this vLLM expects, "maps" or "map"; default: what the annotations of its AbstractEplbPolicy say.
    returns: the class. Where vLLM has no policies yet, its function rebalance_experts is replaced.
    errors: FailedPrecondition where no vLLM with a load balancer can be imported, and for a name that it does not have;
        Unimplemented for an interface that is not known.
    """
    try:
        policies = importlib.import_module(_POLICIES)
    except ModuleNotFoundError as error:
        if error.name != _POLICIES:
            raise FailedPrecondition(f"no vLLM with a load balancer here: {error}") from None
        return _replace_function(make_policy(policy, effort, returns or "maps"))
    chosen = make_policy(policy, effort, returns or _returns_of(policies.AbstractEplbPolicy))
    if name not in policies.EPLB_POLICIES:
        raise FailedPrecondition(f"vLLM has no policy '{name}', it has {', '.join(sorted(policies.EPLB_POLICIES))}")
    policies.EPLB_POLICIES[name] = chosen
    return chosen


def _returns_of(abstract: Any) -> str:
    """errors: Unimplemented where a policy is asked for more than rebalance_experts, or gives another thing."""
    asked = sorted(getattr(abstract, "__abstractmethods__", ()))
    if asked != ["rebalance_experts"]:
        raise Unimplemented(f"vLLM's AbstractEplbPolicy asks for {', '.join(asked) or 'nothing'}: only rebalance_experts is "
                            f"known (docs/serving-engines.md)")
    signature = inspect.signature(abstract.rebalance_experts)
    try:
        signature.bind(*[None] * 5)
    except TypeError as error:
        raise Unimplemented(f"vLLM's AbstractEplbPolicy.rebalance_experts{signature}: {error} (docs/serving-engines.md)"
                            ) from None
    return "maps" if "tuple" in str(signature.return_annotation).lower() else "map"


def _replace_function(chosen: Type[EplbPolicy]) -> Type[EplbPolicy]:
    def rebalance_experts(weight: Any, num_replicas: int, num_groups: int, num_nodes: int,
                          num_gpus: int) -> Tuple[Any, Any, Any]:
        return chosen.rebalance_experts(weight, num_replicas, num_groups, num_nodes, num_gpus)  # type: ignore[return-value]

    for name in (_ALGORITHM, _STATE):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise FailedPrecondition(f"no vLLM with a load balancer here: {error}") from None
        module.rebalance_experts = rebalance_experts  # type: ignore[attr-defined]
    return chosen
