#!/usr/bin/env python3
"""Trains a mixture-of-experts language model with expert parallelism; train.py --help lists the flags."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import checkpoint
import plot
from balancer import AttachedBalancer, Balancer, Boundary, EplbBalancer, ExpertTensor, JobShape, NoBalancer
from collectives import Ranks, join, leave
from data import Batches, read_text
from launch import launch
from model import LanguageModel
from optimizer import Adam
from placement import Placement, balancedness, rank_tokens, slot_tokens_if_split_equally
from settings import Settings, parse


class Training:
    """The state of one rank: model, optimizer, placement and the step that comes next. All calls are collective."""

    def __init__(self, settings: Settings, ranks: Ranks, balancer: Balancer, first_step: int = 0) -> None:
        self.settings, self.ranks, self.balancer = settings, ranks, balancer
        self.next_step = first_step
        num_slots = settings.experts + settings.redundant
        self.batches = Batches(read_text(settings.text), settings.seed, settings.sequences, settings.length)
        self.placement = balancer.connect(
            JobShape(settings.layers, settings.experts, num_slots, first_step, not settings.state_in_primary), ranks)
        self.static = Placement.static(settings.layers, settings.experts, num_slots, ranks.world_size)
        self.model = LanguageModel(settings.model_shape(), self.placement, ranks, settings.seed,
                                   balancer.route_split if settings.split == "batch" else None)
        self.optimizer = Adam(self.model, ranks, settings.adam_options(), balancer)
        attached = balancer.attach(self.model, self.optimizer)
        self._is_attached = attached is not None
        if attached is not None:
            self._follow(attached)
        else:
            balancer.register(self.expert_tensors())

    def expert_tensors(self) -> list[ExpertTensor]:
        """Everything that belongs to an expert and that outlives a step."""
        tensors = []
        for layer, slots in enumerate(self.optimizer.slots):
            for name, weights in slots.stacked().items():
                moments = self.optimizer.slot_moments[layer][name]
                full_name = f"layers.{layer}.experts.{name}"
                tensors += [ExpertTensor(full_name, layer, "weight", weights),
                            ExpertTensor(f"{full_name}.first_moment", layer, "state", moments.first),
                            ExpertTensor(f"{full_name}.second_moment", layer, "state", moments.second)]
        return tensors

    def run_step(self) -> dict[str, Any]:
        """One optimizer step and the boundary after it. returns: its record, equal on all ranks but for times."""
        begin, step = time.monotonic(), self.next_step
        batch = self.batches.part(step, self.ranks.rank, self.ranks.world_size, self.ranks.device)
        loss, auxiliary = self.model(batch, self.settings.sequences * self.settings.length)
        (loss + self.settings.auxiliary_loss * auxiliary).backward()
        norm = self.optimizer.step(self.placement)
        losses = self.ranks.sum(torch.stack([loss.detach(), auxiliary.detach()]).double()).tolist()
        # first_step, last_step and load are a window as eplbctl reads it.
        record = {"step": step, "first_step": step, "last_step": step, "loss": losses[0], "auxiliary_loss": losses[1],
                  "gradient_norm": norm, **self._load_and_balancedness(), "version": self.placement.version}
        for layer in self.model.layers():
            self.balancer.record(layer.layer, layer.load.counts.numpy())
        boundary = self._boundary(step)
        self.next_step += 1
        record.update(switched=boundary.placement is not None, reason=boundary.reason,
                      boundary_seconds=boundary.pause_seconds, step_seconds=time.monotonic() - begin)
        return record

    def save(self, path: Path) -> None:
        dense = self._dense_tensors()
        checkpoint.save(path, {**self._fields(), "step": self.next_step}, dense, self.expert_tensors(), self.placement,
                        self.ranks)

    def load(self, path: Path) -> None:
        """errors: ValueError naming the field or tensor that does not fit, also a step other than the one to come."""
        fields = {**self._fields(), "step": self.next_step}
        checkpoint.load(path, fields, self._dense_tensors(), self.expert_tensors(), self.placement, self.ranks.rank)
        self.optimizer.num_updates = self.next_step

    def _boundary(self, step: int) -> Boundary:
        boundary = self.balancer.step_boundary(step)
        if boundary.placement is not None:
            self._follow(boundary.placement)
        return boundary

    def _follow(self, placement: Placement) -> None:
        self.placement = placement
        if self._is_attached:
            self.model.follow(placement)
        else:
            self.model.set_placement(placement)

    def _load_and_balancedness(self) -> dict[str, Any]:
        loads = [layer.load for layer in self.model.layers()]
        slot_tokens = torch.stack([load.slot_tokens for load in loads]).numpy()
        counts = torch.stack([load.total_counts for load in loads]).numpy()
        layers = balancedness(slot_tokens, self.ranks.world_size)
        static = balancedness(slot_tokens_if_split_equally(self.static, counts), self.ranks.world_size)
        equal = slot_tokens_if_split_equally(self.placement, counts)
        return {"load": counts.tolist(), "balancedness": layers.tolist(), "mean_balancedness": float(layers.mean()),
                "static_mean_balancedness": float(static.mean()),
                "fullest_rank_tokens": rank_tokens(slot_tokens, self.ranks.world_size).max(axis=1).tolist(),
                "fullest_rank_tokens_if_equal": rank_tokens(equal, self.ranks.world_size).max(axis=1).tolist()}

    def _fields(self) -> dict[str, Any]:
        """What a checkpoint and a run that goes on from it have in common."""
        shape = vars(self.settings.model_shape())
        return {**shape, "seed": self.settings.seed, "sequences": self.settings.sequences,
                "text_sha256": self.batches.digest}

    def _dense_tensors(self) -> dict[str, torch.Tensor]:
        tensors = dict(self.optimizer.dense)
        for name, moments in self.optimizer.dense_moments.items():
            tensors[f"{name}.first_moment"], tensors[f"{name}.second_moment"] = moments.first, moments.second
        return tensors


def run(settings: Settings, ranks: Ranks, balancer: Balancer) -> list[dict[str, Any]]:
    """Trains from the start, or from the checkpoint to resume, to the last step. Collective.

    returns: the record of each step. errors: ValueError for settings that do not fit; whatever the balancer raises.
    """
    first_step = checkpoint.step_of(Path(settings.resume)) if settings.resume else 0
    records: list[dict[str, Any]] = []
    log = open(settings.log_json, "w", encoding="utf-8") if settings.log_json and ranks.rank == 0 else None
    reason = "failed"
    try:
        training = Training(settings, ranks, balancer, first_step)
        if settings.resume:
            training.load(Path(settings.resume))
        while training.next_step < settings.steps:
            records.append(training.run_step())
            if log is not None:
                print(json.dumps(records[-1]), file=log, flush=True)
            if ranks.rank == 0:
                _say(records[-1], settings.steps)
            done = training.next_step
            if settings.checkpoint_every and (done % settings.checkpoint_every == 0 or done == settings.steps):
                training.save(checkpoint.path_of(settings.checkpoint_dir, done))
        reason = "finished"
        if settings.split == "batch" and ranks.rank == 0 and records:
            print(gain_of_split(records, ranks.world_size), flush=True)
    finally:
        balancer.close(reason)
        if log is not None:
            log.close()
    if settings.plot and ranks.rank == 0:
        plot.draw({settings.job: records}, settings.plot)
    return records


def gain_of_split(records: list[dict[str, Any]], num_ranks: int) -> str:
    """What the split of each batch gained over equal shares of the same tokens on the same placements, in one line."""
    ran, equal = (float(np.mean([record[name] for record in records]))
                  for name in ("fullest_rank_tokens", "fullest_rank_tokens_if_equal"))
    mean = float(np.mean([np.sum(record["load"], axis=1) for record in records])) / num_ranks
    return (f"split batch: the fullest rank had {ran:.1f} tokens a layer and step; with equal shares it would have had "
            f"{equal:.1f} ({equal / ran - 1:+.1%}), and the mean rank has {mean:.1f}")


def _say(record: dict[str, Any], steps: int) -> None:
    if record["switched"]:
        print(f"step {record['step']}: experts moved in {record['boundary_seconds'] * 1e3:.1f} ms: {record['reason']}")
    if record["step"] % 10 == 0 or record["step"] == steps - 1:
        print(f"step {record['step']:5d}  loss {record['loss']:.4f}  balancedness {record['mean_balancedness']:.3f} "
              f"(static {record['static_mean_balancedness']:.3f})  {record['step_seconds'] * 1e3:.0f} ms", flush=True)


def be_deterministic() -> None:
    """Makes torch choose kernels that repeat themselves to the bit, or fail. Before the first use of a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def train_rank(settings: Settings, balancer: Balancer) -> int:
    """All of one rank's work. returns: the exit status."""
    be_deterministic()
    try:
        try:
            ranks = join(settings.device, settings.backend)
        except RuntimeError as error:  # what torch says of a backend or a device that is not there
            raise ValueError(str(error)) from None
        run(settings, ranks, balancer)
    except (OSError, ValueError, *balancer.errors) as error:
        print(f"rank {os.environ.get('RANK', 0)}: {error}", file=sys.stderr)
        return 1
    leave(ranks)
    return 0


def train(settings: Settings, balancer: Balancer) -> int:
    """In this process if it is a rank already, else in settings.ranks new ones. returns: the exit status."""
    if "RANK" in os.environ or settings.ranks == 1:
        return train_rank(settings, balancer)
    return launch(lambda: train_rank(settings, balancer), settings.ranks)


def balancer_of(settings: Settings) -> Balancer:
    """Replicas and splits need EPLB's client, which without --eplb has no daemon and keeps the first placement."""
    if settings.eplb and settings.redundant == 0 and settings.split != "batch":
        return AttachedBalancer(settings.endpoint, settings.job, settings.report_every, settings.initial_placement)
    if settings.eplb:
        return EplbBalancer(settings.endpoint, settings.job, settings.report_every, settings.initial_placement,
                            settings.split)
    if not settings.needs_client():
        return NoBalancer()
    return EplbBalancer("", settings.job, settings.report_every, settings.initial_placement, settings.split)


def main() -> int:
    settings = parse()
    return train(settings, balancer_of(settings))


if __name__ == "__main__":
    sys.exit(main())
