"""EPLB in Python: what an MoE trainer embeds on every rank, over libeplb's C ABI.

Client: connect, register, record, step_boundary, close. torch_all_gather, StoreAllGather: how the ranks meet.
Client.split, split and Splitter: how many of an expert's tokens each of its slots takes, for the batch at hand.
Modules beside it:
- eplb.torch, eplb.traces: PyTorch trainers, traces beside PyTorch's profiler
- eplb.placement, eplb.profiles: placements without a daemon, loads of several workloads
- eplb.vllm, eplb.sglang: placements inside serving engines
- eplb.checkpoint, eplb.check: experts in logical order for any placement, forgotten tensors
"""

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:  # __getattr__ loads them when they are asked for
    from eplb._library import library_version
    from eplb.client import Client
    from eplb.errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error, FailedPrecondition, Internal,
                             InvalidArgument, LibraryNotFound, NotFound, OutOfRange, PermissionDenied, ResourceExhausted,
                             Unauthenticated, Unavailable, Unimplemented)
    from eplb.all_gather import StoreAllGather, torch_all_gather
    from eplb.options import Options
    from eplb.splits import Split, Splitter, split
    from eplb.views import Boundary, DeviceTable, DeviceTables, PlacementView, Stats

__version__ = "0.1.0"
_MODULES = ("all_gather", "check", "checkpoint", "client", "convert", "errors", "options", "placement", "profiles", "sglang", "splits", "torch", "traces",
            "views", "vllm")
# The modules of the names below; errors has the others.
_HOMES = {"Client": "client", "StoreAllGather": "all_gather", "torch_all_gather": "all_gather", "Options": "options", "Split": "splits",
          "Splitter": "splits", "split": "splits", "Boundary": "views", "DeviceTable": "views", "DeviceTables": "views",
          "PlacementView": "views", "Stats": "views", "library_version": "_library"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"eplb.{name}")
    if name in __all__:
        value = globals()[name] = getattr(importlib.import_module(f"eplb.{_HOMES.get(name, 'errors')}"), name)
        return value
    raise AttributeError(f"module 'eplb' has no attribute '{name}'")


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__, *_MODULES})


__all__ = [
    "Aborted", "AlreadyExists", "Boundary", "Cancelled", "Client", "DataLoss", "DeadlineExceeded", "DeviceTable",
    "DeviceTables", "Error", "FailedPrecondition", "Internal", "InvalidArgument", "LibraryNotFound", "NotFound",
    "Options", "OutOfRange", "PermissionDenied", "PlacementView", "ResourceExhausted", "Split", "Splitter", "Stats",
    "StoreAllGather", "Unauthenticated", "Unavailable", "Unimplemented", "library_version", "split",
    "torch_all_gather",
]
