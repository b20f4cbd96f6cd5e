"""What the ranks tell each other, with every sum in the order of ranks: equal input gives equal bits.

An all-reduce is not used for values that reach the parameters: libraries choose the order of its sum by themselves.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Sequence

import torch
import torch.distributed as dist

# No wait for other ranks is longer.
PATIENCE = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class Ranks:
    """This process among those of the job, which all hold a part of the experts and a part of each batch.

    device: where this rank's tensors are.
    through_host: the backend carries host memory only (gloo), and the tensors are on a GPU.
    """
    rank: int
    world_size: int
    device: torch.device
    through_host: bool = False

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, in rank order. Collective; the tensors have one shape and dtype."""
        if self.world_size == 1:
            return [tensor]
        sent = self._to_wire(tensor.contiguous())
        arrived = [torch.empty_like(sent) for _ in range(self.world_size)]
        dist.all_gather(arrived, sent)
        return [self._from_wire(each) for each in arrived]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """((rank 0 + rank 1) + rank 2) + ..; the same bits on all ranks. Collective."""
        total, *others = self.gather(tensor)
        total = total.clone()
        for other in others:
            total += other
        return total

    def all_to_all(self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """Gives sent[r] rows to rank r, in order, and returns received[r] rows of each rank, in rank order. Collective.

        rows: [sum(sent), ...]. returns: [sum(received), ...].
        """
        if self.world_size == 1:
            return rows
        wire = self._to_wire(rows.contiguous())
        arrived = wire.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(arrived, wire, list(received), list(sent))
        return self._from_wire(arrived)

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def _to_wire(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu() if self.through_host else tensor

    def _from_wire(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device) if self.through_host else tensor


def join(device: str, backend: str) -> Ranks:
    """Meets the other ranks as the environment says: RANK, WORLD_SIZE, LOCAL_RANK, and INIT_METHOD or MASTER_ADDR and
    MASTER_PORT, as torchrun sets them; alone when there is no RANK. Collective.

    device: cpu or cuda. backend: gloo, nccl, or auto, which is nccl where each rank of a host has its own GPU.
    errors: ValueError when there is no GPU; torch's RuntimeError when the others do not come in time.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    where = torch.device("cpu")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("--device cuda: torch sees no GPU")
        where = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(where)
    if backend == "auto":
        own_gpu = device == "cuda" and int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) <= torch.cuda.device_count()
        backend = "nccl" if own_gpu and dist.is_nccl_available() else "gloo"
    if world_size > 1:
        dist.init_process_group(backend, os.environ.get("INIT_METHOD", "env://"), timeout=PATIENCE, rank=rank,
                                world_size=world_size)
    return Ranks(rank, world_size, where, through_host=device == "cuda" and backend == "gloo")


def leave(ranks: Ranks) -> None:
    """Ends what join began. Collective."""
    if ranks.world_size > 1:
        dist.barrier()
        dist.destroy_process_group()
