"""Calls of an optimizer or another object, before, after or around which something runs."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence

from eplb.errors import FailedPrecondition


class OptimizerCalls:
    """Runs something before, after or around methods of one optimizer or another object, by torch's hooks or, where there are
    none, in the method's place on this one object; remove undoes it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._handles: List[Any] = []
        self._replaced: List[Any] = []  # (name, what stands in, what was an attribute of the object, or None)

    def has(self, name: str) -> bool:
        return callable(getattr(self._optimizer, name, None))

    def is_heard(self, name: str) -> bool:
        """True if calls of it still reach this object; other code may have restored the original."""
        stand_ins = [bound.__func__ for replaced, bound, _ in self._replaced if replaced == name]
        found = getattr(self._optimizer, name, None)
        while stand_ins and found is not None:
            function = getattr(found, "__func__", found)
            if function in stand_ins:
                return True
            found = getattr(function, "__wrapped__", None)
        return not stand_ins

    def before(self, name: str, call: Callable[[str], None]) -> None:
        """call(name) runs ahead of each optimizer.name(..)."""
        self._replace(name, lambda original, arguments, named: (call(name), original(*arguments, **named))[1])

    def after(self, name: str, call: Callable[[], None]) -> None:
        """call() runs behind each optimizer.name(..)."""
        if name == "step" and hasattr(self._optimizer, "register_step_post_hook"):
            self._handles.append(self._optimizer.register_step_post_hook(lambda *_: call()))
            return
        self._replace(name, lambda original, arguments, named: (original(*arguments, **named), call())[0])

    def within(self, name: str, context: Callable[..., ContextManager[Any]]) -> None:
        """Each optimizer.name(..) runs inside of context(..), which gets the same arguments."""
        def call(original: Any, arguments: Any, named: Any) -> Any:
            with context(*arguments, **named):
                return original(*arguments, **named)

        self._replace(name, call)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        for name, stand_in, own in reversed(self._replaced):
            stand_in.__func__.eplb_call = lambda original, arguments, named: original(*arguments, **named)
            if self._optimizer.__dict__.get(name) == stand_in:  # otherwise another wrapper is around it
                if own is None:
                    del self._optimizer.__dict__[name]
                else:
                    self._optimizer.__dict__[name] = own
        self._handles, self._replaced = [], []

    def _replace(self, name: str, call: Callable[[Any, Any, Any], Any]) -> None:
        original = getattr(self._optimizer, name)

        @functools.wraps(original)
        def stand_in(_self: Any, *arguments: Any, **named: Any) -> Any:
            if _self is not self._optimizer:  # a copy of it, which has a copy of this
                return getattr(type(_self), name)(_self, *arguments, **named)
            return stand_in.eplb_call(original, arguments, named)  # type: ignore[attr-defined]

        stand_in.eplb_call = call  # type: ignore[attr-defined]
        own = self._optimizer.__dict__.get(name)
        bound = types.MethodType(stand_in, self._optimizer)  # schedulers take __func__ and __self__ of `step`
        self._optimizer.__dict__[name] = bound
        self._replaced.append((name, bound, own))


class Steps:
    """Notes which optimizers have made a step since the last boundary, and whether a forward followed it.

    then: runs after the step by which each of them has made one. clock: () -> a number that rises with each forward that trains.
    Threads: the training thread.
    """

    def __init__(self, calls: Sequence[OptimizerCalls], then: Optional[Callable[[], Any]] = None,
                 clock: Callable[[], int] = lambda: 0) -> None:
        self._clock, self._then, self._num_idle = clock, then, 0
        self._made: Dict[int, int] = {}  # the clock at the newest step of each
        self._calls = list(calls) if all(each.has("step") for each in calls) else []
        for number, each in enumerate(self._calls):
            each.after("step", functools.partial(self._note, number))

    def why_not_move(self) -> str:
        """Returns why experts must stay in this boundary, because gradients may wait for a step; "" if they may move."""
        if not self._calls or not self._are_heard():
            return ""
        idle = [number for number in range(len(self._calls)) if number not in self._made]
        if idle:
            which = f"{len(idle)} of {len(self._calls)} attached optimizers have" if len(self._calls) > 1 else "the optimizer has"
            return f"{which} made no step since the last boundary"
        if max(self._made.values()) != self._clock():
            return "a forward ran between the optimizer's step and the boundary, and its gradients would not move"
        return ""

    def end_boundary(self) -> None:
        """The steps that were made belong to this boundary."""
        self._num_idle = 0 if self._made else self._num_idle + 1
        self._made.clear()

    def expect_some(self, boundaries: int) -> None:
        """errors: FailedPrecondition when none was made in so many boundaries, one after the other: something else trains."""
        if self._num_idle >= boundaries and self._calls and self._are_heard():
            raise FailedPrecondition(f"no attached optimizer made a step in {self._num_idle} boundaries: attach the optimizer that "
                                     f"trains, or detach before it is replaced; to train nothing, attach without one")

    def _are_heard(self) -> bool:
        return all(each.is_heard("step") for each in self._calls)

    def _note(self, number: int) -> None:
        self._made[number] = self._clock()
        if self._then is not None and len(self._made) == len(self._calls):
            self._then()
