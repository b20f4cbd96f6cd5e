"""Coordinates of a rank in the groups of the expert layers, and EPLB's number of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch.distributed as dist

from eplb.all_gather import global_rank
from eplb.errors import Error, FailedPrecondition, InvalidArgument


@dataclass(frozen=True)
class Coordinates:
    """A rank's index in each of the groups of the expert layers, and the size of each group."""

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
        """EPLB's rank: expert-tensor ranks fastest, then the EP rank (the GPU of an EP group), then expert-data copies,
        pipeline ranks slowest. With an expert tensor size of 1, GPU = rank % num_gpus. It is torch's rank in Megatron's
        default order tp-cp-ep-dp-pp, and another one where the pipeline is inside data parallelism."""
        of_pipeline = self.expert_data * self.expert_model_size + self.expert_model
        return (self.pipeline * self.expert_data_size * self.expert_model_size + of_pipeline) * self.expert_tensor_size \
            + self.expert_tensor


class InEplbOrder:
    """An all-gather that gives the answers in the order of EPLB's ranks, over one in the order of torch's.

    errors of the constructor: FailedPrecondition when two ranks have one place. Collective.
    """

    def __init__(self, all_gather: Callable[[bytes], Sequence[bytes]], rank: int, world_size: int) -> None:
        self.rank, self.world_size, self._all_gather = rank, world_size, all_gather
        self._places: List[int] = [int(answer) for answer in all_gather(str(rank).encode())]
        if sorted(self._places) != list(range(world_size)):
            raise FailedPrecondition(f"EPLB's ranks, in the order of torch's, are {self._places}: expected each of "
                                          f"0..{world_size - 1} once; do all ranks have the same parallel sizes?")

    def __call__(self, data: bytes) -> List[bytes]:
        answers: List[bytes] = [b""] * self.world_size
        for place, answer in zip(self._places, self._all_gather(data)):
            answers[place] = answer
        return answers

    def together(self, part: Callable[[], Any]) -> Any:
        """Does this rank's part and waits for all. returns: the part's result. Collective.

        errors: on every rank when any fails, whatever the exception: its own where it failed, else FailedPrecondition
        naming the first that did.
        """
        error, result = None, None
        try:
            result = part()
        except Exception as failure:  # whatever it is: the others wait for this rank's answer
            error = failure
        answers = self(b"" if error is None else _described(error).encode())
        if error is not None:
            raise error
        for rank, answer in enumerate(answers):
            if answer:
                raise FailedPrecondition(f"rank {rank}: {bytes(answer).decode('utf-8', 'replace')}")
        return result

    def objects(self, mine: Any) -> List[Any]:
        """JSON values of all ranks. Collective."""
        return [json.loads(answer) for answer in self(json.dumps(mine).encode())]


def agreed_experts(all_gather: InEplbOrder, mine: Sequence[int]) -> int:
    """The experts of a layer, the same in all layers of all pipeline stages. mine: of each of this rank's. Collective.

    errors: InvalidArgument when layers differ.
    """
    found = sorted({number for numbers in all_gather.objects(list(mine)) for number in numbers})
    if len(found) != 1:
        raise InvalidArgument(f"MoE layers have {found} experts: EPLB needs the same number in all")
    return int(found[0])


def group_of(group: Any) -> Any:
    """A ProcessGroup of torch, or of a DeviceMesh of one dimension its own."""
    return group.get_group() if hasattr(group, "get_group") else group


def groups_of_mesh(mesh: Any) -> Dict[str, Any]:
    """The groups of a DeviceMesh whose dimensions are named as attach's arguments without "_group": ep, edp, pp, etp.

    errors: InvalidArgument for a mesh without a dimension ep.
    """
    names = tuple(getattr(mesh, "mesh_dim_names", None) or ())
    if "ep" not in names:
        raise InvalidArgument(f"device_mesh: it has dimensions named {list(names)}, expected \"ep\", and \"edp\", \"pp\" and \"etp\" "
                              f"where there are such; or give ep_group")
    return {f"{name}_group": mesh.get_group(name) for name in ("ep", "edp", "pp", "etp") if name in names}


def coordinates_in(all_gather: Callable[[bytes], Sequence[bytes]], world_size: int, *, ep_group: Any = None,
                   edp_group: Any = None, pp_group: Any = None, etp_group: Any = None) -> Coordinates:
    """Returns this rank's coordinates in groups of torch. Collective over the job.

    all_gather: in the order of torch's ranks. ep_group: None: all ranks of the job. edp_group: the ranks that hold the same
    experts; None: EP groups of a pipeline stage are numbered by their lowest rank. pp_group, etp_group: None: there is one
    stage, one rank for each expert. errors: FailedPrecondition when the groups do not make up the job.
    """
    ep_rank, ep_size = _place_in(ep_group, world_size)
    pp_rank, pp_size = _place_in(pp_group, 1)
    etp_rank, etp_size = _place_in(etp_group, 1)
    if edp_group is not None:
        edp_rank, edp_size = _place_in(edp_group, 1)
    else:
        edp_size = world_size // (ep_size * pp_size * etp_size)
        edp_rank = _number_of_ep_group(all_gather, ep_group, pp_rank, etp_rank)
    found = Coordinates(etp_rank, ep_rank, edp_rank, pp_rank, etp_size, ep_size, edp_size, pp_size)
    if found.world_size != world_size:
        raise FailedPrecondition(f"the groups hold {etp_size} expert-tensor x {ep_size} expert-model x {edp_size} expert-data x "
                                 f"{pp_size} pipeline = {found.world_size} ranks, the job has {world_size}: every rank of the "
                                 f"job must be in an expert group")
    return found


def _described(error: Exception) -> str:
    """Never empty."""
    if isinstance(error, (Error, ValueError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _place_in(group: Any, alone: int) -> Tuple[int, int]:
    """(rank, size) in a group. alone: the size where there is none: 1, or all ranks of the job."""
    if group is None and (alone == 1 or not dist.is_initialized()):
        return 0, 1
    group = None if group is None else group_of(group)
    return dist.get_rank(group), dist.get_world_size(group)


def _number_of_ep_group(all_gather: Callable[[bytes], Sequence[bytes]], ep_group: Any, stage: int, etp_rank: int) -> int:
    """Returns the number of this rank's EP group in its stage and expert-tensor rank, by first ranks. Collective."""
    group = None if ep_group is None else group_of(ep_group)
    mine = [stage, etp_rank, 0 if group is None else global_rank(group, 0)]
    answers = [json.loads(answer) for answer in all_gather(json.dumps(mine).encode())]
    return sorted({first for *place, first in answers if place == mine[:2]}).index(mine[2])
