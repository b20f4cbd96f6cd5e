"""Modules with the names and signatures of vLLM 0.33.0 and SGLang 0.5.23, as the adapters of eplb see these engines.

Each engine's own policy shifts the experts by one slot in each layer, so that a test recognizes it.
"""

import abc
import enum
import sys
import types
from typing import Optional

import torch


def module(name, **attributes):
    """Puts a module and those that contain it into sys.modules. Returns it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            made = sys.modules[path] = types.ModuleType(path)
            made.__path__ = []
            if end > 1:
                setattr(sys.modules[".".join(parts[:end - 1])], parts[end - 1], made)
    sys.modules[name].__dict__.update(attributes)
    return sys.modules[name]


def remove():
    for name in [name for name in sys.modules if name.split(".")[0] in ("vllm", "sglang")]:
        del sys.modules[name]


def own_map(layers, experts, slots):
    return ((torch.arange(slots) + 1) % experts).repeat(layers, 1)


class AbstractEplbPolicy(abc.ABC):
    @classmethod
    @abc.abstractmethod
    def rebalance_experts(cls, weight: torch.Tensor, num_replicas: int, num_groups: int, num_nodes: int, num_ranks: int,
                          old_global_expert_indices: Optional[torch.Tensor] = None) -> torch.Tensor:
        raise NotImplementedError


class DefaultEplbPolicy(AbstractEplbPolicy):
    @classmethod
    def rebalance_experts(cls, weight: torch.Tensor, num_replicas: int, num_groups: int, num_nodes: int, num_ranks: int,
                          old_global_expert_indices: Optional[torch.Tensor] = None) -> torch.Tensor:
        return own_map(*weight.shape, num_replicas + 0 * (num_groups % num_nodes))  # vLLM's fails for None groups, too


def vllm(cpu_group=None):
    """Returns the dict of policies. cpu_group: of get_eplb_group."""
    policies = {"default": DefaultEplbPolicy}
    module("vllm.distributed.eplb.policy", EPLB_POLICIES=policies, AbstractEplbPolicy=AbstractEplbPolicy)
    coordinator = types.SimpleNamespace(cpu_group=cpu_group)
    module("vllm.distributed.parallel_state", get_eplb_group=lambda: coordinator)
    return policies


class EplbAlgorithm(enum.Enum):
    deepseek = enum.auto()
    deepseek_hierarchical = enum.auto()
    deepseek_vec = enum.auto()
    deepseek_vec_hierarchical = enum.auto()
    elasticity_aware = enum.auto()
    elasticity_aware_hierarchical = enum.auto()


def rebalance_experts(tokens_per_expert: torch.Tensor, num_physical_experts: int, num_local_physical_experts: int,
                      num_groups: Optional[int], num_nodes: int, algorithm: EplbAlgorithm):
    slots = own_map(*tokens_per_expert.shape[-2:], num_physical_experts)
    return slots, algorithm, None


def sglang(package="sglang.srt.eplb"):
    """Returns the module of the algorithms and that of the metadata, whose `metadata` is the global one."""
    algorithms = module(f"{package}.eplb_algorithms", EplbAlgorithm=EplbAlgorithm, rebalance_experts=rebalance_experts)
    location = module(f"{package}.expert_location", metadata=None)
    location.get_global_expert_location_metadata = lambda: location.metadata
    return algorithms, location


def sglang_metadata(slots):
    return types.SimpleNamespace(physical_to_logical_map=slots, physical_to_logical_map_cpu=slots)
