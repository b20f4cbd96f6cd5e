"""Asks a daemon where an engine's experts should be, in place of planning in this process."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import uuid
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import numpy as np

from eplb import _engines, _library
from eplb import _structs as structs
from eplb._arguments import integer
from eplb.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument

_SETTLE_SECONDS = 0.5  # the engine waits for it, also if the daemon is gone


@dataclass
class _Run:
    """One life of the engine in one shape: slots, GPUs, nodes, groups."""

    shape: Tuple[int, ...]
    run_id: str
    replaces: str
    questions: int = 0


class Daemon:
    """The daemon that plans for an engine.

    answers_again: the newest question was answered, the one before it was not. threads: one call at a time.
    """

    _runs: Dict[str, _Run] = {}  # runs of this process, by job; a second registration continues them

    def __init__(self, engine: str, endpoint: str, job: str, expert_bytes: int) -> None:
        self._engine, self._endpoint, self._job, self._expert_bytes = engine, endpoint, job, expert_bytes
        self._open: Optional[Tuple[Any, Any]] = None  # question and answer whose outcome the daemon does not know
        self._failed = self.answers_again = False

    def plan(self, name: str, load: np.ndarray, request: _engines.Request, stage: str, seconds: float) -> Optional[np.ndarray]:
        """Returns the daemon's placement [layers, slots], None to keep the current one.

        name: of the load, for messages. load: [layers, experts], rounded to whole tokens. stage: end of the job's name.
        errors: InvalidArgument for a load that cannot be one; others within `seconds`, naming the daemon.
        """
        _engines.expect_load(name, load, request)
        if request.incumbent is None:
            return None
        with np.errstate(invalid="ignore"):  # a number above 64 bits becomes negative, which the library refuses
            counts = np.ascontiguousarray(np.rint(load), np.int64)
        current = np.ascontiguousarray(request.incumbent, np.int64)
        question = self._question(counts, current, request, stage)
        question.timeout_s = seconds
        answer, slots = structs.sized(structs.PlanAnswer), np.empty_like(current)
        self.answers_again, self._failed = False, True
        _library.check(_library.load().eplb_ask_plan(ctypes.byref(question), slots.ctypes.data, ctypes.byref(answer)))
        self.answers_again, self._failed = self._failed, False
        if not answer.changes:
            return None
        self._open = question, answer
        return slots

    def settle(self, error: Optional[Exception]) -> None:
        """Reports that the ranks took the newest placement, or none of them did because of `error`. Reports nothing if the
        error is that of a store, because this rank then does not know. errors: those of the call, within half a second."""
        settled, self._open = self._open, None
        if settled is None or not isinstance(error, (type(None), DeadlineExceeded, FailedPrecondition)):
            return
        question, answer = settled
        question.timeout_s = _SETTLE_SECONDS
        _library.check(_library.load().eplb_settle_plan(ctypes.byref(question), ctypes.byref(answer), int(error is None),
                                                        str(error or "").encode()))

    def _question(self, counts: np.ndarray, current: np.ndarray, request: _engines.Request, stage: str) -> structs.PlanQuestion:
        """The arrays must outlive the call that reads them."""
        layers, experts = counts.shape
        nodes, groups = request.num_nodes, request.num_groups
        if not request.hierarchical:
            nodes, groups = nodes if request.num_gpus % nodes == 0 else 1, 1
        job, shape = f"{self._job}-{layers}x{experts}{stage}", (request.num_slots, request.num_gpus, nodes, groups)
        run = self._runs.get(job)
        if run is None or run.shape != shape:
            run = self._runs[job] = _Run(shape, uuid.uuid4().hex, "" if run is None else run.run_id)
        run.questions += 1
        version = getattr(sys.modules.get(self._engine.lower()), "__version__", "")
        return structs.sized(
            structs.PlanQuestion, endpoint=self._endpoint.encode(), job=job.encode(), run_id=run.run_id.encode(),
            replaces_run_id=run.replaces.encode(), engine=f"{self._engine} {version}".strip().encode(), counts=counts.ctypes.data,
            current=current.ctypes.data, number=run.questions, expert_bytes=self._expert_bytes, num_layers=layers,
            num_experts=experts, num_slots=request.num_slots, num_gpus=request.num_gpus, num_nodes=nodes, num_groups=groups)


def daemon_of(engine: str, endpoint: Any, job: Any, expert_bytes: Any, **local: Any) -> Optional[Daemon]:
    """Returns the daemon to ask, None if neither an endpoint nor a job is given.

    endpoint, job: None for EPLB_ENDPOINT, which counts only with a job, and for EPLB_JOB. local: settings of planning in this
    process, None where not given. errors: InvalidArgument for one of endpoint and job alone, for a name with other characters,
    and for settings of both kinds.
    """
    job = os.environ.get("EPLB_JOB") if job is None else job
    if endpoint is None and job:
        endpoint = os.environ.get("EPLB_ENDPOINT")
    if not endpoint and not job:
        return None
    if not isinstance(endpoint, str) or not endpoint:
        raise InvalidArgument(f"endpoint: {endpoint!r}, expected that of an eplbd beside job {job!r}, here or in EPLB_ENDPOINT")
    if not re.fullmatch(r"(env|file|srv):.+|\s*\S+:\S+\s*(,\s*\S+:\S+\s*)*", endpoint):
        raise InvalidArgument(f"endpoint: {endpoint!r}, expected HOST:PORT or unix:PATH, or several with commas between them")
    if not isinstance(job, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", job):
        raise InvalidArgument(f"job: {job!r}, expected 1..100 characters of [A-Za-z0-9._-], here or in EPLB_JOB")
    given = [name for name, value in local.items() if value is not None]
    given += ["EPLB_PROFILES"] if os.environ.get("EPLB_PROFILES") else []
    if given:
        raise InvalidArgument(f"{given[0]}: given beside endpoint {endpoint}, whose daemon has the settings of job {job} "
                              "(eplbctl set policy)")
    size = integer("expert_bytes", expert_bytes, 8)
    if size < 0:
        raise InvalidArgument(f"expert_bytes is {size}, expected at least 0")
    return Daemon(engine, endpoint, job, size)
