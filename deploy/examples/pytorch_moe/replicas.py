"""Experts in several slots: which of them a token goes to, and how they stay one expert in training."""

from __future__ import annotations

from typing import Sequence

import numpy as np
import torch

from collectives import Ranks
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


# A copy of one slot's row into another slot of the layer: (from, to).
Transfer = tuple[int, int]


def carry_rows(ranks: Ranks, placement: Placement, rows: torch.Tensor, transfers: Sequence[Transfer]) -> torch.Tensor:
    """The rows that arrive here when every rank sends what the transfers say. Collective; equal transfers on all ranks.

    rows: [local slots, elements]. returns: [n, elements], for the n transfers that end on this rank, in their order.
    """
    first = placement.bounds[ranks.rank]
    sent: list[list[int]] = [[] for _ in range(ranks.world_size)]
    received: list[list[int]] = [[] for _ in range(ranks.world_size)]
    num_received = 0
    for source, target in transfers:
        sender, receiver = placement.rank_of(source), placement.rank_of(target)
        if sender == ranks.rank:
            sent[receiver].append(source - first)
        if receiver == ranks.rank:
            received[sender].append(num_received)
            num_received += 1
    leaving = torch.tensor(sum(sent, []), dtype=torch.int64, device=rows.device)
    arrived = ranks.all_to_all(rows[leaving], [len(each) for each in sent], [len(each) for each in received])
    ordered = torch.empty_like(arrived)
    ordered[torch.tensor(sum(received, []), dtype=torch.int64, device=rows.device)] = arrived
    return ordered


def _to_primaries(placement: Placement, layer: int) -> list[Transfer]:
    """One transfer for every replica that is not a primary: experts rising, replicas in their order."""
    return [(slot, slots[0]) for slots in (placement.replicas(layer, expert) for expert in range(placement.num_experts))
            for slot in slots[1:]]


def sum_at_primaries(ranks: Ranks, placement: Placement, layer: int, rows: torch.Tensor) -> None:
    """Adds to each primary's row those of the other replicas, in the order of replicas, in place. Collective.

    rows: [local slots, elements], e.g. gradients of the tokens that each replica got.
    """
    transfers = _to_primaries(placement, layer)
    arrived = carry_rows(ranks, placement, rows, transfers)
    here = [target for _, target in transfers if placement.rank_of(target) == ranks.rank]
    for target, row in zip(here, arrived):
        rows[target - placement.bounds[ranks.rank]] += row


def copy_from_primaries(ranks: Ranks, placement: Placement, layer: int, rows: torch.Tensor) -> None:
    """Overwrites the rows of all other replicas with their primary's, in place. Collective.

    rows: [local slots, elements].
    """
    transfers = [(primary, slot) for slot, primary in _to_primaries(placement, layer)]
    arrived = carry_rows(ranks, placement, rows, transfers)
    here = [target for _, target in transfers if placement.rank_of(target) == ranks.rank]
    for target, row in zip(here, arrived):
        rows[target - placement.bounds[ranks.rank]] = row
