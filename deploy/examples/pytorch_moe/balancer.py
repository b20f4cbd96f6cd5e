"""The one place where the balancer comes into the training: attach, step_boundary, close; and, where experts are in several
slots, connect, register, record, split, reduce_gradients and broadcast_weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Protocol

import numpy as np
import torch

from collectives import Ranks
from placement import Placement


@dataclass(frozen=True)
class JobShape:
    """What all ranks must agree on before there are weights. first_step: of the first step_boundary."""
    layers: int
    experts: int
    slots: int
    first_step: int
    state_in_every_replica: bool


@dataclass(frozen=True)
class ExpertTensor:
    """A stacked tensor [local slots, ...] of a layer, whose row i belongs to the expert in local slot i.

    role: "weight", which every replica holds, or "state" of the optimizer.
    """
    name: str
    layer: int
    role: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Boundary:
    """What happened between two steps. placement: the new one after a switch, else None. reason: why."""
    placement: Optional[Placement] = None
    reason: str = ""
    pause_seconds: float = 0.0


class Balancer(Protocol):
    """Of one rank; every call but record and route_split is collective.

    errors: the exceptions, beside OSError and ValueError, that tell a user in one line why the training ends.
    """
    errors: tuple[type[Exception], ...]

    def connect(self, shape: JobShape, ranks: Ranks) -> Placement:
        """Before there are weights. returns: the placement of the first step."""

    def register(self, tensors: list[ExpertTensor]) -> None:
        """All per-expert memory, once. Whoever migrates an expert moves these rows and nothing else."""

    def attach(self, model: torch.nn.Module, optimizer: Any) -> Optional[Placement]:
        """In the place of register: finds that memory by itself, and makes routers give slots. returns: the placement, if it
        does."""

    def record(self, layer: int, counts: np.ndarray) -> None:
        """counts: int64 [experts], tokens that this rank's router sent to each in the current step, before dropping."""

    def route_split(self, layer: int, experts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The slots of this rank's choices by the exact split of the batch. Not collective: every rank has all counts.

        experts: int64 [tokens, top_k], this rank's choices. counts: int64 [ranks, experts], of every rank. returns: as
        experts."""

    def reduce_gradients(self, rows: dict[int, torch.Tensor]) -> None:
        """rows: layer -> [local slots, ..]. Adds an expert's rows at its primary; all its replicas get the sum where
        the state is in every replica."""

    def broadcast_weights(self, rows: dict[int, list[torch.Tensor]]) -> None:
        """rows: layer -> tensors [local slots, ..]. Gives the primary's rows to all replicas of an expert."""

    def step_boundary(self, step: int) -> Boundary:
        """Once after each optimizer step, with rising step numbers. May overwrite the registered tensors in place."""

    def close(self, reason: str) -> None:
        """reason: "finished" is the normal end."""


class NoBalancer:
    """The static placement, for ever, of experts that are in one slot each."""
    errors: tuple[type[Exception], ...] = ()

    def connect(self, shape: JobShape, ranks: Ranks) -> Placement:
        return Placement.static(shape.layers, shape.experts, shape.slots, ranks.world_size)

    def register(self, tensors: list[ExpertTensor]) -> None:
        pass

    def attach(self, model: torch.nn.Module, optimizer: Any) -> Optional[Placement]:
        return None

    def record(self, layer: int, counts: np.ndarray) -> None:
        pass

    def route_split(self, layer: int, experts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return experts  # slot e holds expert e

    def reduce_gradients(self, rows: dict[int, torch.Tensor]) -> None:
        pass

    def broadcast_weights(self, rows: dict[int, list[torch.Tensor]]) -> None:
        pass

    def step_boundary(self, step: int) -> Boundary:
        return Boundary()

    def close(self, reason: str) -> None:
        pass


class AttachedBalancer(NoBalancer):
    """EPLB where each expert is in one slot: attached to model and optimizer, which it finds its way in by itself.

    endpoint, job, report_every, initial_placement: as of EplbBalancer.
    """

    def __init__(self, endpoint: str, job: str, report_every: int, initial_placement: str = "") -> None:
        # EPLB
        import eplb  # here, so that the example runs without the package when it runs without EPLB

        self.errors: tuple[type[Exception], ...] = (eplb.Error,)
        # end of EPLB
        self._eplb, self._attached = eplb, None
        self._options = {"endpoint": endpoint, "job": job, "report_every": report_every,
                         "initial_placement": initial_placement or None}

    def connect(self, shape: JobShape, ranks: Ranks) -> Placement:
        self._shape, self._num_ranks = shape, ranks.world_size
        return super().connect(shape, ranks)

    def attach(self, model: torch.nn.Module, optimizer: Any) -> Optional[Placement]:
        # EPLB
        self._attached = self._eplb.torch.attach(model, optimizer, experts="*.slots", router="gate",
                                                 first_step=self._shape.first_step, **self._options)
        # end of EPLB
        return self._placement()

    def step_boundary(self, step: int) -> Boundary:
        # EPLB
        result = self._attached.step_boundary(step)
        return Boundary(self._placement() if result.switched else None, result.reason, result.pause_seconds)
        # end of EPLB

    def close(self, reason: str) -> None:
        # EPLB
        if self._attached is not None:
            self._attached.close(reason)
        # end of EPLB

    def _placement(self) -> Placement:
        # EPLB
        now = self._attached.client.placement
        # end of EPLB
        return Placement(now.physical_to_logical_map, self._shape.experts, self._num_ranks, now.logical_to_physical_map,
                         now.version)


class EplbBalancer:
    """EPLB's client, for experts in several slots: the daemon at `endpoint` decides, the ranks vote, and the client moves the experts.

    endpoint: HOST:PORT or unix:PATH of eplbd; empty for a job without a daemon. job: its name there. report_every:
    steps of a load window. initial_placement: path of the first placement; empty: the daemon's, else static. split:
    equal, or batch: the daemon then plans for exact splits, and measures those that ran.
    """

    def __init__(self, endpoint: str, job: str, report_every: int, initial_placement: str = "",
                 split: str = "equal") -> None:
        import eplb  # here, so that the example runs without the package when it runs without EPLB

        self.errors: tuple[type[Exception], ...] = (eplb.Error,)
        self._eplb = eplb
        self._endpoint, self._job, self._report_every = endpoint, job, report_every
        self._initial_placement, self._split = initial_placement, split
        self._client: Any = None

    def connect(self, shape: JobShape, ranks: Ranks) -> Placement:
        self._ranks, self._experts = ranks, shape.experts
        self._client = self._eplb.Client.connect(
            job=self._job, endpoint=self._endpoint, rank=ranks.rank, world_size=ranks.world_size,
            num_layers=shape.layers, num_experts=shape.experts, num_slots=shape.slots, num_gpus=ranks.world_size,
            first_step=shape.first_step, report_every=self._report_every,
            initial_placement=self._initial_placement, split=self._split,
            state_placement="every_replica" if shape.state_in_every_replica else "with_primary",
            all_gather=self._eplb.torch_all_gather() if ranks.world_size > 1 else None)
        return self._placement()

    def register(self, tensors: list[ExpertTensor]) -> None:
        for each in tensors:
            self._client.register(each.tensor, name=each.name, layer=each.layer, role=each.role)
        self._client.finish_registration()

    def attach(self, model: torch.nn.Module, optimizer: Any) -> Optional[Placement]:
        return None

    def record(self, layer: int, counts: np.ndarray) -> None:
        self._client.record(layer, counts)

    def route_split(self, layer: int, experts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        split = self._client.split(layer, counts)
        self._client.record_split(layer, split.quotas)
        return self._client.route_tokens(layer, experts, split=split)

    def reduce_gradients(self, rows: dict[int, torch.Tensor]) -> None:
        self._client.reduce_gradients(rows)

    def broadcast_weights(self, rows: dict[int, list[torch.Tensor]]) -> None:
        self._client.broadcast_weights(rows)

    def step_boundary(self, step: int) -> Boundary:
        result = self._client.step_boundary(step)
        placement = self._placement() if result.switched else None
        return Boundary(placement, result.reason, result.pause_seconds)

    def close(self, reason: str) -> None:
        if self._client is not None:
            self._client.close(reason)

    def _placement(self) -> Placement:
        now = self._client.placement
        return Placement(now.physical_to_logical_map, self._experts, self._ranks.world_size,
                         now.logical_to_physical_map, now.version)
