"""The one collective that a trainer brings: every rank's bytes to every rank, in rank order.

An all-gather is a callable, bytes -> the bytes of all ranks, called the same number of times in the same order on every
rank, with a deadline of its own. It may have attributes `rank` and `world_size`, which connect then takes.
"""

from __future__ import annotations

import datetime
import itertools
import json
import time
import zlib
from typing import Any, Dict, List, Optional, Sequence

from eplb._threads import run_beside
from eplb.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument

# Ranks that a message names.
_MAX_NAMED = 8

# The first byte of a value: of one rank's answer, of all answers, of the ranks that did not come.
_OF_ONE, _OF_ALL, _MISSING = b"=", b"+", b"!"

_LOOK_SECONDS = 0.01  # for a key that should be there

# How many all-gathers this process has made for each group: the ranks make them in one order, so that the numbers agree.
_made: Dict[str, int] = {}


class StoreAllGather:
    """Over a store of torch.distributed (TCPStore, FileStore, PrefixStore), or anything with its add, set, get, wait and
    delete_key. It needs no device and no process group.

    Rank 0 collects the answers and writes them as one value, so that a call takes a number of requests that is linear in
    world_size. No value is empty: a TCPStore without libuv answers those 0.2 s late.

    deadline_seconds: of each call. prefix: of its keys; a store that outlives a run needs another for each run.
    errors of a call: DeadlineExceeded naming the ranks that did not come; FailedPrecondition when another process has
    this rank. Threads: one at a time. Signal handlers of Python run while a call waits.
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
        self._store.set(self._key(number, self.rank), _OF_ONE + data)
        deadline = time.monotonic() + self._deadline_seconds
        answers = self._collect(number, deadline) if self.rank == 0 else self._receive(number, deadline)
        self._store.delete_key(self._key(number, self.rank))
        return answers

    def _key(self, number: int, rank: object) -> str:
        return f"{self._prefix}/{number}/{rank}"

    def _collect(self, number: int, deadline: float) -> List[bytes]:
        """Rank 0: reads the answers of all ranks and writes them for all."""
        keys = [self._key(number, rank) for rank in range(self.world_size)]
        if not self._wait(keys, deadline):
            missing = self._missing(number)
            self._store.set(self._key(number, "all"), _MISSING + json.dumps(missing).encode())
            raise self._late(number, missing)
        get_all = getattr(self._store, "multi_get", lambda keys: [self._store.get(key) for key in keys])
        answers = [bytes(each)[len(_OF_ONE):] for each in get_all(keys)]
        sizes = json.dumps([len(each) for each in answers]).encode()
        # Most answers are alike, and every rank reads all.
        self._store.set(self._key(number, "all"), _OF_ALL + zlib.compress(b"".join([sizes, b"\n", *answers]), 1))
        if number > 0:  # each rank that wrote in this round has read all of the last one
            self._store.delete_key(self._key(number - 1, "all"))
        return answers

    def _receive(self, number: int, deadline: float) -> List[bytes]:
        if not self._wait([self._key(number, "all")], deadline):
            raise self._late(number, self._missing(number) or [0])
        found = bytes(self._store.get(self._key(number, "all")))
        if found.startswith(_MISSING):
            raise self._late(number, json.loads(found[len(_MISSING):]))
        sizes, _, rest = zlib.decompress(found[len(_OF_ALL):]).partition(b"\n")
        ends = list(itertools.accumulate(json.loads(sizes)))
        return [rest[begin:end] for begin, end in zip([0, *ends], ends)]

    def _wait(self, keys: Sequence[str], deadline: float) -> bool:
        """Returns True once the store has all keys, False after the deadline."""
        def wait() -> bool:
            try:
                self._store.wait(keys, datetime.timedelta(seconds=max(0.001, deadline - time.monotonic())))
            except RuntimeError:  # which a store also raises when it is gone
                return False
            return True

        return bool(run_beside(wait))

    def _missing(self, number: int) -> List[int]:
        return [rank for rank in range(self.world_size)
                if not self._wait([self._key(number, rank)], time.monotonic() + _LOOK_SECONDS)]

    def _late(self, number: int, missing: Sequence[int]) -> DeadlineExceeded:
        named = ", ".join(map(str, missing[:_MAX_NAMED]))
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        return DeadlineExceeded(f"all_gather {number} of rank {self.rank}: no answer within {self._deadline_seconds:g} s "
                                f"from {'rank' if len(missing) == 1 else 'ranks'} {named}{more}")


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
    name = "all" if group is None else "-".join(map(str, dist.get_process_group_ranks(group)))
    _made[name] = _made.get(name, 0) + 1
    store = dist.distributed_c10d._get_default_store()
    return StoreAllGather(store, dist.get_rank(group), world_size, deadline_seconds, f"eplb/{name}/{_made[name]}")


def alone(data: bytes) -> List[bytes]:
    """The all-gather of a job that is this process."""
    return [data]
