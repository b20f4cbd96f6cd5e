"""Which slot holds which expert, as this example sees it, and how even that makes the ranks' work."""

from __future__ import annotations

from typing import Optional

import numpy as np


def slot_bounds(num_slots: int, num_ranks: int) -> list[int]:
    """The slots of rank r are bounds[r] .. bounds[r + 1] - 1; the first num_slots % num_ranks ranks hold one more."""
    least, more = divmod(num_slots, num_ranks)
    return [rank * least + min(rank, more) for rank in range(num_ranks + 1)]


class Placement:
    """An immutable placement of the experts of all layers.

    physical_to_logical_map: int [layers, slots], the expert in each slot; -1 in a slot that is not in use.
    logical_to_physical_map: int [layers, experts, replicas], -1 padded, the slots of an expert with its primary first;
        without it an expert's slots count in rising order.
    logical_replica_count: int [layers, experts].
    errors: ValueError naming layer and expert or slot, for an expert without a slot or a slot with an unknown one.
    """

    def __init__(self, physical_to_logical_map: np.ndarray, num_experts: int, num_ranks: int,
                 logical_to_physical_map: Optional[np.ndarray] = None, version: int = 0) -> None:
        self.physical_to_logical_map = np.array(physical_to_logical_map, dtype=np.int64)
        self.num_layers, self.num_slots = self.physical_to_logical_map.shape
        self.num_experts = num_experts
        self.version = version
        self.bounds = slot_bounds(self.num_slots, num_ranks)
        found = [self._replicas_of_layer(layer, logical_to_physical_map) for layer in range(self.num_layers)]
        self.logical_replica_count = np.array([[len(slots) for slots in layer] for layer in found])
        most = self.logical_replica_count.max()
        self.logical_to_physical_map = np.array([[slots + [-1] * (most - len(slots)) for slots in layer] for layer in found])

    @staticmethod
    def static(num_layers: int, num_experts: int, num_slots: int, num_ranks: int) -> Placement:
        """The layout before any decision: slot s holds expert s % num_experts."""
        row = np.arange(num_slots) % num_experts
        return Placement(np.tile(row, (num_layers, 1)), num_experts, num_ranks)

    def replicas(self, layer: int, expert: int) -> list[int]:
        """The slots of an expert, its primary first."""
        return self.logical_to_physical_map[layer, expert, :self.logical_replica_count[layer, expert]].tolist()

    def local_slots(self, rank: int) -> range:
        return range(self.bounds[rank], self.bounds[rank + 1])

    def _replicas_of_layer(self, layer: int, given: Optional[np.ndarray]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(self.num_experts)]
        for slot, expert in enumerate(self.physical_to_logical_map[layer]):
            if not -1 <= expert < self.num_experts:
                raise ValueError(f"layer {layer}: slot {slot} holds expert {expert}, of {self.num_experts}")
            if expert >= 0:
                found[expert].append(slot)
        for expert, slots in enumerate(found):
            if not slots:
                raise ValueError(f"layer {layer}: no slot holds expert {expert}")
            if given is not None:
                order = [int(slot) for slot in given[layer][expert] if slot >= 0]
                if sorted(order) != slots:
                    raise ValueError(f"layer {layer}: expert {expert} is in slots {slots}, "
                                     f"but logical_to_physical_map has {order}")
                found[expert] = order
        return found


def slot_tokens_if_split_equally(placement: Placement, counts: np.ndarray) -> np.ndarray:
    """The tokens of each slot when an expert's are split equally over its replicas.

    counts: [layers, experts], tokens. returns: float [layers, slots], tokens.
    """
    tokens = np.zeros((placement.num_layers, placement.num_slots))
    for layer in range(placement.num_layers):
        for expert in range(placement.num_experts):
            slots = placement.replicas(layer, expert)
            tokens[layer, slots] = counts[layer, expert] / len(slots)
    return tokens


def rank_tokens(slot_tokens: np.ndarray, num_ranks: int) -> np.ndarray:
    """slot_tokens: [layers, slots]. returns: [layers, ranks], the tokens of each rank's slots."""
    bounds = slot_bounds(slot_tokens.shape[1], num_ranks)
    return np.stack([slot_tokens[:, bounds[rank]:bounds[rank + 1]].sum(axis=1) for rank in range(num_ranks)], axis=1)


def balancedness(slot_tokens: np.ndarray, num_ranks: int) -> np.ndarray:
    """Mean / max tokens of a rank, for each layer: 1 is best, 1 / num_ranks is worst; 1 for a layer without tokens.

    slot_tokens: [layers, slots], tokens. returns: float [layers].
    """
    ranks = rank_tokens(slot_tokens, num_ranks)
    most = ranks.max(axis=1)
    return np.divide(ranks.mean(axis=1), most, out=np.ones(len(most)), where=most > 0)
