"""A small transformer language model whose feed-forward layers are mixtures of experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
from torch.nn import functional

from collectives import Ranks
from data import VOCABULARY, Batch
from experts import ExpertShape, ExpertSlots, count, initial_matrix, plan_dispatch, to_slots, to_tokens
from placement import Placement
from routing import BatchSplit, RouteSplit, RouteTable


@dataclass(frozen=True)
class ModelShape:
    """length: tokens of a sequence, the most that positions are known for. dtype: float32 or float64."""
    layers: int
    experts: int
    top_k: int
    width: int
    hidden: int
    heads: int
    length: int
    dtype: str

    def check(self) -> None:
        """errors: ValueError naming the field."""
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k is {self.top_k}, of {self.experts} experts")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype is {self.dtype}, not float32 or float64")

    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


@dataclass(frozen=True)
class LayerLoad:
    """Tokens of one layer in one step, before anything is dropped (nothing is), once for each top-k choice.

    counts: int64 [experts], of this rank's router. total_counts: of all ranks'. slot_tokens: int64 [slots], likewise.
    All are on the host.
    """
    counts: torch.Tensor
    total_counts: torch.Tensor
    slot_tokens: torch.Tensor


class Attention(nn.Module):
    """Causal self-attention: [sequences, length, width] -> the same."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.inward = nn.Parameter(torch.empty(3 * shape.width, shape.width))
        self.outward = nn.Parameter(torch.empty(shape.width, shape.width))
        later = torch.full((shape.length, shape.length), -math.inf).triu(diagonal=1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequences, length, width = x.shape
        query, key, value = (part.view(sequences, length, self.heads, -1).transpose(1, 2)
                             for part in (x @ self.inward.t()).split(width, dim=-1))
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads) + self.later[:length, :length]
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(sequences, length, width)
        return mixed @ self.outward.t()


class Gate(nn.Module):
    """[tokens, width] -> gates and experts [tokens, top_k], the best first. affinity: [tokens, experts], of the last call.

    Who numbers slots instead of experts changes what it returns, not what it computes."""

    def __init__(self, router: nn.Parameter, top_k: int) -> None:
        super().__init__()
        self.router, self.top_k = router, top_k

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.affinity = (x @ self.router.t()).softmax(dim=-1)
        gates, experts = self.affinity.topk(self.top_k, dim=-1)
        return gates / gates.sum(dim=-1, keepdim=True), experts


class MixtureOfExperts(nn.Module):
    """Sends each token to its top-k experts, wherever they are, and adds up what they return, the best choice first."""

    def __init__(self, layer: int, shape: ModelShape, num_local_slots: int, ranks: Ranks) -> None:
        super().__init__()
        self.layer, self.top_k, self.num_experts, self.ranks = layer, shape.top_k, shape.experts, ranks
        self.router = nn.Parameter(torch.empty(shape.experts, shape.width))
        self.gate = Gate(self.router, shape.top_k)
        self.slots = ExpertSlots(layer, num_local_slots, ExpertShape(shape.width, shape.hidden), shape.torch_dtype(),
                                 ranks.device)
        self.load: Optional[LayerLoad] = None

    def set_placement(self, placement: Placement, split: Optional[RouteSplit] = None) -> None:
        """From the next forward pass on, tokens go where `placement` says; the experts are there already.

        split: of a batch over the replicas; None: in equal shares."""
        self.routing = (RouteTable(placement, self.layer, self.ranks.rank, self.ranks.device) if split is None else
                        BatchSplit(self.layer, self.num_experts, self.ranks, split))
        self.bounds = placement.bounds
        self.follow(placement)

    def follow(self, placement: Placement) -> None:
        """As set_placement, where the router gives slots already: only what each slot holds is new."""
        self.expert_of_slot = torch.from_numpy(placement.physical_to_logical_map[self.layer])

    def forward(self, x: torch.Tensor, first_token: int, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [tokens, width]; first_token, num_tokens: where they begin in the global batch, and its tokens.

        returns: [tokens, width], and this rank's part of the auxiliary loss. Collective.
        """
        gates, experts = self.gate(x)
        plan = plan_dispatch(self.ranks, self.routing.slots(experts, first_token).flatten(), self.bounds)
        self.load = self._load(experts, plan.slot_tokens)
        rows = x.unsqueeze(1).expand(-1, self.top_k, -1).reshape(-1, x.shape[1])
        computed = self.slots(to_slots(rows, self.ranks, plan), plan.local_counts)
        returned = to_tokens(computed, self.ranks, plan).view(len(x), self.top_k, -1)
        combined = gates[:, 0:1] * returned[:, 0]
        for choice in range(1, self.top_k):
            combined = combined + gates[:, choice:choice + 1] * returned[:, choice]
        return combined, self._auxiliary_loss(self.gate.affinity, self.load.total_counts, num_tokens)

    def _load(self, experts: torch.Tensor, slot_tokens: torch.Tensor) -> LayerLoad:
        counts = count(experts.flatten(), self.num_experts)
        in_use = self.expert_of_slot >= 0
        total = torch.zeros(self.num_experts, dtype=torch.int64)
        total.index_add_(0, self.expert_of_slot[in_use], slot_tokens[in_use])
        return LayerLoad(counts.cpu(), total, slot_tokens)

    def _auxiliary_loss(self, affinity: torch.Tensor, total_counts: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """This rank's part of E * sum over experts of (share of choices) * (mean affinity), which is 1 when even. The
        shares are those of the global batch and of logical experts, so neither ranks nor replicas change it."""
        shares = total_counts.to(affinity) / (num_tokens * self.top_k)
        return self.num_experts * (affinity.sum(dim=0) / num_tokens) @ shares


class Block(nn.Module):
    def __init__(self, layer: int, shape: ModelShape, num_local_slots: int, ranks: Ranks) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.second_norm = nn.LayerNorm(shape.width)
        self.experts = MixtureOfExperts(layer, shape, num_local_slots, ranks)

    def forward(self, x: torch.Tensor, first_token: int, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.attention(self.first_norm(x))
        rows = self.second_norm(x).view(-1, x.shape[-1])
        added, auxiliary = self.experts(rows, first_token, num_tokens)
        return x + added.view(x.shape), auxiliary


class LanguageModel(nn.Module):
    """The whole model: all of its dense parameters on every rank, and this rank's slots of experts.

    split: how an expert's tokens part over its replicas, batch by batch; None: in equal shares."""

    def __init__(self, shape: ModelShape, placement: Placement, ranks: Ranks, seed: int,
                 split: Optional[RouteSplit] = None) -> None:
        super().__init__()
        shape.check()
        self.shape, self.split = shape, split
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, shape.width))
        self.positions = nn.Parameter(torch.empty(shape.length, shape.width))
        num_local_slots = len(placement.local_slots(ranks.rank))
        self.blocks = nn.ModuleList(Block(layer, shape, num_local_slots, ranks) for layer in range(shape.layers))
        self.last_norm = nn.LayerNorm(shape.width)
        self.head = nn.Parameter(torch.empty(VOCABULARY, shape.width))
        self.to(dtype=shape.torch_dtype(), device=ranks.device)  # the experts are there already and do not move
        self._initialise_dense(seed)
        self._initialise_experts(seed, placement, ranks.rank)
        self.set_placement(placement)

    def layers(self) -> list[MixtureOfExperts]:
        return [block.experts for block in self.blocks]

    def dense(self) -> dict[str, nn.Parameter]:
        """The parameters that all ranks hold. Those of the experts are trained slot by slot (ExpertSlots)."""
        return {name: each for name, each in self.named_parameters() if each.requires_grad}

    def set_placement(self, placement: Placement) -> None:
        for layer in self.layers():
            layer.set_placement(placement, self.split)

    def follow(self, placement: Placement) -> None:
        for layer in self.layers():
            layer.follow(placement)

    def forward(self, batch: Batch, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """num_tokens: of the global batch. returns: this rank's parts of the mean loss of a token in nats, and of the
        mean auxiliary loss of a layer; over all ranks they add up. Collective."""
        x = functional.embedding(batch.inputs, self.embedding) + self.positions[:batch.inputs.shape[1]]
        auxiliary = x.new_zeros(())
        for block in self.blocks:
            x, part = block(x, batch.first_token, num_tokens)
            auxiliary = auxiliary + part / len(self.blocks)
        logits = self.last_norm(x) @ self.head.t()
        loss = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
        return loss / num_tokens, auxiliary

    def _initialise_dense(self, seed: int) -> None:
        with torch.no_grad():
            for name, parameter in self.dense().items():
                if "norm" not in name:  # torch sets those to 1 and 0
                    parameter.copy_(initial_matrix(seed, name, tuple(parameter.shape)))

    def _initialise_experts(self, seed: int, placement: Placement, rank: int) -> None:
        for layer in self.layers():
            for local_slot, slot in enumerate(placement.local_slots(rank)):
                expert = int(placement.physical_to_logical_map[layer.layer, slot])
                if expert >= 0:
                    layer.slots.initialise(local_slot, expert, seed)
