"""Which slot a token goes to when its expert is in several."""

from __future__ import annotations

import numpy as np
import torch

from placement import Placement


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
