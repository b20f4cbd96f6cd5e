"""EPLB's placements inside vLLM: a policy for its expert-parallel load balancer, which asks a daemon or plans by itself.

    import eplb.vllm
    eplb.vllm.register()          # in every process of vLLM: docs/serving-engines.md

vLLM counts, decides when to rearrange, and moves the weights; only the placement is EPLB's. Nothing of vLLM is imported
before register. Threads: safe; the library computes without the interpreter's lock.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable, Dict, Optional, Tuple, Type, Union

import numpy as np

from eplb import _engines
from eplb._arguments import choice
from eplb._guard import Engine, Guard
from eplb._planning import Daemon, daemon_of
from eplb.errors import FailedPrecondition, Unimplemented
from eplb.profiles import Profiles

_RETURNS = ("maps", "map")
_STATE = "vllm.distributed.eplb.eplb_state"
_ALGORITHM = "vllm.distributed.eplb.rebalance_algo"
_POLICIES = "vllm.distributed.eplb.policy"
_SHARED = ("weight", "num_replicas", "num_groups", "num_nodes")
# vLLM 0.33.0, and before it passed the incumbent, and before it had policies.
_KNOWN = ((*_SHARED, "num_ranks", "old_global_expert_indices=None"), (*_SHARED, "num_ranks"), (*_SHARED, "num_gpus"))


class EplbPolicy:
    """A policy with the interface of vLLM's AbstractEplbPolicy; vLLM uses the class, not an object of it. It plans in its own
    process and raises; register puts a class in vLLM's list that does not.

    policy: "incremental", "balanced" or "deepseek" (docs/serving-engines.md). effort, of "balanced": "default", "fast" or
        "thorough". returns: result of rebalance_experts: "maps" or "map". profiles, max_moves_per_gpu: of make_policy.
    """

    policy: str = "incremental"
    effort: str = "default"
    returns: str = "maps"
    profiles: Optional[Profiles] = None
    max_moves_per_gpu: int = -1

    @classmethod
    def rebalance_experts(cls, weight: Any, num_replicas: int, num_groups: Optional[int], num_nodes: int, num_ranks: int,
                          old_global_expert_indices: Any = None) -> Union[Any, Tuple[Any, Any, Any]]:
        """Returns a placement for a load: with returns = "maps" physical_to_logical_map [layers, num_replicas],
        logical_to_physical_map [layers, logical experts, X], -1 padded, and logical_replica_count [layers, logical experts],
        int64, on the weight's device; with "map" the first of them, on the CPU.

        weight: [layers, logical experts], tokens, a torch tensor on any device. num_replicas: physical experts of a layer, a
            multiple of num_ranks. num_groups: of the router; None and 0 mean one. num_nodes: if it divides num_groups, each
            expert group stays on one node. old_global_expert_indices: the current placement, ignored if it has another size;
            or None.
        errors: eplb.InvalidArgument with one line. cost: 0.7 s for 58 layers of 256 experts on 288 slots with "balanced".
        """
        load, request = _request(weight, num_replicas, num_groups, num_nodes, num_ranks, old_global_expert_indices)
        return cls._answer(_engines.plan_for("weight", load, request, cls._settings()), {"weight": weight})

    @classmethod
    def _settings(cls) -> _engines.Settings:
        return _engines.Settings(cls.policy, cls.effort, cls.profiles, cls.max_moves_per_gpu)

    @classmethod
    def _answer(cls, slots: np.ndarray, arguments: Dict[str, Any]) -> Union[Any, Tuple[Any, Any, Any]]:
        if cls.returns == "map":
            return _engines.tensors_of(slots, "cpu")[0]
        return _engines.tensors_of(slots, _engines.device_of(arguments.get("weight")))


def make_policy(policy: Optional[str] = None, effort: Optional[str] = None, returns: str = "maps",
                profiles: Any = None, max_moves_per_gpu: Optional[int] = None) -> Type[EplbPolicy]:
    """Returns an EplbPolicy with these settings, or with those of EplbPolicy. It plans in its own process and raises.

    profiles: path of a file of eplb.profiles, whose loads the placement serves as well; default: EPLB_PROFILES of the
        environment. max_moves_per_gpu: experts that a GPU receives from others in a layer at most, with "incremental" and
        an incumbent; -1: no limit. errors: InvalidArgument, also for such a file.
    """
    settings = _engines.checked(policy, effort, profiles, max_moves_per_gpu)
    return type("EplbPolicy", (EplbPolicy,), {**vars(settings),
                                              "returns": choice("returns", returns, _RETURNS), "__module__": __name__})


def register(policy: Optional[str] = None, effort: Optional[str] = None, name: str = "default", returns: Optional[str] = None,
             timeout: float = 20.0, profiles: Any = None, max_moves_per_gpu: Optional[int] = None, endpoint: Optional[str] = None,
             job: Optional[str] = None, expert_bytes: int = 0) -> Type[EplbPolicy]:
    """Puts EPLB's policy in the place of one of vLLM's, in this process. Every worker must call it; a second call has no
    effect.

    The policy never raises: rank 0 of the EPLB group plans, and all ranks use its plan or all keep the current placement. If a
    worker has not called register, all ranks use vLLM's own policy (docs/serving-engines.md).

    name: vLLM's policy that is replaced. returns: result that this vLLM expects, "maps" or "map"; default: by the annotation
        of the replaced policy. timeout: seconds that ranks wait for each other in one step of an agreement; a request takes at
        most 8 of them, which must be less than the engine's own time-outs. policy, effort, profiles, max_moves_per_gpu: of
        make_policy, with its defaults.
    endpoint, job: an eplbd, or several as in the endpoint of a client, and the engine's name there; default: EPLB_ENDPOINT, which
        counts only with a job, and EPLB_JOB. Rank 0 then asks the daemon, for at most three quarters of `timeout`, and plans
        nothing itself. The settings of planning are the daemon's (eplbctl set policy), so that policy, effort, profiles and
        max_moves_per_gpu are refused. Files of TLS are those of the environment: EPLB_TLS_CA, EPLB_TLS_CERT, EPLB_TLS_KEY. The
        job's name is followed by "-LAYERSxEXPERTS", which tells a model from its draft model, and with several pipeline stages
        by "-stageN". expert_bytes: weights of one expert of one layer, for the price of a move; 0: moves have none.
    returns: the class. A vLLM without policies gets its function rebalance_experts replaced. errors: FailedPrecondition if no
    vLLM with a load balancer can be imported, and for an unknown name; Unimplemented for a policy
    class with other abstract methods and for a function with other parameters; InvalidArgument for a setting.
    """
    settings = {"policy": policy, "effort": effort, "profiles": profiles, "max_moves_per_gpu": max_moves_per_gpu}
    daemon = daemon_of("vLLM", endpoint, job, expert_bytes, **settings)
    try:
        policies = importlib.import_module(_POLICIES)
    except ModuleNotFoundError as error:
        if error.name != _POLICIES:
            raise FailedPrecondition(f"no vLLM with a load balancer here: {error}") from None
        return _replace_function(returns, timeout, settings, daemon)
    if name not in policies.EPLB_POLICIES:
        raise FailedPrecondition(f"vLLM has no policy '{name}', it has {', '.join(sorted(policies.EPLB_POLICIES))}")
    asked = sorted(getattr(policies.AbstractEplbPolicy, "__abstractmethods__", ()))
    if asked != ["rebalance_experts"]:
        raise Unimplemented(f"vLLM's AbstractEplbPolicy asks for {', '.join(asked) or 'nothing'}: only rebalance_experts is "
                            f"known (docs/serving-engines.md)")
    chosen = _guarded(policies.EPLB_POLICIES[name].rebalance_experts, returns, timeout, settings, daemon)
    policies.EPLB_POLICIES[name] = chosen
    return chosen


def _replace_function(returns: Optional[str], timeout: float, settings: Dict[str, Any],
                      daemon: Optional[Daemon]) -> Type[EplbPolicy]:
    try:
        modules = [importlib.import_module(each) for each in (_ALGORITHM, _STATE)]
    except ModuleNotFoundError as error:
        raise FailedPrecondition(f"no vLLM with a load balancer here: {error}") from None
    chosen = _guarded(modules[0].rebalance_experts, returns or "maps", timeout, settings, daemon)
    for module in modules:
        module.rebalance_experts = chosen.rebalance_experts  # type: ignore[attr-defined]
    return chosen


def _guarded(installed: Any, returns: Optional[str], timeout: float, settings: Dict[str, Any],
             daemon: Optional[Daemon]) -> Type[EplbPolicy]:
    own: Callable[..., Any] = installed.own if isinstance(installed, Guard) else installed
    chosen = make_policy(returns=returns or _returns_of(own), **settings)
    engine = Engine("vLLM", "0.33.0", own, _KNOWN, _request, lambda arguments: arguments.get("old_global_expert_indices"),
                    chosen._answer, _group, _stage)
    chosen.rebalance_experts = Guard(engine, chosen._settings(), timeout, daemon)  # type: ignore[method-assign]
    return chosen


def _returns_of(own: Callable[..., Any]) -> str:
    return "maps" if "tuple" in str(inspect.signature(own).return_annotation).lower() else "map"


def _request(weight: Any, num_replicas: int, num_groups: Optional[int], num_nodes: int, num_ranks: int,
             old_global_expert_indices: Any = None) -> Tuple[np.ndarray, _engines.Request]:
    slots, groups, nodes, gpus = _engines.counts_of_request(num_replicas=num_replicas, num_groups=num_groups or 1,
                                                            num_nodes=num_nodes, num_ranks=num_ranks)
    return _engines.counts_from("weight", weight), _engines.Request(slots, gpus, groups, nodes, groups % nodes == 0,
                                                                    old_global_expert_indices)


def _group() -> Any:
    """Returns the CPU group of the workers that share experts: those of one pipeline stage. None without torch.distributed."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    state = importlib.import_module("vllm.distributed.parallel_state")
    return (getattr(state, "get_eplb_group", None) or state.get_ep_group)().cpu_group


def _stage() -> str:
    """Returns "-stage1" and the like if vLLM has several pipeline stages, otherwise ""."""
    stages = getattr(importlib.import_module("vllm.distributed.parallel_state"), "get_pp_group", None) if _group() else None
    stage = stages() if stages else None
    return f"-stage{stage.rank_in_group}" if stage and stage.world_size > 1 else ""
