"""Finds libeplb.so, checks that it is new enough, and declares its functions.

It is loaded at the first call that needs it, so that reading this package, checkpoints and conversions need none.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import List, Optional

from eplb import _structs as structs
from eplb.errors import Error, LibraryNotFound, error_of

_SONAME = "libeplb.so.0"
_library: Optional[ctypes.CDLL] = None
_loading = threading.Lock()

# Results and arguments, beside those of the functions that only return a code.
_CLIENT = c_void_p
_SIGNATURES = {
    "eplb_abi_version": (c_int32, []),
    "eplb_version": (c_char_p, []),
    "eplb_last_message": (c_char_p, []),
    "eplb_callback_message": (None, [c_char_p]),
    "eplb_client_options_init": (c_int32, [POINTER(structs.ClientOptions), c_size_t]),
    "eplb_answers_add": (c_int32, [c_void_p, c_char_p, c_size_t]),
    "eplb_client_create": (c_int32, [POINTER(c_void_p)]),
    "eplb_client_destroy": (None, [_CLIENT]),
    "eplb_client_on_wait": (c_int32, [_CLIENT, structs.WaitCallback, c_void_p]),
    "eplb_client_connect": (c_int32, [_CLIENT, POINTER(structs.ClientOptions), structs.AllGatherCallback, c_void_p]),
    "eplb_client_connect_through_daemon": (c_int32, [_CLIENT, POINTER(structs.ClientOptions)]),
    "eplb_client_register_experts": (c_int32, [_CLIENT, POINTER(structs.Tensor), c_size_t]),
    "eplb_client_check_experts": (c_int32, [_CLIENT, structs.ProbeCallback, c_void_p, c_void_p]),
    "eplb_client_carry": (c_int32, [_CLIENT, c_void_p, c_size_t, c_void_p]),
    "eplb_client_record": (c_int32, [_CLIENT, c_int32, c_void_p, c_size_t]),
    "eplb_client_record_step_time": (c_int32, [_CLIENT, c_double]),
    "eplb_client_vote_no": (c_int32, [_CLIENT, c_char_p]),
    "eplb_client_record_split": (c_int32, [_CLIENT, c_int32, c_void_p, c_size_t]),
    "eplb_client_step_boundary": (c_int32, [_CLIENT, c_int64, c_void_p, POINTER(structs.Boundary)]),
    "eplb_client_placement": (c_int32, [_CLIENT, POINTER(structs.Placement)]),
    "eplb_client_row_placement": (c_int32, [_CLIENT, POINTER(structs.Placement)]),
    "eplb_client_device_tables": (c_int32, [_CLIENT, POINTER(structs.DeviceTables)]),
    "eplb_count_tokens": (c_int32, [POINTER(structs.Choices), c_void_p]),
    "eplb_turn_tokens": (c_int32, [POINTER(structs.Choices), c_void_p, c_void_p]),
    "eplb_turn_tokens_on_gpu": (c_int32, [POINTER(structs.Choices), c_void_p, c_void_p, c_void_p, c_int32, c_void_p]),
    "eplb_client_route_tokens": (c_int32, [_CLIENT, c_int32, POINTER(structs.Choices), c_int64, c_void_p, c_void_p]),
    "eplb_client_split": (c_int32, [_CLIENT, c_int32, POINTER(structs.Batch), POINTER(structs.Split)]),
    "eplb_client_set_split_options": (c_int32, [_CLIENT, POINTER(structs.SplitOptions)]),
    "eplb_client_prepare_split": (c_int32, [_CLIENT, POINTER(structs.SplitSetup)]),
    "eplb_client_count_for": (c_int32, [_CLIENT, c_int32, POINTER(structs.Choices), c_void_p, c_void_p]),
    "eplb_client_route_from": (c_int32, [_CLIENT, c_int32, c_void_p, c_void_p, c_void_p]),
    "eplb_client_split_figures": (c_int32, [_CLIENT, POINTER(structs.SplitFigures)]),
    "eplb_client_route_split": (c_int32, [_CLIENT, c_int32, POINTER(structs.Choices), POINTER(structs.Split), c_void_p]),
    "eplb_client_check_counts": (c_int32, [_CLIENT, c_int32, c_void_p, c_size_t]),
    "eplb_client_reduce_gradients": (c_int32, [_CLIENT, POINTER(structs.ReplicaRows), c_size_t, c_void_p]),
    "eplb_client_broadcast_weights": (c_int32, [_CLIENT, POINTER(structs.ReplicaRows), c_size_t, c_void_p]),
    "eplb_client_expert_squares": (c_int32, [_CLIENT, POINTER(structs.ReplicaRows), c_size_t, c_void_p, c_void_p, c_size_t]),
    "eplb_client_transport": (c_int32, [_CLIENT, POINTER(c_char_p)]),
    "eplb_client_run_id": (c_int32, [_CLIENT, POINTER(c_char_p)]),
    "eplb_client_stats": (c_int32, [_CLIENT, POINTER(structs.Stats)]),
    "eplb_client_close": (c_int32, [_CLIENT, c_char_p]),
    "eplb_rebalance_experts": (c_int32, [POINTER(structs.RebalanceOptions), POINTER(c_float), POINTER(c_void_p)]),
    "eplb_plan_options_init": (c_int32, [POINTER(structs.PlanOptions), c_size_t]),
    "eplb_plan_from_counts": (c_int32, [POINTER(structs.PlanOptions), POINTER(c_int64), POINTER(c_void_p)]),
    "eplb_plan_from_estimates": (c_int32, [POINTER(structs.PlanOptions), POINTER(c_double), POINTER(c_void_p)]),
    "eplb_plan_from_scenarios": (c_int32, [POINTER(structs.PlanOptions), c_int32, POINTER(c_double), POINTER(c_double), c_int32,
                                           POINTER(c_void_p)]),
    "eplb_plan_get_sizes": (c_int32, [c_void_p, POINTER(structs.PlanSizes)]),
    "eplb_plan_copy_maps": (c_int32, [c_void_p, POINTER(c_int64), POINTER(c_int64), POINTER(c_int64)]),
    "eplb_plan_copy_figures": (c_int32, [c_void_p, POINTER(c_double), POINTER(c_double)]),
    "eplb_plan_copy_scenario_figures": (c_int32, [c_void_p, POINTER(c_double)]),
    "eplb_plan_destroy": (None, [c_void_p]),
    "eplb_plan_from_maps": (c_int32, [POINTER(structs.PlanOptions), POINTER(c_void_p)]),
    "eplb_replay_options_init": (c_int32, [POINTER(structs.ReplayOptions), c_size_t]),
    "eplb_replay": (c_int32, [POINTER(structs.ReplayOptions), POINTER(c_int64), POINTER(structs.ReplayFigures)]),
    "eplb_ask_plan": (c_int32, [POINTER(structs.PlanQuestion), c_void_p, POINTER(structs.PlanAnswer)]),
    "eplb_settle_plan": (c_int32, [POINTER(structs.PlanQuestion), POINTER(structs.PlanAnswer), c_int32, c_char_p]),
    "eplb_splitter_create": (c_int32, [c_void_p, POINTER(structs.SplitOptions), POINTER(c_void_p)]),
    "eplb_splitter_split": (c_int32, [c_void_p, c_int32, POINTER(structs.Batch), c_int32, POINTER(structs.Split)]),
    "eplb_splitter_destroy": (None, [c_void_p]),
}


def load() -> ctypes.CDLL:
    """The library, loaded once. Threads: safe.

    errors: LibraryNotFound, saying where it was looked for or what is wrong with what was found.
    """
    global _library
    if _library is None:
        with _loading:
            if _library is None:
                _library = _declare(_open())
    return _library


def library_version() -> str:
    """Returns the version of libeplb.so, such as "0.1.0". errors: LibraryNotFound."""
    return load().eplb_version().decode()


def check(code: int) -> None:
    """errors: the Error that the library's last call on this thread reported, if `code` is not 0."""
    if code != 0:
        raise last_error(code)


def last_error(code: int) -> Error:
    """The library's last failure on this thread, as an exception that is not raised."""
    return error_of(code, load().eplb_last_message().decode("utf-8", "replace"))


def _open() -> ctypes.CDLL:
    given = os.environ.get("EPLB_LIBRARY", "")
    if given:  # nothing else would be what was asked for
        try:
            return ctypes.CDLL(given)
        except OSError as error:
            raise LibraryNotFound(f"EPLB_LIBRARY is {given}, which cannot be loaded: {error}") from None
    tried: List[str] = []
    directory = Path(__file__).resolve().parent
    for found in (directory / _SONAME, directory / "libeplb.so", *_of_prefix(directory)):
        if found.exists():
            try:
                return ctypes.CDLL(str(found))
            except OSError as error:
                raise LibraryNotFound(f"{found} cannot be loaded: {error}") from None
    try:
        return ctypes.CDLL(_SONAME)
    except OSError as error:
        tried.append(str(error))
    raise LibraryNotFound(f"libeplb is not there: EPLB_LIBRARY is not set, {directory} has no {_SONAME}, and the loader "
                          f"reports \"{tried[-1]}\". Install libeplb, or set EPLB_LIBRARY to the path of libeplb.so")


def _of_prefix(directory: Path) -> List[Path]:
    """Returns the library's path beside PREFIX/lib/python3/dist-packages/eplb."""
    installed = directory.parts[-4:] == ("lib", "python3", "dist-packages", "eplb")
    return [directory.parents[2] / _SONAME] if installed else []


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    where = library._name
    missing = [name for name in _SIGNATURES if not hasattr(library, name)]
    if "eplb_abi_version" in missing:
        raise LibraryNotFound(f"{where} is not libeplb: it has no eplb_abi_version")
    library.eplb_abi_version.restype = c_int32
    found = library.eplb_abi_version()
    if found < structs.ABI_VERSION or missing:
        raise LibraryNotFound(f"{where} has version {found} of the ABI, this package needs {structs.ABI_VERSION}"
                              f"{': it has no ' + ', '.join(missing) if missing else ''}; install a newer libeplb")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
