"""Calls that return late, in a thread of their own: Python runs no signal handler while the main thread is in one."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Tuple


def run_beside(call: Callable[[], Any]) -> Any:
    """Returns the call's result, or raises its exception. What a signal handler raises meanwhile ends the wait at once; the call
    goes on, and nobody gets its result."""
    ended: List[Tuple[Any, Any]] = []

    def run() -> None:
        try:
            ended.append((call(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = threading.Thread(target=run, name="eplb-call", daemon=True)
    thread.start()
    thread.join()
    result, error = ended[0]
    if error is not None:
        raise error
    return result
