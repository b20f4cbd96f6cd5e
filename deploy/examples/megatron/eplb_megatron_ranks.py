"""Coordinates of a rank of Megatron-Core, and EPLB's number of it."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch.distributed as dist

import eplb
from eplb.torch.groups import Coordinates, InEplbOrder

# Functions of parallel_state that came with Megatron-Core 0.10.
_GROUP_FUNCTIONS = ("get_expert_data_parallel_group", "get_expert_tensor_parallel_rank",
                    "get_expert_tensor_parallel_world_size")
# Options of eplb.Client.connect that follow from the model and the parallel groups.
DERIVED_OPTIONS = ("rank", "world_size", "num_layers", "num_experts", "num_slots", "num_gpus", "pipeline_parallel_size",
                   "expert_tensor_parallel", "all_gather")


def coordinates_of(parallel_state: Any, world_size: int) -> Coordinates:
    """parallel_state: megatron.core.parallel_state, or what has its functions. world_size: of the job.

    errors: FailedPrecondition when the groups do not make up the job; InvalidArgument for Megatron-Core before 0.10.
    """
    for function in _GROUP_FUNCTIONS:
        if not hasattr(parallel_state, function):
            raise eplb.InvalidArgument(f"parallel_state has no {function}: the adapter needs Megatron-Core 0.10 or later, whose "
                                       f"experts have data-parallel groups and whose routers give a routing_map")
    expert_data = parallel_state.get_expert_data_parallel_group()
    found = Coordinates(
        expert_tensor=parallel_state.get_expert_tensor_parallel_rank(),
        expert_model=parallel_state.get_expert_model_parallel_rank(),
        expert_data=dist.get_rank(expert_data),
        pipeline=parallel_state.get_pipeline_model_parallel_rank(),
        expert_tensor_size=parallel_state.get_expert_tensor_parallel_world_size(),
        expert_model_size=parallel_state.get_expert_model_parallel_world_size(),
        expert_data_size=dist.get_world_size(expert_data),
        pipeline_parallel_size=parallel_state.get_pipeline_model_parallel_world_size())
    if found.world_size != world_size:
        raise eplb.FailedPrecondition(
            f"Megatron's groups hold {found.expert_tensor_size} expert-tensor x {found.expert_model_size} expert-model x "
            f"{found.expert_data_size} expert-data x {found.pipeline_parallel_size} pipeline = {found.world_size} ranks, the job has "
            f"{world_size}: every rank of the job must be in an expert group")
    return found


def connect_options(coordinates: Coordinates, num_layers: int, num_experts: int,
                    given: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns options of Client.connect besides the all_gather. given: the user's options.

    errors: InvalidArgument for one that the adapter derives, and for replicas.
    """
    if given.get("num_slots", num_experts) != num_experts:
        raise eplb.InvalidArgument(
            f"num_slots is {given['num_slots']}, the model has {num_experts} experts: Megatron's dispatcher numbers "
            f"num_moe_experts experts and has no place for a replica, so that slots can only be permuted")
    for name in given:
        if name in DERIVED_OPTIONS and name != "num_slots":
            raise eplb.InvalidArgument(f"option {name}: it follows from the model and Megatron's parallel groups")
    options: Dict[str, Any] = {**given, "rank": coordinates.rank, "world_size": coordinates.world_size,
                               "num_layers": num_layers, "num_experts": num_experts, "num_slots": num_experts,
                               "num_gpus": coordinates.expert_model_size}
    if coordinates.pipeline_parallel_size > 1:
        options["pipeline_parallel_size"] = coordinates.pipeline_parallel_size
    if coordinates.expert_tensor_size > 1:
        options["expert_tensor_parallel"] = coordinates.expert_tensor_size
    return options


# A MoE layer of the whole model: of multi-token prediction or not, Megatron's layer_number, which of several with it.
LayerKey = Tuple[bool, int, int]


def number_layers(all_gather: InEplbOrder, mine: Sequence[LayerKey]) -> Tuple[List[int], int]:
    """EPLB's numbers of this rank's MoE layers, and how many the model has over all pipeline stages. Collective."""
    everywhere = sorted({tuple(key) for keys in all_gather.objects(list(mine)) for key in keys})
    if not everywhere:
        raise eplb.InvalidArgument("the model has no MoE layer: no module with router, experts and token_dispatcher")
    return [everywhere.index(tuple(key)) for key in mine], len(everywhere)
