"""Coordinates of a rank in the groups of the expert layers, and EPLB's number of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch.distributed as dist

from eplb.errors import Error, FailedPrecondition, InvalidArgument
from eplb.torch.shards import Shard


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

    places: EPLB's rank of each of torch's; None: the ranks exchange theirs, which is collective. errors of the constructor:
    FailedPrecondition when two ranks have one place.
    """

    def __init__(self, all_gather: Callable[[bytes], Sequence[bytes]], rank: int, world_size: int,
                 places: Optional[Sequence[int]] = None) -> None:
        self.rank, self.world_size, self._all_gather = rank, world_size, all_gather
        self._places = list(places) if places is not None else [int(answer) for answer in all_gather(str(rank).encode())]
        if sorted(self._places) != list(range(world_size)):
            raise FailedPrecondition(f"EPLB's ranks, in the order of torch's, are {self._places}: expected each of "
                                          f"0..{world_size - 1} once; do all ranks have the same parallel sizes?")

    def __call__(self, data: bytes) -> List[bytes]:
        answers: List[bytes] = [b""] * self.world_size
        for place, answer in zip(self._places, self._all_gather(data)):
            answers[place] = answer
        return answers

    def together(self, part: Callable[[], Any]) -> Any:
        """Does this rank's part and waits for all. returns: the part's result. Collective. errors: as gathered."""
        results: List[Any] = []
        self.objects_of(lambda: results.append(part()))
        return results[0]

    def objects(self, mine: Any) -> List[Any]:
        """JSON values of all ranks. Collective."""
        return self.objects_of(lambda: mine)

    def objects_of(self, part: Callable[[], Any]) -> List[Any]:
        """Does this rank's part, and gives the results of all, JSON values. Collective. errors: as gathered."""
        return gathered(self, part)


def gathered(all_gather: Callable[[bytes], Sequence[bytes]], part: Callable[[], Any]) -> List[Any]:
    """Does this rank's part, whose result is a JSON value, and gives those of all ranks in the order of `all_gather`.
    Collective.

    errors: on every rank when any fails, whatever the exception: its own where it failed, else FailedPrecondition naming the
    first that did.
    """
    error, answer = None, {}
    try:
        answer = {"value": part()}
    except Exception as failure:  # whatever it is: the others wait for this rank's answer
        error, answer = failure, {"error": _described(failure)}
    answers = [json.loads(each) for each in all_gather(json.dumps(answer).encode())]
    if error is not None:
        raise error
    for rank, each in enumerate(answers):
        if "error" in each:
            raise FailedPrecondition(f"rank {rank}: {each['error']}")
    return [each["value"] for each in answers]


def expect_equal_numbers(numbers: Sequence[int]) -> int:
    """Returns the number of experts that all layers have. errors: InvalidArgument when they differ."""
    found = sorted(set(numbers))
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


def place_in(*, ep_group: Any = None, edp_group: Any = None, pp_group: Any = None, etp_group: Any = None,
             shard: Optional[Shard] = None) -> Dict[str, Any]:
    """Returns what this rank knows of its coordinates, a JSON value for coordinates_of.

    ep_group: None: all ranks of the job. edp_group: the ranks that hold the same experts; None: EP groups of a pipeline stage
    are numbered by their lowest rank. pp_group, etp_group: None: there is one stage, one rank for each expert. shard: of
    experts that are DTensors: it tells which experts this rank holds, as the order of a mesh may be another than that of
    ep_group. Ranks of ep_group that share no mesh with this one hold other stacks.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    members = range(world) if ep_group is None else dist.get_process_group_ranks(group_of(ep_group))
    index, size = _place_in(ep_group, world)
    if shard is not None:
        is_inside = set(members) <= set(shard.ranks)
        index, size = (0, 1) if is_inside else (index, size)
        index, size = index * shard.parts + shard.place, size * shard.parts
    return {"ep": [index, size], "edp": None if edp_group is None else _place_in(edp_group, 1), "pp": _place_in(pp_group, 1),
            "etp": _place_in(etp_group, 1), "first": members[0], "is_sharded": shard is not None}


def coordinates_of(places: Sequence[Mapping[str, Any]]) -> List[Coordinates]:
    """Returns the coordinates of all ranks, in the order of torch's. places: of place_in, in that order.

    errors: FailedPrecondition when the groups do not make up the job, and for DTensors whose parts do not make up the experts.
    """
    found = []
    for copy, place in zip(_copies_of(places), places):
        (ep, ep_size), (stage, pp_size), (etp, etp_size) = place["ep"], place["pp"], place["etp"]
        edp, edp_size = place["edp"] or (copy, len(places) // (ep_size * pp_size * etp_size))
        found.append(Coordinates(etp, ep, edp, stage, etp_size, ep_size, edp_size, pp_size))
        if found[-1].world_size != len(places):
            raise FailedPrecondition(f"the groups hold {etp_size} expert-tensor x {ep_size} expert-model x {edp_size} "
                                     f"expert-data x {pp_size} pipeline = {found[-1].world_size} ranks, the job has "
                                     f"{len(places)}: every rank of the job must be in an expert group")
    if any(place["is_sharded"] for place in places) and sorted(each.rank for each in found) != list(range(len(found))):
        raise FailedPrecondition(f"experts are DTensors, and torch's ranks hold the parts "
                                 f"{[place['ep'][0] for place in places]} of {places[0]['ep'][1]}: expected each part on as many "
                                 f"ranks, so that the parts are all experts")
    return found


def ranks_beside(coordinates: Sequence[Coordinates], rank: int) -> List[int]:
    """Returns torch's ranks among which the experts of one of them travel, by their place among the experts."""
    own = coordinates[rank]
    return sorted((other for other, each in enumerate(coordinates) if
                   (each.pipeline, each.expert_data, each.expert_tensor) == (own.pipeline, own.expert_data, own.expert_tensor)),
                  key=lambda other: coordinates[other].expert_model)


def group_over(ranks: Sequence[int], group: Any) -> Any:
    """Returns a group of torch with these ranks: `group` or that of all ranks if it has them, otherwise a new one. Collective
    among the ranks."""
    for each in (group, dist.group.WORLD):
        if each is not None and sorted(ranks) == sorted(dist.get_process_group_ranks(each)):
            return each
    return dist.new_group(sorted(ranks), use_local_synchronization=True)


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


def _copies_of(places: Sequence[Mapping[str, Any]]) -> List[int]:
    """Returns for each rank the number of its EP group in its stage and expert-tensor rank, by first ranks; of DTensors the number
    of the rank among those with the same part."""
    firsts: Dict[Any, Set[int]] = {}
    for place in places:
        firsts.setdefault((*place["pp"], *place["etp"]), set()).add(place["first"])
    numbers = {stage: {first: number for number, first in enumerate(sorted(found))} for stage, found in firsts.items()}
    holders: Counter[Any] = Counter()
    copies = []
    for place in places:
        stage, part = (*place["pp"], *place["etp"]), (*place["pp"], *place["etp"], *place["ep"])
        copies.append(holders[part] if place["is_sharded"] else numbers[stage][place["first"]])
        holders[part] += 1
    return copies
