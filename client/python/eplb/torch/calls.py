"""Calls of an optimizer that others are told of."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, List


class OptimizerCalls:
    """Runs something before or after methods of one optimizer, by torch's hooks or, where a torch has none, in the method's
    place on this one object; remove undoes it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._handles: List[Any] = []
        self._replaced: List[Any] = []  # (name, what stands in, what was an attribute of the object, or None)

    def before(self, name: str, call: Callable[[str], None]) -> None:
        """call(name) runs ahead of each optimizer.name(..)."""
        self._replace(name, lambda original, arguments, named: (call(name), original(*arguments, **named))[1])

    def after(self, name: str, call: Callable[[], None]) -> None:
        """call() runs behind each optimizer.name(..)."""
        if name == "step" and hasattr(self._optimizer, "register_step_post_hook"):
            self._handles.append(self._optimizer.register_step_post_hook(lambda *_: call()))
            return
        self._replace(name, lambda original, arguments, named: (original(*arguments, **named), call())[0])

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        for name, stand_in, own in reversed(self._replaced):
            stand_in.__func__.eplb_call = lambda original, arguments, named: original(*arguments, **named)
            if self._optimizer.__dict__.get(name) == stand_in:  # else somebody has wrapped it in turn
                if own is None:
                    del self._optimizer.__dict__[name]
                else:
                    self._optimizer.__dict__[name] = own
        self._handles, self._replaced = [], []

    def _replace(self, name: str, call: Callable[[Any, Any, Any], Any]) -> None:
        original = getattr(self._optimizer, name)

        @functools.wraps(original)
        def stand_in(_self: Any, *arguments: Any, **named: Any) -> Any:
            return stand_in.eplb_call(original, arguments, named)  # type: ignore[attr-defined]

        stand_in.eplb_call = call  # type: ignore[attr-defined]
        own = self._optimizer.__dict__.get(name)
        bound = types.MethodType(stand_in, self._optimizer)  # schedulers take __func__ and __self__ of `step`
        self._optimizer.__dict__[name] = bound
        self._replaced.append((name, bound, own))
