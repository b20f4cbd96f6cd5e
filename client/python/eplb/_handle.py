"""The client behind the ABI, the memory that is read from it, and the callbacks that it makes."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Generator, List, Optional, Sequence

import numpy as np

from eplb import _library
from eplb import _structs as structs
from eplb.errors import Aborted, DataLoss, Error, code_of

AllGather = Callable[[bytes], Sequence[bytes]]
Rebuild = Callable[[int, np.ndarray], None]
Probe = Callable[[int, int], int]


class Handle:
    """An eplb_client, destroyed when nothing uses it any more: neither a Client nor an array over its memory.

    At interpreter exit it is left to the end of the process: arrays may live longer than any order of destruction.
    """

    def __init__(self) -> None:
        self.library = _library.load()
        self.pointer = ctypes.c_void_p()
        self.callbacks: List[Any] = []  # that the library may still call
        self._raised: Optional[BaseException] = None
        self.ended: Optional[Error] = None  # why the run is over, once a call has said so
        _library.check(self.library.eplb_client_create(ctypes.byref(self.pointer)))
        codes = self._codes_of_waits()
        next(codes)
        wait = structs.WaitCallback(codes.send)
        self.callbacks.append(wait)
        _library.check(self.library.eplb_client_on_wait(self.pointer, wait, None))
        destroy = weakref.finalize(self, self.library.eplb_client_destroy, ctypes.c_void_p(self.pointer.value))
        destroy.atexit = False

    def check(self, code: int) -> None:
        """For calls of the training thread that may make callbacks.

        errors: what a callback raised in the call that gave `code`, its __cause__ the library's Error; else that Error. A
        signal handler may raise in a call that succeeds.
        """
        raised, self._raised = self._raised, None
        error = None if code == 0 else _library.last_error(code)
        if isinstance(error, (Aborted, DataLoss)):
            self.ended = error
        if raised is not None:
            raise raised from error
        if error is not None:
            raise error

    def array(self, address: int, shape: Sequence[int]) -> np.ndarray:
        """int32 [shape] over memory of the client, read-only, which it keeps alive."""
        buffer = (ctypes.c_int32 * int(np.prod(shape))).from_address(address)
        buffer.owner = self  # type: ignore[attr-defined]
        return np.frombuffer(memoryview(buffer).cast("B").toreadonly(), dtype=np.int32).reshape(shape)

    def all_gather_callback(self, all_gather: AllGather) -> Any:
        def call(_: int, data: int, size: int, answers: int) -> None:
            for rank, answer in enumerate(all_gather(ctypes.string_at(data, size))):
                if not isinstance(answer, (bytes, bytearray, memoryview)):
                    raise TypeError(f"the all-gather gave {type(answer).__name__} for rank {rank}, expected bytes")
                answer = bytes(answer)
                _library.check(self.library.eplb_answers_add(answers, answer, len(answer)))

        return self._keep(structs.AllGatherCallback, call)

    def rebuild_callback(self, rebuild: Rebuild) -> Any:
        def call(_: int, layer: int, slots: Any, num_slots: int) -> None:
            rebuild(layer, np.array(slots[:num_slots], dtype=np.int32))

        return self._keep(structs.RebuildCallback, call)

    def probe_callback(self, probe: Probe) -> Any:
        def call(_: int, layer: int, local_slot: int, digest: Any) -> None:
            digest[0] = probe(layer, local_slot)

        return self._keep(structs.ProbeCallback, call)

    def _codes_of_waits(self) -> Generator[int, None, None]:
        """Answers the callback of waits. Python runs the handlers of signals when it resumes a generator, which is inside of the
        try; a function would do so on its first line, outside of any."""
        code = 0
        while True:
            try:
                yield code
                code = 0
            except GeneratorExit:
                return
            except BaseException as error:  # as KeyboardInterrupt: it ends the wait, and the call raises it
                code = self._note(error)

    def _note(self, error: BaseException) -> int:
        self._raised = error
        self.library.eplb_callback_message(f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        return code_of(error)

    def _keep(self, kind: Any, call: Callable[..., None]) -> Any:
        def guarded(*arguments: Any) -> int:
            try:
                call(*arguments)
            except BaseException as error:  # also KeyboardInterrupt: it must not be lost between the frames of C
                return self._note(error)
            return 0

        callback = kind(guarded)
        self.callbacks.append(callback)
        return callback
