"""The function that an engine calls in place of its own: the same map on all ranks, and no exception of EPLB's."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import logging
import re
import threading
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import numpy as np

from eplb import _engines, _library
from eplb._agreement import Agreement, agreement_of, ranks_text
from eplb._arguments import real
from eplb._planning import Daemon
from eplb.errors import Error, FailedPrecondition, InvalidArgument, Unimplemented

_logger = logging.getLogger("eplb")


@dataclasses.dataclass(frozen=True)
class Engine:
    """How the guard reads an engine's requests and writes its answers. `arguments` are those of a request by their names.

    name, version: of the engine, for messages. own: the function that the guard replaces. known: the lists of parameters that
    `own` may have, "name" or "name=default", each in the order of the first list, which has the names of `arguments` and is
    that of `version`; the first two parameters are the load and the number of slots. request: converts arguments to a load and
    a request. incumbent: returns the current placement or None. answer: converts a complete map [layers, slots] to what the
    engine expects. group: returns the process group whose ranks ask the same questions, or None if this process alone is asked.
    stage: returns the end of the name of that group's job at a daemon: "-stage1" for one of several pipeline stages, or "".
    """

    name: str
    version: str
    own: Callable[..., Any]
    known: Tuple[Tuple[str, ...], ...]
    request: Callable[..., Tuple[np.ndarray, _engines.Request]]
    incumbent: Callable[[Dict[str, Any]], Any]
    answer: Callable[[np.ndarray, Dict[str, Any]], Any]
    group: Callable[[], Any]
    stage: Callable[[], str] = lambda: ""


class Guard:
    """Answers an engine's requests.

    All ranks of the engine's group answer with rank 0's plan, or all keep the current placement: for a load without
    tokens, for a plan that lowers no layer's largest GPU load, and where rank 0 cannot plan, which is logged. With a daemon
    rank 0 asks it for each plan, and reports what the ranks did with it; the daemon decides what to keep. If the plugin is
    missing on a rank, all ranks call the engine's own function for the whole run. An engine that passes no current placement is
    taken to use the last answer for the same shape. threads: safe; calls wait for each other, each for a bounded time
    (Agreement).
    """

    def __init__(self, engine: Engine, settings: _engines.Settings, timeout: Any, daemon: Optional[Daemon] = None) -> None:
        """Checks the library and the parameters of `engine.own`. A rank without the library logs the reason, and takes part in
        the agreement without planning. errors: InvalidArgument for a setting; Unimplemented for other parameters."""
        self._engine, self.own = engine, engine.own
        self._settings, self._daemon = settings, daemon
        self._timeout = real("timeout", timeout)
        if not 0 < self._timeout < float("inf"):
            raise InvalidArgument(f"timeout is {self._timeout:g}, expected seconds above 0")
        self._parameters = _known_parameters(engine)
        self._obstacle = _obstacle()
        self._lock = threading.Lock()
        self._told: Set[str] = set()  # failures since the last plan
        self._unsettled = False  # the newest report to the daemon failed
        self._last: Dict[Any, np.ndarray] = {}  # answers by shape
        self._uses_own = False
        if self._obstacle:
            self._log(f"this rank cannot plan: {self._obstacle}. Rank 0 of its group plans for all ranks; if this is rank 0, "
                      "the placement stays as it is.")

    def __call__(self, *given: Any, **named: Any) -> Any:
        arguments = self._arguments(given, named)
        with self._lock:
            agreement = self._agreement()
            if self._uses_own:
                return self._engine.own(*given, **named)
            slots = self._decided(agreement, arguments)
        if slots is None:
            slots = self._kept(arguments)
        if slots is None:
            answer = self._without_incumbent(arguments, given, named)
            with contextlib.suppress(Exception):  # equal on all ranks, so that they keep it together
                first = answer[0] if isinstance(answer, tuple) else answer
                self._last[self._shape(arguments, np.empty((0, 0)))] = np.array(_engines.slots_of(first))
            return answer
        self._last[self._shape(arguments, slots)] = slots.copy()
        return self._engine.answer(slots, arguments)

    def _arguments(self, given: Tuple[Any, ...], named: Dict[str, Any]) -> Dict[str, Any]:
        """Returns arguments by their names in `known[0]`. Unknown ones stay among them, for `request` to refuse."""
        ours = dict(zip(self._parameters, _names(self._engine.known[0])))
        found = {ours[theirs]: value for theirs, value in zip(self._parameters, given)}
        found.update({ours.get(name, name): value for name, value in named.items()})
        return found if len(given) <= len(ours) else {**found, "*": given[len(ours):]}

    def _agreement(self) -> Optional[Agreement]:
        """Returns the agreement of the engine's group, None for a group of one. Chooses the engine's own function if a rank is
        absent, and if this rank was not announced, so that the others find it absent."""
        if self._uses_own:
            return None
        agreement = None
        try:
            group = self._engine.group()
            if group is None or group.size() == 1:
                return None
            agreement = agreement_of(group, self._timeout)
            absent = agreement.absent()
        except Exception as error:
            self._uses_own = agreement is None or not agreement.announced
            self._log_failure("this rank cannot reach the others, " + (
                f"{self._engine.name}'s own policy is used" if self._uses_own else "the placement stays as it is"), error)
            return agreement
        if absent:
            self._uses_own = True
            if agreement.rank == min(set(range(group.size())) - set(absent)):
                self._log(f"{ranks_text(absent)} of {group.size()} {'lack' if len(absent) > 1 else 'lacks'} EPLB's plugin or "
                          f"{'were' if len(absent) > 1 else 'was'} late: all ranks use {self._engine.name}'s own policy until "
                          "they restart")
        return agreement

    def _decided(self, agreement: Optional[Agreement], arguments: Dict[str, Any]) -> Optional[np.ndarray]:
        """Returns the plan for all ranks, None to keep the current placement."""
        try:
            if agreement is None:
                slots = self._plan(arguments)
            else:
                slots = agreement.decide(lambda: _to_bytes(self._plan(arguments)), lambda each: self._read(each, arguments))
        except Exception as error:
            self._log_failure("the placement stays as it is", error)
            self._settle(error)
            return None
        if self._told and (slots is not None or (self._daemon is not None and self._daemon.answers_again)):
            self._log("balances again")
            self._told.clear()
        self._settle(None)
        return slots

    def _settle(self, error: Optional[Exception]) -> None:
        """Reports to the daemon that the ranks took its placement, or that none did because of `error`."""
        try:
            if self._daemon is not None:
                self._daemon.settle(error)
            self._unsettled = False
        except Exception as failure:
            if not self._unsettled:
                self._log(f"the daemon received no report whether its placement was taken: {_line(failure)}")
            self._unsettled = True

    def _plan(self, arguments: Dict[str, Any]) -> Optional[np.ndarray]:
        """Returns a new placement, None to keep the current one. errors: whatever keeps this rank from planning."""
        if self._obstacle:
            raise FailedPrecondition(self._obstacle)
        load, request = self._engine.request(**arguments)
        if self._daemon is None and not load.any():
            return None
        request = dataclasses.replace(request, incumbent=self._current(arguments))
        if self._daemon is not None:  # the other ranks wait for `timeout`
            return self._daemon.plan(self._engine.known[0][0], load, request, self._engine.stage(), 0.75 * self._timeout)
        return _engines.useful_plan(self._engine.known[0][0], load, request, self._settings)

    def _read(self, answer: bytes, arguments: Dict[str, Any]) -> np.ndarray:
        """Returns the placement that rank 0 published. errors: FailedPrecondition if this rank was asked for another shape."""
        slots = np.load(io.BytesIO(answer), allow_pickle=False).astype(np.int64)
        shape = self._shape(arguments, slots)
        if not _engines.is_complete(slots, *shape):
            raise FailedPrecondition(f"rank 0 published a placement {list(slots.shape)}, this rank was asked for "
                                     f"{shape[1]} slots in layers and experts {list(shape[0])}")
        return slots

    def _current(self, arguments: Dict[str, Any]) -> Optional[np.ndarray]:
        """Returns a copy of the current placement, None if it is unknown or not complete, as while an engine grows or shrinks.
        errors: those of the engine's `incumbent`; InvalidArgument for other things than integers."""
        incumbent = self._engine.incumbent(arguments)
        if incumbent is None:
            incumbent = self._last.get(self._shape(arguments, np.empty((0, 0))))
        if incumbent is None:
            return None
        slots = np.array(_engines.slots_of(incumbent))
        return slots if _engines.is_complete(slots, *self._shape(arguments, slots)) else None

    def _kept(self, arguments: Dict[str, Any]) -> Optional[np.ndarray]:
        """Returns _current, None after an error."""
        try:
            return self._current(arguments)
        except Exception:
            return None

    def _without_incumbent(self, arguments: Dict[str, Any], given: Tuple[Any, ...], named: Dict[str, Any]) -> Any:
        """Returns what the engine's own function answers, which is equal on all ranks. If it fails, expert i goes to slot i
        and to every further slot that is i modulo the number of experts."""
        try:
            return self._engine.own(*given, **named)
        except Exception:
            (layers, experts), num_slots = self._shape(arguments, np.empty((0, 0)))
            if layers < 1 or experts < 1:
                raise
            return self._engine.answer(np.tile(np.arange(num_slots) % experts, (layers, 1)), arguments)

    def _shape(self, arguments: Dict[str, Any], slots: np.ndarray) -> Tuple[Tuple[int, int], int]:
        """Returns (layers, experts) and the number of slots of a request; those of `slots` if the request cannot be read."""
        load, num_slots = (arguments.get(name) for name in self._engine.known[0][:2])
        shape = tuple(getattr(load, "shape", ()))[-2:]
        if len(shape) == 2 and isinstance(num_slots, int):
            return shape, num_slots
        return (slots.shape[0], int(slots.max(initial=-1)) + 1), slots.shape[1]

    def _log_failure(self, consequence: str, error: Exception) -> None:
        """Logs an error, unless one that differs in numbers at most was logged since the last plan."""
        message = f"{consequence}: {_line(error)}"
        reason = re.sub(r"[\d.]+", "", message)
        if reason not in self._told:
            self._log(message)
        self._told.add(reason)

    def _log(self, message: str) -> None:
        _logger.warning("eplb.%s: %s", self._engine.name.lower(), message)


def _known_parameters(engine: Engine) -> Tuple[str, ...]:
    """Returns the names of the parameters of `engine.own`. errors: Unimplemented if they, their order or defaults are unknown."""
    found = tuple(each.name if each.default is each.empty else f"{each.name}={each.default!r}"
                  for each in inspect.signature(engine.own).parameters.values())
    if found not in engine.known:
        unknown, missing = ([each for each in some if each not in others] for some, others in
                            ((found, engine.known[0]), (engine.known[0], found)))
        differences = [f"{what} {', '.join(names)}" for what, names in (("unknown", unknown), ("missing", missing)) if names]
        raise Unimplemented(f"{engine.name}'s rebalance_experts has other parameters than in {engine.name} {engine.version}: "
                            f"{'; '.join(differences) or 'another order'} (docs/serving-engines.md lists the known versions)")
    return _names(found)


def _names(parameters: Tuple[str, ...]) -> Tuple[str, ...]:
    return tuple(each.partition("=")[0] for each in parameters)


def _obstacle() -> str:
    """Returns the reason why this process cannot plan, or ""."""
    try:
        _library.load()
    except Exception as error:
        return _line(error)
    return ""


def _to_bytes(slots: Optional[np.ndarray]) -> bytes:
    if slots is None:
        return b""
    buffer = io.BytesIO()
    np.save(buffer, slots.astype(np.int32))
    return buffer.getvalue()


def _line(error: Exception) -> str:
    """Returns an error's first line, and its class where the text alone names none of EPLB's errors."""
    lines: List[str] = str(error).splitlines() or [""]
    return lines[0] if isinstance(error, Error) else f"{type(error).__name__}: {lines[0]}"
