"""EPLB in Python: what an MoE trainer embeds on every rank, over libeplb's C ABI.

Client: connect, register, record, step_boundary, close. torch_all_gather, StoreAllGather: how the ranks meet.
Client.split, split and Splitter: how many of an expert's tokens each of its slots takes, for the batch at hand.
Beside it: eplb.placement (placements without a daemon), eplb.checkpoint (experts in logical order, for any placement),
eplb.check (forgotten tensors), eplb.traces (with PyTorch's profiler), eplb.torch (PyTorch trainers), eplb.vllm and
eplb.sglang (placements inside serving engines), and python -m eplb.convert.
"""

import importlib
from typing import Any

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
_MODULES = ("check", "checkpoint", "convert", "placement", "sglang", "torch", "traces", "vllm")  # loaded when they are asked for


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"eplb.{name}")
    raise AttributeError(f"module 'eplb' has no attribute '{name}'")


__all__ = [
    "Aborted", "AlreadyExists", "Boundary", "Cancelled", "Client", "DataLoss", "DeadlineExceeded", "DeviceTable",
    "DeviceTables", "Error", "FailedPrecondition", "Internal", "InvalidArgument", "LibraryNotFound", "NotFound",
    "Options", "OutOfRange", "PermissionDenied", "PlacementView", "ResourceExhausted", "Split", "Splitter", "Stats",
    "StoreAllGather", "Unauthenticated", "Unavailable", "Unimplemented", "library_version", "split",
    "torch_all_gather",
]
