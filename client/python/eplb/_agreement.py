"""Gives all ranks of a process group the same answer to an engine's request, through the group's store."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import uuid
import weakref
from typing import Any, Callable, List, Optional, Sequence, TypeVar

from eplb.errors import DeadlineExceeded, Unavailable

Answer = TypeVar("Answer")

_PREFIX = "eplb/engine/3"  # ranks of another protocol count as ranks without the plugin
_MOST_FAILURES = 3  # in a row, after which a rank skips questions
_MEETING = 0  # precedes question 1
_NOTHING = "-"  # rank 0's in the place of what a rank has not written yet
_ANSWER = b"="  # begins an answer: a TCPStore without libuv is slow with values that are empty
_QUESTIONS_STORED = 8  # more than the models that an engine asks for between two of its own collectives

_agreements: weakref.WeakKeyDictionary[Any, Agreement] = weakref.WeakKeyDictionary()


class Agreement:
    """An answer that all ranks of a process group use, or none of them.

    The ranks ask the same questions in the same order. Rank 0 writes its answer into the store; each other rank reads and
    acknowledges it. If all ranks acknowledge within `timeout` seconds, rank 0 writes the verdict "go"; otherwise it writes
    "keep". An acknowledged rank that finds no verdict in time writes "keep" itself. The store accepts only the first verdict of
    a question, and every rank obeys it, however late it reads it. Until a rank has acknowledged an answer, no rank can use
    that answer. Therefore a rank whose store fails keeps its state, and so do all others.

    An earlier engine may have left the same keys in the store. Therefore each rank first writes a nonce, and rank 0 lists what
    the ranks wrote. A rank takes part when the list has its own nonce, and all later keys begin with rank 0's nonce.

    The group's collectives are not used: gloo closes every connection of a group when one operation times out, so that the
    engine's own collectives would fail after a broadcast with a deadline. Ranks can differ in one case: a rank loses the store
    after it has acknowledged an answer and before it reads the verdict, which rank 0 writes a moment later.

    threads: one call at a time. Every call ends within 6 x timeout, plus the time of `make`; absent and decide together
    within 8 x timeout.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        """store: a torch.distributed.Store that all ranks of the group, and no other processes, write to under its prefix."""
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._nonce = uuid.uuid4().hex
        self._leader = self._nonce  # rank 0's nonce, once this rank is announced
        self._question = 0
        self._failures = 0
        self._keys_exist = False
        self._absent: Optional[List[int]] = None
        self._running: Optional[concurrent.futures.Future[Any]] = None
        self.announced = False  # the other ranks may count on this rank

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""
        return self._rank

    def absent(self) -> List[int]:
        """Returns the ranks without the plugin. The first call waits for them for `timeout` seconds.

        The list is empty on all ranks or on none. A rank that comes too late finds rank 0 absent.
        errors: Unavailable if the store does not answer; errors of the store. If this rank was `announced` by then, the other
            ranks wait for its acknowledgements in vain. Then decide returns None on all of them and here, and another call of
            absent reads what the others found.
        """
        if self._absent is None:
            self._absent = self._bounded(self._meet, 4 if self._rank else 2)
        return self._absent

    def decide(self, make: Callable[[], bytes], accept: Callable[[bytes], Answer]) -> Optional[Answer]:
        """Returns accept(answer of rank 0) on all ranks, or None on all ranks.

        make: called on rank 0 only, on the caller's thread; returns the answer, or b"" for none. accept: converts an answer;
        a rank where it raises does not acknowledge. After three failures in a row, a rank takes part in every 2nd, 4th, ..
        64th question only, by the question's number, so that all ranks take part in every 64th. It answers the others with
        None at once.
        errors: those of make and accept; DeadlineExceeded naming the ranks that did not acknowledge, or if rank 0 wrote
            nothing; Unavailable if the store does not answer; errors of the store. Every other rank then returns None.
        """
        question = self._question = self._question + 1  # a thread that is left behind must not acknowledge a later one
        skips = question % (1 << min(max(self._failures - _MOST_FAILURES + 1, 0), 6)) > 0
        if self._absent is None or self._is_stuck() or (skips and self._rank != 0):
            return None
        if self._rank != 0:
            found = self._counted(lambda: self._follow(question, accept), 4)
            self._failures = 0
            return found
        # Rank 0 waits for longer than any other rank: its "go" must not reach a rank after rank 0 has given up.
        try:
            answer = b"" if skips else make()
            accepted = accept(answer) if answer else None
        except Exception:
            self._counted(lambda: self._lead(question, b""), 6)
            raise
        if not self._counted(lambda: self._lead(question, answer), 6):
            return None
        self._failures = 0
        return accepted

    def _meet(self) -> List[int]:
        """Returns the missing ranks. After an error of an announced rank, another call reads only what the meeting has found."""
        deadline = time.monotonic() + self._timeout
        if not self.announced:
            self._store.set(_rank_key(self._rank), self._nonce)
            if not _wait(self._is_listed if self._rank else self._all_are_listed, deadline):
                return self._missing()
            self.announced = True
            if self._rank:
                self._store.set(_rank_key(self._rank), self._mark(_MEETING))
                self._appears(self._met_key(), 2 * self._timeout)
            else:
                self._store.compare_set(self._met_key(), "", "none")
        found = self._store.compare_set(self._met_key(), "", "0").decode()
        return [] if found == "none" else [int(rank) for rank in found.split(",")]

    def _is_listed(self) -> bool:
        """Returns True if rank 0 of the same engine has read this rank's nonce."""
        if not self._store.check(["list"]):
            return False
        listed = self._store.get("list").decode().split(",")
        self._leader = listed[0]
        return self._nonce in listed

    def _all_are_listed(self) -> bool:
        """Lists what the ranks wrote. Returns True if all ranks have found themselves in the list."""
        written = self._written()
        self._store.set("list", ",".join(written))
        return all(each == self._mark(_MEETING) for each in written[1:])

    def _missing(self) -> List[int]:
        """Returns the ranks to name when the meeting has failed, and ends it for those that rank 0 had listed."""
        written = self._written()
        if self._rank != 0:
            return [rank for rank, each in enumerate(written) if rank == 0 or not each]
        missing = [rank for rank, each in enumerate(written) if rank and each != self._mark(_MEETING)]
        missing = missing or [rank for rank in range(1, self._size)]
        self._store.compare_set(self._met_key(), "", ",".join(map(str, missing)))
        return missing

    def _written(self) -> List[str]:
        """Returns what each rank wrote, "" for nothing. Rank 0 creates all keys, so that one request reads them."""
        keys = [_rank_key(rank) for rank in range(self._size)]
        if self._rank == 0 and not self._keys_exist:
            for key in keys:
                self._store.compare_set(key, "", _NOTHING)
            self._keys_exist = True
        found = (self._store.multi_get(keys) if self._keys_exist else
                 [self._store.get(key) if self._store.check([key]) else _NOTHING.encode() for key in keys])
        return ["" if each == _NOTHING.encode() else each.decode() for each in found]

    def _lead(self, question: int, answer: bytes) -> bool:
        """Returns True if all ranks use the answer."""
        for key in self._keys(question - _QUESTIONS_STORED):
            self._store.delete_key(key)
        answer_key, verdict_key = self._keys(question)
        self._store.set(answer_key, _ANSWER + answer)
        if not answer:
            return False
        all_acknowledged = _wait(lambda: not self._behind(question), time.monotonic() + self._timeout)
        if self._store.compare_set(verdict_key, "", "go" if all_acknowledged else "keep") == b"go":
            return True
        behind = self._behind(question)
        raise DeadlineExceeded(f"{ranks_text(behind) if behind else 'a rank'} of {self._size} did not acknowledge rank 0's "
                               f"placement within {self._timeout:g} s")

    def _follow(self, question: int, accept: Callable[[bytes], Answer]) -> Optional[Answer]:
        answer_key, verdict_key = self._keys(question)
        if not self._appears(answer_key, self._timeout):
            raise DeadlineExceeded(f"rank 0 of {self._size} published no placement within {self._timeout:g} s")
        answer = self._store.get(answer_key)[len(_ANSWER):]
        if not answer:
            return None
        accepted = accept(answer)
        self._store.set(_rank_key(self._rank), self._mark(question))
        self._appears(verdict_key, 2 * self._timeout)
        return accepted if self._store.compare_set(verdict_key, "", "keep") == b"go" else None

    def _behind(self, question: int) -> List[int]:
        """Returns the ranks that have not acknowledged the answer to a question."""
        ranks = range(1, self._size)
        seen = self._store.multi_get([_rank_key(rank) for rank in ranks])
        return [rank for rank, mark in zip(ranks, seen) if mark.decode() != self._mark(question)]

    def _appears(self, key: str, seconds: float) -> bool:
        """Returns True if the store has the key in time. Asks repeatedly, because a waiting call blocks the store's client."""
        return _wait(lambda: self._store.check([key]), time.monotonic() + seconds)

    def _counted(self, function: Callable[[], Answer], timeouts: int) -> Answer:
        """Returns function() as _bounded does, and counts a failure if it raises."""
        try:
            return self._bounded(function, timeouts)
        except Exception:
            self._failures += 1
            raise

    def _bounded(self, function: Callable[[], Answer], timeouts: int) -> Answer:
        """Returns function(), run on a thread that is left behind if it takes longer: a store's call has no deadline when the
        store's host has stopped. errors: Unavailable then, and while a thread that was left behind runs; those of function."""
        result: concurrent.futures.Future[Answer] = concurrent.futures.Future()

        def run() -> None:
            try:
                result.set_result(function())
            except Exception as error:
                result.set_exception(error)

        if not self._is_stuck():
            self._running = result
            threading.Thread(target=run, name="eplb-agreement", daemon=True).start()
            if concurrent.futures.wait([result], timeouts * self._timeout).done:
                return result.result()
        raise Unavailable(f"the job's store has not answered for {timeouts * self._timeout:g} s")

    def _is_stuck(self) -> bool:
        """Returns True if a thread that was left behind still waits inside of the store's client."""
        return self._running is not None and not self._running.done()

    def _mark(self, question: int) -> str:
        """Returns what a rank writes to acknowledge rank 0's list or its answer to a question."""
        return f"{self._leader}:{question}"

    def _met_key(self) -> str:
        return f"{self._leader}/met"

    def _keys(self, question: int) -> List[str]:
        return [f"{self._leader}/answer/{question}", f"{self._leader}/verdict/{question}"]


def agreement_of(group: Any, timeout: float) -> Agreement:
    """Returns the only agreement of a torch.distributed.ProcessGroup in this process, with the timeout of the first call: a
    second one would count questions anew."""
    if group not in _agreements:
        import torch.distributed as dist

        store = dist.PrefixStore(_PREFIX, group.get_group_store())
        _agreements[group] = Agreement(store, group.rank(), group.size(), timeout)
    return _agreements[group]


def _rank_key(rank: int) -> str:
    return f"rank/{rank}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Returns "rank 2" or "ranks 2, 3"."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _wait(ready: Callable[[], bool], deadline: float) -> bool:
    """Returns True if ready() returned True before the deadline. A process that was stopped meanwhile is late."""
    pause = 0.001
    while not ready():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return time.monotonic() < deadline
