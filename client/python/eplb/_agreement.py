"""Gives all ranks of a process group the same answer to an engine's request, through the group's store."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import weakref
from typing import Any, Callable, List, Optional, TypeVar

from eplb.errors import DeadlineExceeded, Unavailable

Answer = TypeVar("Answer")

_PREFIX = "eplb/engine/1"  # ranks of another protocol count as ranks without the plugin
_MOST_FAILURES = 3
_QUESTIONS_STORED = 8  # more than the models that an engine asks for between two of its own collectives

_agreements: weakref.WeakKeyDictionary[Any, Agreement] = weakref.WeakKeyDictionary()


class Agreement:
    """An answer that all ranks of a process group use, or none of them.

    The ranks ask the same questions in the same order. Rank 0 writes its answer into the store; each other rank reads and
    acknowledges it. If all ranks acknowledge within `timeout` seconds, rank 0 writes the verdict "go"; otherwise it writes
    "keep". An acknowledged rank that finds no verdict in time writes "keep" itself. The store accepts only the first verdict of
    a question, and every rank obeys it, however late it reads it. Until a rank has acknowledged an answer, no rank can use
    that answer. Therefore a rank whose store fails keeps its state, and so do all others.

    The group's collectives are not used: gloo closes every connection of a group when one operation times out, so that the
    engine's own collectives would fail after a broadcast with a deadline. Ranks can differ in one case: a rank loses the store
    after it has acknowledged an answer and before it reads the verdict, which rank 0 writes a moment later.

    threads: one call at a time. Every call ends within 6 x timeout, plus the time of `make`.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        """store: a torch.distributed.Store that all ranks of the group, and no other processes, write to under its prefix."""
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._question = 0
        self._failures = 0
        self._absent: Optional[List[int]] = None
        self.announced = False  # the other ranks may count on this rank

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""
        return self._rank

    def absent(self) -> List[int]:
        """Returns the ranks without the plugin. The first call waits for them for `timeout` seconds.

        Each rank writes a key. The last rank to write, or the first rank whose time is up, writes the list of missing ranks, and
        all ranks return that list, including a rank that comes later.
        errors: Unavailable if the store does not answer; errors of the store. If this rank was `announced` by then, the other
            ranks wait for its acknowledgements in vain, and decide returns None on all of them and here.
        """
        if self._absent is None:
            try:
                self._absent = _bounded(self._meet, 2 * self._timeout)
            except Exception:
                if self.announced:
                    self._absent, self._failures = [], _MOST_FAILURES
                raise
        return self._absent

    def decide(self, make: Callable[[], bytes], accept: Callable[[bytes], Answer]) -> Optional[Answer]:
        """Returns accept(answer of rank 0) on all ranks, or None on all ranks.

        make: called on rank 0 only, on the caller's thread; returns the answer, or b"" for none. accept: converts an answer;
        a rank where it raises does not acknowledge. After three questions in a row that a rank did not acknowledge, every
        later call returns None at once.
        errors: those of make and accept; DeadlineExceeded naming the ranks that did not acknowledge, or if rank 0 wrote
            nothing; Unavailable if the store does not answer; errors of the store. Every other rank then returns None.
        """
        self._question += 1
        if self._failures >= _MOST_FAILURES:
            return None
        if self._rank != 0:
            try:
                return self._within(4, lambda: self._follow(accept))
            except Exception:
                self._failures += 1
                raise
        # Rank 0 waits for longer than any other rank: its "go" must not reach a rank after rank 0 has given up.
        try:
            answer = make()
            accepted = accept(answer) if answer else None
        except Exception:
            self._within(6, lambda: self._lead(b""))
            raise
        return accepted if self._within(6, lambda: self._lead(answer)) else None

    def _meet(self) -> List[int]:
        self._store.set(_rank_key(self._rank), "0")
        self.announced = True
        if self._store.add("met", 1) == self._size:
            self._store.compare_set("absent", "", "none")
        elif not self._appears("absent", self._timeout):
            absent = [str(rank) for rank in range(self._size) if not self._store.check([_rank_key(rank)])]
            self._store.compare_set("absent", "", ",".join(absent) or "none")
        found = self._store.get("absent").decode()
        return [] if found == "none" else [int(rank) for rank in found.split(",")]

    def _lead(self, answer: bytes) -> bool:
        """Returns True if all ranks use the answer."""
        for key in self._keys(self._question - _QUESTIONS_STORED):
            self._store.delete_key(key)
        answer_key, verdict_key = self._keys(self._question)
        self._store.set(answer_key, answer)
        if not answer:
            return False
        all_acknowledged = _wait(lambda: not self._behind(), self._timeout)
        self._failures = 0 if all_acknowledged else self._failures + 1
        ended = self._failures == _MOST_FAILURES
        verdict = "go" if all_acknowledged else "end" if ended else "keep"
        if self._store.compare_set(verdict_key, "", verdict) == b"go":
            return True
        behind = ", ".join(map(str, self._behind()))
        raise DeadlineExceeded(f"{f'ranks {behind}' if behind else 'a rank'} of {self._size} did not acknowledge rank 0's "
                               f"placement within {self._timeout:g} s"
                               + (f", {_MOST_FAILURES} times in a row: rank 0 plans no more" if ended else ""))

    def _follow(self, accept: Callable[[bytes], Answer]) -> Optional[Answer]:
        answer_key, verdict_key = self._keys(self._question)
        if not self._appears(answer_key, self._timeout):
            raise DeadlineExceeded(f"rank 0 of {self._size} published no placement within {self._timeout:g} s")
        answer = self._store.get(answer_key)
        if not answer:
            return None
        accepted = accept(answer)
        self._store.set(_rank_key(self._rank), str(self._question))
        self._appears(verdict_key, 2 * self._timeout)
        verdict = self._store.compare_set(verdict_key, "", "keep")
        self._failures = _MOST_FAILURES if verdict == b"end" else 0
        return accepted if verdict == b"go" else None

    def _within(self, timeouts: int, function: Callable[[], Answer]) -> Answer:
        try:
            return _bounded(function, timeouts * self._timeout)
        except Unavailable:
            self._failures = _MOST_FAILURES  # a thread still waits inside of the store's client
            raise

    def _behind(self) -> List[int]:
        """Returns the ranks that have not acknowledged the current answer."""
        ranks = range(1, self._size)
        seen = self._store.multi_get([_rank_key(rank) for rank in ranks])
        return [rank for rank, question in zip(ranks, seen) if int(question) < self._question]

    def _appears(self, key: str, seconds: float) -> bool:
        """Returns True if the store has the key in time. Asks repeatedly, because a waiting call blocks the store's client."""
        return _wait(lambda: self._store.check([key]), seconds)

    @staticmethod
    def _keys(question: int) -> List[str]:
        return [f"answer/{question}", f"verdict/{question}"]


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


def _wait(ready: Callable[[], bool], seconds: float) -> bool:
    """Returns True if ready() returned True before the time was up. A process that was stopped meanwhile is late."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while not ready():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return time.monotonic() < deadline


def _bounded(function: Callable[[], Answer], seconds: float) -> Answer:
    """Returns function(), run on a thread that is left behind if it takes longer: a store's call has no deadline when the
    store's host has stopped. errors: Unavailable then; those of function."""
    result: concurrent.futures.Future[Answer] = concurrent.futures.Future()

    def run() -> None:
        try:
            result.set_result(function())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, name="eplb-agreement", daemon=True).start()
    if not concurrent.futures.wait([result], seconds).done:
        raise Unavailable(f"the job's store has not answered for {seconds:g} s")
    return result.result()
