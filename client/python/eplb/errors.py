"""Errors, one class for each code of the library.

    except eplb.Aborted:          ranks are missing: the run_id is over, stop
    except eplb.DataLoss:         ranks trained under different placements: stop
    except eplb.Error as error:   any of them; error.code, error.code_name, str(error) is the library's sentence
"""

from __future__ import annotations

from typing import Dict, Type

from ._text import printable


class Error(Exception):
    """Something failed; the message says what, with values and what was expected.

    The message is printable: a peer's text inside it moves no cursor. code: the library's number (those of Abseil and
    gRPC), 2 where it is none of the known ones. code_name: its name.
    """

    code: int = 2
    code_name: str = "Unknown"

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(each) if isinstance(each, str) else each for each in args))


class Cancelled(Error):
    code, code_name = 1, "Cancelled"


class InvalidArgument(Error, ValueError):
    """An argument is wrong."""

    code, code_name = 3, "InvalidArgument"


class DeadlineExceeded(Error, TimeoutError):
    """Other ranks missed the deadline; the message names them."""

    code, code_name = 4, "DeadlineExceeded"


class NotFound(Error):
    code, code_name = 5, "NotFound"


class AlreadyExists(Error):
    code, code_name = 6, "AlreadyExists"


class PermissionDenied(Error):
    code, code_name = 7, "PermissionDenied"


class ResourceExhausted(Error):
    """Memory."""

    code, code_name = 8, "ResourceExhausted"


class FailedPrecondition(Error):
    """The right call at the wrong time, or the ranks differ."""

    code, code_name = 9, "FailedPrecondition"


class Aborted(Error):
    """Ranks are missing: the run is over. Every later call says the same."""

    code, code_name = 10, "Aborted"


class OutOfRange(Error):
    code, code_name = 11, "OutOfRange"


class Unimplemented(Error):
    code, code_name = 12, "Unimplemented"


class Internal(Error):
    """CUDA, NCCL, or a fault of the library."""

    code, code_name = 13, "Internal"


class Unavailable(Error):
    """A peer is gone, or could not be reached."""

    code, code_name = 14, "Unavailable"


class DataLoss(Error):
    """Ranks trained under different placements: what they hold must not be used."""

    code, code_name = 15, "DataLoss"


class Unauthenticated(Error):
    code, code_name = 16, "Unauthenticated"


class LibraryNotFound(Error, ImportError):
    """libeplb.so is not there, or too old for this package; the message says where it was looked for."""

    code, code_name = 9, "FailedPrecondition"


_CLASSES: Dict[int, Type[Error]] = {
    each.code: each
    for each in (Cancelled, InvalidArgument, DeadlineExceeded, NotFound, AlreadyExists, PermissionDenied,
                 ResourceExhausted, FailedPrecondition, Aborted, OutOfRange, Unimplemented, Internal, Unavailable,
                 DataLoss, Unauthenticated)
}


def error_of(code: int, message: str) -> Error:
    """The exception, not raised, for a code other than 0."""
    return _CLASSES.get(code, Error)(message)


def code_of(exception: BaseException) -> int:
    """The code with which the library passes on what a callback raised."""
    if isinstance(exception, Error):
        return exception.code
    if isinstance(exception, TimeoutError):
        return DeadlineExceeded.code
    if isinstance(exception, MemoryError):
        return ResourceExhausted.code
    return Error.code
