"""Everything of experts that a rank holds: what the client moves, what follows it, and what the adapter carries itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

import numpy as np
import torch.distributed as dist

import eplb
from eplb.torch.carry import carry
from eplb.torch.groups import Coordinates, InEplbOrder
from eplb.torch.pieces import ExpertTensor, Piece
from eplb_megatron_layers import MoeLayer
from eplb_megatron_optimizer import ExpertState, Family, trained, unknown_kinds
from eplb_megatron_sharded import BufferedWeights, StateShards, carry_shards, expect_cover


@dataclass(frozen=True)
class Groups:
    """Coordinates of this rank, and the groups in which experts and their state travel."""

    coordinates: Coordinates
    expert_model: Any
    expert_data: Any


@dataclass
class Holdings:
    """tensors: rows that the client moves. buffered: weights that follow rows. shards: state that crosses expert-data ranks.
    late: rows whose weights other expert-data ranks have updated, and have not sent yet; with this rank's part of them."""

    groups: Groups
    tensors: List[ExpertTensor] = field(default_factory=list)
    buffered: List[BufferedWeights] = field(default_factory=list)
    shards: List[StateShards] = field(default_factory=list)
    late: List[Tuple[Any, StateShards]] = field(default_factory=list)

    def register(self, client: eplb.Client) -> None:
        """errors: as eplb.Client.register and finish_registration. Collective."""
        for tensor in self.tensors:
            client.register(tensor.rows, name=tensor.name, layer=tensor.layer, role=tensor.role)
        for weights in self.buffered:
            if weights.is_copy:
                client.register(weights.rows, name=weights.name, layer=weights.layer)
            client.register_derived(lambda layer, slots, weights=weights: weights.spread(slots),
                                    name=f"{weights.name}.in_buffer", layer=weights.layer)
        client.finish_registration()

    def collect(self) -> None:
        """Brings rows up to date with the weights; before rows move. Collective in the expert-data group."""
        for weights in self.buffered:
            weights.collect()
        for rows, mine in self.late:
            rows.copy_(mine.gathered(self.groups.expert_data))

    def refresh(self) -> None:
        """Rows and weights are the newest, on every rank. Collective in the expert-data group."""
        self.collect()
        for weights in self.buffered if self.late else ():
            weights.spread(range(len(weights.rows)))

    def follow(self, before: np.ndarray, after: np.ndarray) -> None:
        """Once the client has moved its rows from `before` to `after`, [layers, slots]. Collective in the stage's groups."""
        carry_shards(self.shards, before, after, self.groups.coordinates.expert_model, self.groups.expert_model,
                     self.groups.expert_data)

    def carry(self, before: np.ndarray, after: np.ndarray) -> None:
        """Moves everything without the client. Collective in the stage's groups."""
        self.collect()
        gpu, group = self.groups.coordinates.expert_model, self.groups.expert_model
        copies: List[Any] = [weights for weights in self.buffered if weights.is_copy]
        carry([*self.tensors, *copies], before, after, gpu, group)
        self.follow(before, after)
        for weights in self.buffered:
            weights.spread(range(len(weights.rows)))


class Finder:
    """Finds the holdings of a rank, alike on all ranks: what is in shards on one is in shards on all. Collective.

    errors of the constructor: InvalidArgument where the ranks of an expert-data group do not update each element once.
    """

    def __init__(self, layers: Sequence[MoeLayer], state: ExpertState, all_gather: InEplbOrder, groups: Groups) -> None:
        self._layers, self._state, self._all_gather, self._groups = layers, state, all_gather, groups
        self._kinds: Dict[Family, List[Tuple[str, str]]] = {}
        mine = all_gather.together(lambda: [[layer.index, family] for layer in layers for family in state.in_shards(layer)])
        everywhere = all_gather.objects({"in shards": mine, "late": state.gathers_late()})
        self.in_shards: Set[Family] = {(layer, family) for each in everywhere for layer, family in each["in shards"]}
        self._late = any(each["late"] for each in everywhere)
        ranges = {f"layers.{layer.index}.{family}": (layer.shape_of(family), state.ranges(layer, family))
                  for layer, family in self._families() if (layer.index, family) in self.in_shards}
        by_rank: List[Any] = [None] * groups.coordinates.expert_data_size
        dist.all_gather_object(by_rank, {name: found for name, (_, found) in ranges.items()}, group=groups.expert_data)
        all_gather.together(lambda: [expect_cover(name, shape, [each.get(name, ()) for each in by_rank])
                                     for name, (shape, _) in ranges.items()])

    def find(self) -> Holdings:
        """All that belongs to experts and is there now. It puts what is whole side by side. Collective.

        errors: InvalidArgument naming the tensor that cannot move.
        """
        kinds = self._kinds_in_shards()
        found: Dict[Family, Set[Tuple[str, str]]] = {}
        for each in self._all_gather.objects([[*family, of_family] for family, of_family in kinds.items()]):
            for layer, family, of_family in each:
                found.setdefault((layer, family), set()).update((key, dtype) for key, dtype in of_family)
        self._kinds = {family: sorted(of_family) for family, of_family in found.items()}
        result: Holdings = self._all_gather.together(self._find)
        return result

    def unregistered(self) -> List[str]:
        """Names of state in shards that came after `find`."""
        return unknown_kinds(self._kinds_in_shards(), self._kinds)

    def not_as_they_are(self) -> Set[Family]:
        """Families that the client does not move as the model and the optimizer hold them."""
        return self.in_shards | {(layer.index, family) for layer, family in self._families() if layer.is_buffered(family)}

    def _find(self) -> Holdings:
        found = Holdings(self._groups)
        for layer, family in self._families():
            if (layer.index, family) in self.in_shards:
                self._add_in_shards(found, layer, family)
            else:
                self._add_whole(found, layer, family)
        return found

    def _add_whole(self, found: Holdings, layer: MoeLayer, family: str) -> None:
        masters = None
        if not layer.is_buffered(family):
            found.tensors.append(_weights(layer, family))
        if trained(layer, family):
            from_masters = layer.is_buffered(family) and self._state.has_masters(layer.families[family])
            tensors = self._state.tensors(layer, family, "weight" if from_masters else "state")
            found.tensors += tensors
            if from_masters:
                masters = next(each.rows for each in tensors if each.name.endswith(".master"))
        if layer.is_buffered(family):
            found.buffered.append(_buffered(layer, family, masters))

    def _add_in_shards(self, found: Holdings, layer: MoeLayer, family: str) -> None:
        weights: Any = _buffered(layer, family) if layer.is_buffered(family) else _weights(layer, family)
        (found.buffered if layer.is_buffered(family) else found.tensors).append(weights)
        if self._late:
            found.late.append((weights.rows, self._state.late_weights(layer, family)))
        found.shards += [self._state.shards(layer, family, key, dtype)
                         for key, dtype in self._kinds.get((layer.index, family), ())]

    def _families(self) -> Iterator[Tuple[MoeLayer, str]]:
        return ((layer, family) for layer in self._layers for family in layer.families)

    def _kinds_in_shards(self) -> Dict[Family, List[Tuple[str, str]]]:
        return {(layer.index, family): self._state.kinds(layer, family) for layer, family in self._families()
                if (layer.index, family) in self.in_shards}


def _weights(layer: MoeLayer, family: str) -> ExpertTensor:
    return ExpertTensor(f"layers.{layer.index}.{family}", layer.index, "weight",
                        [Piece(each) for each in layer.families[family]], layer.num_local_slots)


def _buffered(layer: MoeLayer, family: str, masters: Any = None) -> BufferedWeights:
    return BufferedWeights(f"layers.{layer.index}.{family}", layer.index, layer.families[family], masters)
