"""Placement, boundaries, tables for kernels and counters of a client."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, NamedTuple, Tuple

import numpy as np

from eplb import _library
from eplb import _structs as structs
from eplb._handle import Handle
from eplb._records import counted


class Boundary(NamedTuple):
    """Result of one step_boundary.

    voted: all ranks voted. switched: experts moved, and the next forward runs under `version`. sent_bytes, received_bytes: rows
    of this rank. pause_seconds: time in the call. decided_first_step, decided_last_step: steps whose load led to a switch.
    reason: for a switch or a dropped chunk; or "NOT_COUNTING: " and the layers without tokens for two load windows; else "".
    votes_next: the next step_boundary votes. window_ends_next: a load window ends with the next step.
    """

    voted: bool
    switched: bool
    version: int
    sent_bytes: int
    received_bytes: int
    pause_seconds: float
    decided_first_step: int
    decided_last_step: int
    reason: str
    votes_next: bool
    window_ends_next: bool


class Stats(NamedTuple):
    """Counters since connect. refusals: calls that the daemon refused. dropped_steps: steps whose counts were dropped while the
    daemon was away. dropped_chunks: chunks that the second vote rejected.
    """

    connected: bool
    reconnects: int
    reports_sent: int
    refusals: int
    dropped_steps: int
    votes: int
    commits: int
    dropped_chunks: int
    disconnected_seconds: float
    session_waits_over_1ms: int


class PlacementView:
    """The current placement on this rank. It follows switches, inside step_boundary and check_experts; that of
    client.row_placement follows carry. client/python/README.md has a table of its attributes.

    The maps are int32, read-only, and readable as long as they are kept, also after close. Threads: the training thread.
    """

    def __init__(self, handle: Handle, num_gpus: int, of_rows: bool = False) -> None:
        self._handle = handle
        library = handle.library
        self._call = library.eplb_client_row_placement if of_rows else library.eplb_client_placement
        now = self._read()
        self.num_layers: int = now.num_layers
        self.num_experts: int = now.num_experts
        self.num_slots: int = now.num_slots
        self.num_gpus = num_gpus
        self.first_local_slot: int = now.first_local_slot
        self.num_local_slots: int = now.num_local_slots
        self.max_replicas: int = now.max_replicas
        by_expert = (self.num_layers, self.num_experts)
        self.physical_to_logical_map = handle.array(now.physical_to_logical_map, (self.num_layers, self.num_slots))
        self.logical_to_physical_map = handle.array(now.logical_to_physical_map, (*by_expert, self.max_replicas))
        self.logical_replica_count = handle.array(now.logical_replica_count, by_expert)

    @property
    def version(self) -> int:
        return int(self._read().version)

    @property
    def digest(self) -> str:
        """SHA-256 of shape and maps, hexadecimal."""
        return self._read().digest.decode()

    def local_experts(self, layer: int) -> np.ndarray:
        """int32 [num_local_slots]: the experts in this rank's slots; -1 in one that is not in use. Follows switches."""
        first = self.first_local_slot
        return self.physical_to_logical_map[layer, first:first + self.num_local_slots]

    def replicas(self, layer: int, expert: int) -> Tuple[int, ...]:
        """The slots of an expert, its primary first."""
        count = self.logical_replica_count[layer, expert]
        return tuple(self.logical_to_physical_map[layer, expert, :count].tolist())

    def __repr__(self) -> str:
        end = self.first_local_slot + self.num_local_slots
        return (f"<eplb.PlacementView: version {self.version}, {counted(self.num_layers, 'layer')} of "
                f"{counted(self.num_experts, 'expert')} in {counted(self.num_slots, 'slot')} on "
                f"{counted(self.num_gpus, 'GPU')}, this rank's slots {self.first_local_slot}..{end - 1}>")

    def _read(self) -> structs.Placement:
        struct = structs.sized(structs.Placement)
        _library.check(self._call(self._handle.pointer, ctypes.byref(struct)))
        return struct


class DeviceTable:
    """One table in the memory where the expert tensors lie: np.asarray(table) on the host, torch.as_tensor(table,
    device="cuda") on a GPU, without a copy. It keeps its address until the client and all its arrays are gone; its
    contents change on the stream of step_boundary."""

    def __init__(self, handle: Handle, address: int, shape: Tuple[int, ...], dtype: str, on_gpu: bool) -> None:
        self._handle = handle  # whoever holds the table keeps its memory
        self.address, self.shape, self.dtype, self.on_gpu = address, shape, np.dtype(dtype), on_gpu

    def _interface(self) -> Dict[str, Any]:
        # Marked as writable, because torch refuses other memory; no caller may write it all the same.
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, not self.on_gpu), "version": 3}

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if self.on_gpu:
            raise AttributeError("the table is in GPU memory")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if not self.on_gpu:
            raise AttributeError("the table is in host memory")
        return self._interface()


class DeviceTables(NamedTuple):
    """The placement for kernels; eplb_device_tables in eplb.h describes how they are read.

    physical_to_logical_map, replicas, candidates: int32 [layers, slots]; thresholds: uint32 [layers, slots];
    logical_replica_count: int32 [layers, experts]; first_replica, first_candidate: int32 [layers, experts + 1].
    """

    physical_to_logical_map: DeviceTable
    logical_replica_count: DeviceTable
    replicas: DeviceTable
    first_replica: DeviceTable
    candidates: DeviceTable
    first_candidate: DeviceTable
    thresholds: DeviceTable


def device_tables_of(handle: Handle, struct: structs.DeviceTables, on_gpu: bool) -> DeviceTables:
    layers, experts, slots = struct.num_layers, struct.num_experts, struct.num_slots
    shapes = {"logical_replica_count": (layers, experts), "first_replica": (layers, experts + 1),
              "first_candidate": (layers, experts + 1)}
    return DeviceTables(*(
        DeviceTable(handle, getattr(struct, name), shapes.get(name, (layers, slots)),
                    "uint32" if name == "thresholds" else "int32", on_gpu)
        for name in DeviceTables._fields))


def stats_of(struct: structs.Stats) -> Stats:
    return _from_struct(Stats, struct, connected=bool(struct.connected), disconnected_seconds=struct.disconnected_s)


def boundary_of(struct: structs.Boundary) -> Boundary:
    return _from_struct(Boundary, struct, voted=struct.voted != 0, switched=struct.switched != 0, pause_seconds=struct.pause_s,
                        votes_next=struct.votes_next != 0, window_ends_next=struct.window_ends_next != 0,
                        reason=(struct.reason or b"").decode("utf-8", "replace"))


def _from_struct(record: Any, struct: ctypes.Structure, **others: Any) -> Any:
    """Returns a record with the struct's fields, but for those in `others`."""
    return record(*(others[name] if name in others else getattr(struct, name) for name in record._fields))
