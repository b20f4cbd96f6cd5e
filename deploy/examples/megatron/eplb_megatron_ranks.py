"""Where a rank of Megatron-Core stands, and the number that EPLB knows it by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch.distributed as dist

import eplb

# Options of eplb.Client.connect that follow from the model and the parallel groups.
DERIVED_OPTIONS = ("rank", "world_size", "num_layers", "num_experts", "num_slots", "num_gpus", "pipeline_parallel_size",
                   "expert_tensor_parallel", "all_gather")


@dataclass(frozen=True)
class Coordinates:
    """A rank's index in each of Megatron's groups of the expert layers, and the size of each group."""

    expert_tensor: int
    expert_model: int
    expert_data: int
    pipeline: int
    expert_tensor_size: int
    expert_model_size: int
    expert_data_size: int
    pipeline_parallel_size: int

    @property
    def world_size(self) -> int:
        return self.expert_tensor_size * self.expert_model_size * self.expert_data_size * self.pipeline_parallel_size

    @property
    def rank(self) -> int:
        """EPLB's rank: expert-tensor ranks fastest, then the EP rank (the GPU of an EP group), then expert-data copies, pipeline
        ranks slowest. With an expert tensor size of 1, GPU = rank % num_gpus. It is torch's rank in Megatron's default
        order tp-cp-ep-dp-pp, and another one where the pipeline is inside data parallelism."""
        of_pipeline = self.expert_data * self.expert_model_size + self.expert_model
        return (self.pipeline * self.expert_data_size * self.expert_model_size + of_pipeline) * self.expert_tensor_size \
            + self.expert_tensor


def coordinates_of(parallel_state: Any, world_size: int) -> Coordinates:
    """parallel_state: megatron.core.parallel_state, or what has its functions. world_size: of the job.

    errors: FailedPrecondition when the groups do not make up the job.
    """
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


class InEplbOrder:
    """An all-gather that gives the answers in the order of EPLB's ranks, over one in the order of torch's.

    errors of the constructor: FailedPrecondition when two ranks have one place. Collective.
    """

    def __init__(self, all_gather: Callable[[bytes], Sequence[bytes]], rank: int, world_size: int) -> None:
        self.rank, self.world_size, self._all_gather = rank, world_size, all_gather
        self._places: List[int] = [int(answer) for answer in all_gather(str(rank).encode())]
        if sorted(self._places) != list(range(world_size)):
            raise eplb.FailedPrecondition(f"EPLB's ranks, in the order of torch's, are {self._places}: expected each of "
                                          f"0..{world_size - 1} once; do all ranks have the same parallel sizes?")

    def __call__(self, data: bytes) -> List[bytes]:
        answers: List[bytes] = [b""] * self.world_size
        for place, answer in zip(self._places, self._all_gather(data)):
            answers[place] = answer
        return answers

    def together(self, part: Callable[[], Any]) -> Any:
        """Does this rank's part and waits for all. returns: the part's result. Collective.

        errors: on every rank when any fails: its own error where it failed, else FailedPrecondition naming the first that
        did.
        """
        error, result = None, None
        try:
            result = part()
        except (eplb.Error, ValueError) as failure:
            error = failure
        answers = self(b"" if error is None else str(error).encode())
        if error is not None:
            raise error
        for rank, answer in enumerate(answers):
            if answer:
                raise eplb.FailedPrecondition(f"rank {rank}: {bytes(answer).decode('utf-8', 'replace')}")
        return result

    def objects(self, mine: Any) -> List[Any]:
        """JSON values of all ranks. Collective."""
        return [json.loads(answer) for answer in self(json.dumps(mine).encode())]


def connect_options(coordinates: Coordinates, num_layers: int, num_experts: int,
                    given: Mapping[str, Any]) -> Dict[str, Any]:
    """What Client.connect gets besides the all_gather. given: the user's options.

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


def agreed_experts(all_gather: InEplbOrder, mine: Sequence[int]) -> int:
    """The experts of a layer, the same in all layers of all pipeline stages. mine: of each of this rank's. Collective.

    errors: InvalidArgument when layers differ.
    """
    found = sorted({number for numbers in all_gather.objects(list(mine)) for number in numbers})
    if len(found) != 1:
        raise eplb.InvalidArgument(f"MoE layers have {found} experts: EPLB needs the same number in all")
    return int(found[0])


# A MoE layer of the whole model: of multi-token prediction or not, Megatron's layer_number, which of several with it.
LayerKey = Tuple[bool, int, int]


def number_layers(all_gather: InEplbOrder, mine: Sequence[LayerKey]) -> Tuple[List[int], int]:
    """EPLB's numbers of this rank's MoE layers, and how many the model has over all pipeline stages. Collective."""
    everywhere = sorted({tuple(key) for keys in all_gather.objects(list(mine)) for key in keys})
    if not everywhere:
        raise eplb.InvalidArgument("the model has no MoE layer: no module with router, experts and token_dispatcher")
    return [everywhere.index(tuple(key)) for key in mine], len(everywhere)
