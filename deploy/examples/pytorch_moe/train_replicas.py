#!/usr/bin/env python3
"""The training of train.py with hot experts in several slots, by eplb.Client. It runs with a daemon and without one.

    train_replicas.py --slots 20                             four slots more than experts; the first placement stays
    train_replicas.py --slots 20 --endpoint 127.0.0.1:29610  the daemon decides which experts have replicas

Four things are new against train.py. Memory is laid out by slots. Gradients of an expert's replicas are summed in each step.
With --state with_primary the other replicas get their weights from the primary. Tokens are divided over the replicas.
Losses are those of train.py but for rounding, because the gradient of an expert is a sum of several parts.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import eplb
import torch
from torch import nn
from torch.nn import functional

import train

MOMENTS = ("exp_avg", "exp_avg_sq")


class ExpertSlots(nn.Module):
    """The experts in this rank's slots: each tensor is a stack [local slots, out, in], whose row i is in local slot i."""

    def __init__(self, layer: int, experts: list[int], args: argparse.Namespace) -> None:
        super().__init__()
        # A slot that is not in use holds -1. It gets no tokens, so that any weights serve.
        single = [train.Expert(layer, max(expert, 0), args).state_dict() for expert in experts]
        for name in ("open", "up", "down"):
            self.register_parameter(name, nn.Parameter(torch.stack([each[f"{name}.weight"] for each in single])))

    def forward(self, rows_of_slots: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [(functional.silu(rows @ first.t()) * (rows @ up.t())) @ down.t() for rows, first, up, down in
                zip(rows_of_slots, self.open.unbind(), self.up.unbind(), self.down.unbind())]


class ReplicatedExperts(train.MixtureOfExperts):
    """A mixture of experts whose experts are in one or several slots each."""

    def __init__(self, layer: int, args: argparse.Namespace, client: eplb.Client) -> None:
        self._client, self._divide_exactly = client, args.split == "batch"
        super().__init__(layer, args)

    def make_experts(self, args: argparse.Namespace) -> nn.Module:
        return ExpertSlots(self.layer, self._client.placement.local_experts(self.layer).tolist(), args)

    def compute(self, rows_of_slots: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return self.experts(rows_of_slots)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = self.gate(x)
        if not self._divide_exactly:
            # A replica on this rank if there is one, otherwise one that the token's number chooses.
            return weights, self._client.route_tokens(self.layer, experts, first_token=self.rank * len(experts))
        # The fullest rank gets as few tokens of this batch as possible. On a GPU these calls only launch work.
        row = self._client.count_for(self.layer, experts)
        return weights, self._client.route_from(self.layer, train.all_gather(row))


class Experts:
    """Rows of a model that EPLB moves, and the sums that keep an expert one expert. All calls are collective."""

    def __init__(self, client: eplb.Client, model: train.LanguageModel, optimizer: torch.optim.Optimizer) -> None:
        self._client, self._model = client, model
        self._stacks = {moe.layer: list(moe.experts.parameters()) for moe in model.moes}
        for moe in model.moes:
            for name, stack in moe.experts.named_parameters():
                client.register(stack, name=f"layers.{moe.layer}.{name}", layer=moe.layer)
                for moment in MOMENTS:
                    client.register(optimizer.state[stack][moment], name=f"layers.{moe.layer}.{name}.{moment}",
                                    layer=moe.layer, role="state")
        client.finish_registration()

    def reduce_gradients(self) -> None:
        """Between backward and the optimizer: the primary gets the sum, and with --state every_replica all replicas do."""
        self._client.reduce_gradients({layer: [each.grad for each in stacks] for layer, stacks in self._stacks.items()})

    def refresh_weights(self) -> None:
        """After the optimizer, with --state with_primary: the primary's weights overwrite those of the other replicas."""
        self._client.broadcast_weights({layer: [each.data for each in stacks] for layer, stacks in self._stacks.items()})

    def check(self) -> None:
        """Moves all experts by one slot and back. errors: eplb.InvalidArgument if one then computes something else."""
        rows = torch.ones(1, self._model.head.in_features, dtype=self._model.head.weight.dtype)

        def probe(layer: int, slot: int) -> torch.Tensor:
            slots = self._model.moes[layer].experts
            return slots([rows if each == slot else rows[:0] for each in range(len(slots.open))])[slot]

        self._client.check_experts(probe)


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW with its state, which otherwise exists only after its first step: EPLB registers it before that."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.99), foreach=False)
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **{name: torch.zeros_like(parameter) for name in MOMENTS}}
    return optimizer


def dense_tensors(model: train.LanguageModel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Returns the tensors of a checkpoint besides the experts."""
    state = {f"{name}.{moment}": optimizer.state[each][moment] for name, each in model.dense.items() for moment in MOMENTS}
    return {**{name: each.detach() for name, each in model.dense.items()}, **state}


def load(args: argparse.Namespace, client: eplb.Client, model: train.LanguageModel, optimizer: torch.optim.Optimizer) -> None:
    eplb.checkpoint.load(args.resume, client, dense=dense_tensors(model, optimizer))
    for state in optimizer.state.values():
        state["step"].fill_(args.first_step)


def train_rank(args: argparse.Namespace) -> None:
    """The training on one rank."""
    args.first_step = eplb.checkpoint.read_fields(args.resume)["fields"]["step"] if args.resume else 0
    text, verified = train.read_text(args), False
    with eplb.Client.connect(
            all_gather=eplb.torch_all_gather(), endpoint=args.endpoint or None, job=args.job, num_layers=args.layers,
            num_experts=args.experts, num_slots=args.slots, first_step=args.first_step, report_every=args.report_every,
            state_placement=args.state, split=args.split) as client:
        model = train.LanguageModel(args, lambda layer, args: ReplicatedExperts(layer, args, client))
        model = model.to(args.device, getattr(torch, args.dtype))
        optimizer = make_optimizer(model, args)
        experts = Experts(client, model, optimizer)
        if args.split == "batch":
            client.prepare_split(max_tokens=args.sequences // args.ranks * args.length, top_k=args.top_k)
        if args.resume:
            load(args, client, model, optimizer)
        for step in range(args.first_step, args.steps):
            begin = time.monotonic()
            loss = train.backward(model, train.batch_of(text, step, args), args)
            experts.reduce_gradients()
            optimizer.step()
            if args.state == "with_primary":
                experts.refresh_weights()
            optimizer.zero_grad()
            for moe in model.moes:
                client.record(moe.layer, moe.gate.counts)
            boundary = client.step_boundary(step)
            if boundary.switched and not verified:
                experts.check()
                verified = True
            train.report(model, step, loss, time.monotonic() - begin, boundary, args)
            if args.checkpoint_every and (step + 1) % args.checkpoint_every == 0:
                # EPLB writes the experts in their own order, so that any number of slots and ranks can load them.
                eplb.checkpoint.save(Path(args.checkpoint_dir) / f"step-{step + 1:06d}", client, fields={"step": step + 1},
                                     dense=dense_tensors(model, optimizer))


if __name__ == "__main__":
    parser = train.make_parser()
    parser.add_argument("--slots", type=int, default=20, help="slots of a layer; those beyond the experts hold replicas")
    parser.add_argument("--state", choices=("every_replica", "with_primary"), default="every_replica",
                        help="which replicas of an expert the optimizer updates")
    parser.add_argument("--split", choices=("equal", "batch"), default="equal",
                        help="shares of an expert's replicas: equal, or the exact split of each batch")
    train.main(parser, train_rank)
