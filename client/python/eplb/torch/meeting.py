"""Agreement of a job's ranks at attach: their coordinates, and the numbers of layers and experts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch.distributed as dist

from eplb.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument
from eplb.options import options_from, to_struct
from eplb.torch.alike import expect_alike_on_ranks, traits_of
from eplb.torch.carry import carry
from eplb.torch.groups import (Coordinates, InEplbOrder, coordinates_of, expect_equal_numbers, gathered, group_of, group_over,
                               place_in, ranks_beside)
from eplb.torch.layers import ExpertLayer
from eplb.torch.layout import expect_equal_shares
from eplb.torch.state import OptimizerState

_DERIVED = ("rank", "world_size", "num_layers", "num_experts", "num_slots", "num_gpus", "pipeline_parallel_size",
            "expert_tensor_parallel")

# () -> the MoE layers and the optimizers' state of this rank.
Find = Callable[[], Tuple[List[ExpertLayer], OptimizerState]]


@dataclass(frozen=True)
class Meeting:
    """all_gather: in the order of EPLB's ranks. carry: carry.carry among the ranks of this one's EP group."""

    layers: List[ExpertLayer]
    state: OptimizerState
    coordinates: Coordinates
    all_gather: InEplbOrder
    num_layers: int
    num_experts: int
    carry: Callable[..., None]


def meet(all_gather: Any, groups: Mapping[str, Any], find: Find) -> Meeting:
    """Finds the layers of this rank and gives them EPLB's numbers. Collective: one all-gather, as each takes time that grows
    with the ranks. all_gather, groups: of attach. errors: as attach."""
    layers: List[ExpertLayer] = []
    states: List[OptimizerState] = []

    def mine() -> Dict[str, Any]:
        found, state = find()
        layers.extend(found)
        states.append(state)
        for number, layer in enumerate(layers):
            layer.index = number
        return {"place": place_in(**groups, shard=_shard_in(layers)), "slots": {layer.name: layer.num_local_slots for layer in layers},
                "traits": traits_of(layers, state)}

    try:
        answers = gathered(all_gather, mine)
    except DeadlineExceeded as error:
        raise DeadlineExceeded(f"attach: {error}; is EPLB_DISABLE set on some ranks alone?") from error
    coordinates = coordinates_of([each["place"] for each in answers])
    own, numbers = coordinates[all_gather.rank], []
    first, num_layers = _number_layers([(where.pipeline, len(each["slots"])) for where, each in zip(coordinates, answers)])
    for layer in layers:
        layer.index += first[own.pipeline]
    expect_equal_shares([(where.pipeline, each["slots"]) for where, each in zip(coordinates, answers)])
    for where, each in zip(coordinates, answers):
        numbers += [count * where.expert_model_size for count in each["slots"].values()]
        for of_family in each["traits"]["families"]:
            of_family[0] += first[where.pipeline]
    num_experts = expect_equal_numbers(numbers)
    expect_alike_on_ranks([answers[rank]["traits"] for rank in sorted(range(len(answers)), key=lambda rank: coordinates[rank].rank)])
    in_order = InEplbOrder(all_gather, own.rank, all_gather.world_size, [each.rank for each in coordinates])
    return Meeting(layers, states[0], own, in_order, num_layers, num_experts,
                   _carry_among(ranks_beside(coordinates, all_gather.rank), own.expert_model, groups.get("ep_group")))


def expect_options(given: Mapping[str, Any]) -> None:
    """errors: InvalidArgument for an option that follows from model and groups, or that connect would refuse on this rank alone."""
    for name in given:
        if name in _DERIVED:
            raise InvalidArgument(f"option {name}: it follows from the model and the groups"
                                  + ("; every expert has one slot, replicas need eplb.Client" if name == "num_slots" else ""))
    to_struct(options_from(given))


def connect_options(met: Meeting, given: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the options of Client.connect. given: those of the user, of expect_options."""
    where = met.coordinates
    options = {**given, "rank": where.rank, "world_size": where.world_size, "num_layers": met.num_layers,
               "num_experts": met.num_experts, "num_gpus": where.expert_model_size,
               "pipeline_parallel_size": where.pipeline_parallel_size, "expert_tensor_parallel": where.expert_tensor_size}
    if options.get("initial_placement") is None:
        options["initial_placement"] = "static"  # otherwise everything would be carried to where the job's last run ended
    return options


def _shard_in(layers: Sequence[ExpertLayer]) -> Any:
    """errors: InvalidArgument for layers of which this rank holds different experts."""
    shards: Dict[Any, str] = {}
    for layer in layers:
        shards.setdefault(layer.shard, layer.name)
    if len(shards) > 1:
        raise InvalidArgument(f"{' and '.join(list(shards.values())[:2])} are sharded over other ranks, or in another order: place "
                              f"the experts of all layers alike")
    return next(iter(shards), None)


def _number_layers(found: Sequence[Tuple[int, int]]) -> Tuple[Dict[int, int], int]:
    """found: of each rank its pipeline stage and its number of layers. returns: the number of each stage's first layer, and how
    many there are."""
    of_stage: Dict[int, int] = {}
    for stage, count in found:
        if of_stage.setdefault(stage, count) != count:
            raise FailedPrecondition(f"ranks of pipeline stage {stage} have {of_stage[stage]} and {count} MoE layers")
    if not sum(of_stage.values()):
        raise InvalidArgument("experts: no module of the model is named by it (docs/attach.md)")
    return {stage: sum(count for other, count in of_stage.items() if other < stage) for stage in of_stage}, sum(of_stage.values())


def _carry_among(ranks: Sequence[int], gpu: int, ep_group: Any) -> Callable[..., None]:
    """ranks: torch's, in the order of experts."""
    if len(ranks) == 1:
        return functools.partial(carry, gpu=0, group=None)
    group = group_over(ranks, None if ep_group is None else group_of(ep_group))
    return functools.partial(carry, gpu=gpu, group=group,
                             gpus=[ranks.index(rank) for rank in dist.get_process_group_ranks(group)])
