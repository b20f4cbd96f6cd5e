"""Which slot a token goes to when its expert is in several."""

from __future__ import annotations

from typing import Callable

import numpy as np
import torch

from collectives import Ranks
from experts import count
from placement import Placement

# As Balancer.route_split: (layer, this rank's choices, every rank's counts) -> the slots of the choices.
RouteSplit = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


class RouteTable:
    """Where one rank sends the tokens of one layer: to replicas of its own where it has any, else to all of them.

    candidates: int64 [experts, most], slots; num_candidates: int64 [experts].
    """

    def __init__(self, placement: Placement, layer: int, rank: int, device: torch.device) -> None:
        local = placement.local_slots(rank)
        rows = []
        for expert in range(placement.num_experts):
            slots = placement.replicas(layer, expert)
            rows.append([slot for slot in slots if slot in local] or slots)
        most = max(map(len, rows))
        padded = np.array([row + row[:1] * (most - len(row)) for row in rows])
        self.candidates = torch.from_numpy(padded).to(device)
        self.num_candidates = torch.tensor([len(row) for row in rows], device=device)

    def slots(self, experts: torch.Tensor, first_token: int) -> torch.Tensor:
        """The slot of each choice of the router; a token's number in the global batch picks the replica.

        experts: int64 [tokens, top_k]. returns: int64 [tokens, top_k].
        """
        tokens = torch.arange(first_token, first_token + len(experts), device=experts.device).unsqueeze(1)
        return self.candidates[experts, tokens % self.num_candidates[experts]]


class BatchSplit:
    """Splits each expert's tokens over its replicas exactly, so that the fullest rank of this batch has the fewest."""

    def __init__(self, layer: int, num_experts: int, ranks: Ranks, split: RouteSplit) -> None:
        self._layer, self._num_experts, self._ranks, self._split = layer, num_experts, ranks, split

    def slots(self, experts: torch.Tensor, first_token: int) -> torch.Tensor:
        """As RouteTable.slots; which of an expert's tokens go where depends on their order alone. Collective: the ranks
        tell each other their counts, and then compute the same split."""
        counts = self._ranks.gather(count(experts.flatten(), self._num_experts))
        return self._split(self._layer, experts, torch.stack(counts))
