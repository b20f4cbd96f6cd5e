"""The one collective that a trainer brings: every rank's bytes to every rank, in rank order.

An all-gather is a callable, bytes -> the bytes of all ranks, called the same number of times in the same order on every
rank, with a deadline of its own. It may have attributes `rank` and `world_size`, which connect then takes.
"""

from __future__ import annotations

import datetime
import time
from typing import Any, Dict, List, Optional

from eplb.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument

# Ranks that a message names.
_MAX_NAMED = 8

# How many all-gathers this process has made for each group: the ranks make them in one order, so that the numbers agree.
_made: Dict[str, int] = {}


class StoreAllGather:
    """Over a store of torch.distributed (TCPStore, FileStore, PrefixStore), or anything with its add, set, get, wait and
    delete_key. It needs no device and no process group.

    deadline_seconds: of each call. prefix: of its keys; a store that outlives a run needs another for each run.
    errors of a call: DeadlineExceeded naming the ranks that did not come; FailedPrecondition when another process has
    this rank. Threads: one at a time.
    """

    def __init__(self, store: Any, rank: int, world_size: int, deadline_seconds: float = 60.0,
                 prefix: str = "eplb") -> None:
        if not 0 <= rank < world_size:
            raise InvalidArgument(f"rank is {rank}, expected 0..{world_size - 1}")
        self.rank, self.world_size = rank, world_size
        self._store, self._prefix, self._deadline_seconds = store, prefix, deadline_seconds
        self._round = 0

    def __call__(self, data: bytes) -> List[bytes]:
        if self._round == 0 and self._store.add(f"{self._prefix}/claim/{self.rank}", 1) != 1:
            raise FailedPrecondition(f"all_gather: another process has claimed rank {self.rank} of {self.world_size}: two have "
                                     f"one rank, or the store is that of an earlier run")
        number, self._round = self._round, self._round + 1
        self._store.set(self._key(number, self.rank), data)
        deadline = time.monotonic() + self._deadline_seconds
        answers = [self._get(number, rank, deadline) for rank in range(self.world_size)]
        # Whoever wrote in this round has read all of the last one.
        if number > 0:
            self._store.delete_key(self._key(number - 1, self.rank))
        return answers

    def _key(self, number: int, rank: int) -> str:
        return f"{self._prefix}/{number}/{rank}"

    def _get(self, number: int, rank: int, deadline: float) -> bytes:
        left = max(0.001, deadline - time.monotonic())
        key = self._key(number, rank)
        try:
            self._store.wait([key], datetime.timedelta(seconds=left))
        except RuntimeError:  # which a store also raises when it is gone
            missing = [each for each in range(rank, self.world_size) if each == rank or not self._has(number, each)]
            named = ", ".join(map(str, missing[:_MAX_NAMED]))
            more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
            raise DeadlineExceeded(f"all_gather {number} of rank {self.rank}: no answer within {self._deadline_seconds:g} s "
                                   f"from {'rank' if len(missing) == 1 else 'ranks'} {named}{more}") from None
        return self._store.get(key)

    def _has(self, number: int, rank: int) -> bool:
        try:
            self._store.wait([self._key(number, rank)], datetime.timedelta(milliseconds=10))
        except RuntimeError:
            return False
        return True


def torch_all_gather(group: Optional[Any] = None, deadline_seconds: float = 60.0) -> StoreAllGather:
    """Over the store with which torch.distributed was initialised. Collective: all ranks of the group make theirs.

    group: the process group of the job's ranks; None: all of them. Whether it is gloo or nccl does not matter.
    errors: FailedPrecondition before init_process_group, or in a process that is not of the group.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise FailedPrecondition("torch_all_gather was called before torch.distributed.init_process_group")
    if dist.get_rank(group) < 0:
        raise FailedPrecondition(f"rank {dist.get_rank()} is not of the group")
    world_size = dist.get_world_size(group)
    name = "all" if group is None else "-".join(str(global_rank(group, rank)) for rank in range(world_size))
    _made[name] = _made.get(name, 0) + 1
    store = dist.distributed_c10d._get_default_store()
    return StoreAllGather(store, dist.get_rank(group), world_size, deadline_seconds, f"eplb/{name}/{_made[name]}")


def global_rank(group: Any, rank: int) -> int:
    """Returns the job's rank of a rank of a process group."""
    import torch.distributed as dist

    if hasattr(dist, "get_global_rank"):
        return dist.get_global_rank(group, rank)
    return dist.distributed_c10d._get_global_rank(group, rank)  # before torch 2


def alone(data: bytes) -> List[bytes]:
    """The all-gather of a job that is this process."""
    return [data]
