"""The experts of one layer on this rank: their memory, slot by slot, and the way of tokens to them and back.

What an expert computes depends on its own rows and on its tokens in their order, and on nothing else: each expert has
its own matrix products, its tokens are ordered by source rank and then by token, and its gradient is a buffer of its
own. So it computes the same bits in any slot of any rank.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional

from collectives import Ranks


@dataclass(frozen=True)
class ExpertShape:
    width: int
    hidden: int

    def tensors(self) -> dict[str, tuple[int, int]]:
        """The matrices of an expert: name and shape [out, in]."""
        return {"gate": (self.hidden, self.width), "up": (self.hidden, self.width), "down": (self.width, self.hidden)}


def initial_matrix(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A matrix [out, in] before step 0, float64 on the host: a function of seed and name, whoever holds it."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    return torch.randn(shape, generator=generator, dtype=torch.float64) * shape[-1] ** -0.5


class ExpertSlots(nn.Module):
    """The local slots of one layer.

    Each tensor is stacked, [local slots, out, in]: slot i is row i, which a migration overwrites in place. Autograd
    sees one leaf for each slot and tensor, a view of its row, whose gradient is a view of `gradients`.
    gradients: [local slots, elements], the tensors of an expert one behind the other.
    """

    def __init__(self, layer: int, num_local_slots: int, shape: ExpertShape, dtype: torch.dtype,
                 device: torch.device) -> None:
        super().__init__()
        self.layer = layer
        self.num_local_slots = num_local_slots
        self.shapes = shape.tensors()
        num_elements = sum(rows * columns for rows, columns in self.shapes.values())
        self.gradients = torch.zeros(num_local_slots, num_elements, dtype=dtype, device=device)
        for name, matrix in self.shapes.items():
            stacked = torch.zeros(num_local_slots, *matrix, dtype=dtype, device=device)
            self.register_parameter(name, nn.Parameter(stacked, requires_grad=False))
        self._leaves = [self._leaves_of_slot(slot) for slot in range(num_local_slots)]

    def stacked(self) -> dict[str, torch.Tensor]:
        """Name -> [local slots, out, in]."""
        return {name: self.get_parameter(name).data for name in self.shapes}

    def gradient_of_slot(self, slot: int) -> dict[str, torch.Tensor]:
        """Name -> [out, in], views of `gradients`."""
        sizes = [rows * columns for rows, columns in self.shapes.values()]
        pieces = self.gradients[slot].split(sizes)
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces)}

    def initialise(self, local_slot: int, expert: int, seed: int) -> None:
        """Puts the expert before step 0 into a slot."""
        for name, matrix in self.stacked().items():
            first = initial_matrix(seed, f"layers.{self.layer}.experts.{expert}.{name}", self.shapes[name])
            matrix[local_slot].copy_(first)

    def forward(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """rows: [n, width], ordered by local slot; counts: rows of each. returns: [n, width], in the same order."""
        # Also a slot without tokens has its (empty) part in the graph: else the backward pass of a rank without any
        # tokens would leave out the all-to-all that all others wait in.
        parts = [self._compute(slot, part) if len(part) else part for slot, part in enumerate(rows.split(counts))]
        return torch.cat(parts)

    def _compute(self, slot: int, tokens: torch.Tensor) -> torch.Tensor:
        leaf = self._leaves[slot]
        inner = functional.silu(tokens @ leaf["gate"].t()) * (tokens @ leaf["up"].t())
        return inner @ leaf["down"].t()

    def _leaves_of_slot(self, slot: int) -> dict[str, torch.Tensor]:
        gradients = self.gradient_of_slot(slot)
        leaves = {}
        for name, matrix in self.stacked().items():
            leaves[name] = matrix[slot].detach().requires_grad_()
            leaves[name].grad = gradients[name]  # filled in place by every backward pass
        return leaves


def count(ids: torch.Tensor, num_ids: int) -> torch.Tensor:
    """How often each of 0..num_ids-1 is among `ids`, int64 [num_ids]. (torch.bincount is not deterministic on GPUs.)"""
    return torch.zeros(num_ids, dtype=torch.int64, device=ids.device).index_add_(0, ids, torch.ones_like(ids))


@dataclass(frozen=True)
class Dispatch:
    """How the choices of a layer's tokens travel in one step.

    by_slot: int64 [choices], this rank's choices in the order in which they leave: by slot, then token.
    sent, received: rows to and from each rank.
    by_source: int64 [received rows]: arrived row by_source[i] is row i in the order of the experts: by local slot, then
        source rank, then token.
    local_counts: rows of each local slot.
    slot_tokens: int64 [slots] on the host, tokens of every slot from all ranks.
    """
    by_slot: torch.Tensor
    sent: list[int]
    received: list[int]
    by_source: torch.Tensor
    local_counts: list[int]
    slot_tokens: torch.Tensor


def plan_dispatch(ranks: Ranks, slots: torch.Tensor, bounds: list[int]) -> Dispatch:
    """Agrees with all ranks on who sends how many rows. Collective.

    slots: int64 [choices], where each choice goes, choices ordered by token and top-k. bounds: the ranks' slots, as
    placement.slot_bounds.
    """
    counts = torch.stack(ranks.gather(count(slots, bounds[-1]))).cpu()  # [source ranks, slots]
    local = counts[:, bounds[ranks.rank]:bounds[ranks.rank + 1]]
    slot_of_arrival = torch.arange(local.shape[1]).repeat(ranks.world_size).repeat_interleave(local.flatten())
    by_rank = [counts[:, first:last].sum(dim=1) for first, last in zip(bounds, bounds[1:])]
    return Dispatch(by_slot=torch.sort(slots, stable=True).indices,
                    sent=[int(each[ranks.rank]) for each in by_rank],
                    received=by_rank[ranks.rank].tolist(),
                    by_source=torch.sort(slot_of_arrival, stable=True).indices.to(slots.device),
                    local_counts=local.sum(dim=0).tolist(),
                    slot_tokens=counts.sum(dim=0))


# How rows travel: those of tokens to those of slots, or back.
Way = Callable[[torch.Tensor], torch.Tensor]


def _carry_to_slots(ranks: Ranks, plan: Dispatch, rows: torch.Tensor) -> torch.Tensor:
    return ranks.all_to_all(rows[plan.by_slot], plan.sent, plan.received)[plan.by_source]


def _carry_to_tokens(ranks: Ranks, plan: Dispatch, rows: torch.Tensor) -> torch.Tensor:
    leaving = torch.empty_like(rows)
    leaving[plan.by_source] = rows
    arrived = ranks.all_to_all(leaving, plan.received, plan.sent)
    ordered = torch.empty_like(arrived)
    ordered[plan.by_slot] = arrived
    return ordered


class _ThereAndBack(torch.autograd.Function):
    """there(rows); gradients go through back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, there: Way, back: Way) -> torch.Tensor:
        ctx.back = back
        return there(rows)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        return ctx.back(gradient.contiguous()), None, None


def to_slots(rows: torch.Tensor, ranks: Ranks, plan: Dispatch) -> torch.Tensor:
    """Rows [choices, width] of this rank's tokens to rows [n, width] of its slots. Collective, and so is its backward."""
    return _ThereAndBack.apply(rows, partial(_carry_to_slots, ranks, plan), partial(_carry_to_tokens, ranks, plan))


def to_tokens(rows: torch.Tensor, ranks: Ranks, plan: Dispatch) -> torch.Tensor:
    """Rows [n, width] of this rank's slots to rows [choices, width] of its tokens. Collective, and so is its backward."""
    return _ThereAndBack.apply(rows, partial(_carry_to_tokens, ranks, plan), partial(_carry_to_slots, ranks, plan))
