"""The structs and callbacks of eplb.h as ctypes sees them; eplb.h says what each field means.

Structs only ever grow at their end, and each carries its size, so that these work with every library whose
eplb_abi_version() is not below ABI_VERSION.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, TypeVar

ABI_VERSION = 6

# eplb_role and eplb_state_placement.
ROLES = {"weight": 0, "state": 1, "derived": 2}
STATE_PLACEMENTS = {"with_primary": 0, "every_replica": 1}
# eplb_gradient_type and eplb_id_type.
GRADIENT_TYPES = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
ID_TYPES = {"int32": 0, "int64": 1}

AllGatherCallback = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_void_p)
RebuildCallback = CFUNCTYPE(c_int32, c_void_p, c_int32, POINTER(c_int32), c_size_t)
WaitCallback = CFUNCTYPE(c_int32, c_void_p)
ProbeCallback = CFUNCTYPE(c_int32, c_void_p, c_int32, c_int32, POINTER(c_uint64))


class ClientOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_char_p) for name in (
            "job", "run_id", "endpoint", "tls_ca", "tls_cert", "tls_key", "tls_server_name", "reduce", "transport",
            "bind_address", "initial_placement", "placements_path", "history_path")
    ] + [("first_step", c_int64), ("nccl_piece_bytes", c_int64), ("start_deadline_s", c_double),
         ("vote_deadline_s", c_double), ("transfer_deadline_s", c_double)] + [
        (name, c_int32) for name in (
            "rank", "world_size", "num_layers", "num_experts", "num_slots", "num_gpus", "num_nodes", "num_groups",
            "vote_every", "report_every", "report_max_steps", "layers_per_chunk", "state_placement", "nccl_max_ctas",
            "nccl_channels_per_net_peer", "nccl_traffic_class", "nccl_warm_up_ranks", "pipeline_parallel_size",
            "expert_tensor_parallel", "reserved", "require_daemon", "take_over")
    ] + [("split", c_char_p), ("ahead", c_int32), ("reserved2", c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("base", c_void_p), ("row_bytes", c_int64),
                ("row_stride", c_int64), ("num_rows", c_int32), ("layer", c_int32), ("role", c_int32),
                ("reserved", c_int32), ("rebuild", RebuildCallback), ("user", c_void_p)]


class ReplicaRows(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("base", c_void_p), ("row_bytes", c_int64),
                ("row_stride", c_int64), ("num_rows", c_int32), ("layer", c_int32), ("type", c_int32), ("reserved", c_int32)]


class Boundary(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("voted", c_int32), ("switched", c_int32), ("version", c_int64),
                ("sent_bytes", c_int64), ("received_bytes", c_int64), ("pause_s", c_double),
                ("decided_first_step", c_int64), ("decided_last_step", c_int64), ("reason", c_char_p)]


class Placement(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("version", c_int64), ("digest", c_char * 72), ("num_layers", c_int32),
                ("num_experts", c_int32), ("num_slots", c_int32), ("first_local_slot", c_int32),
                ("num_local_slots", c_int32), ("max_replicas", c_int32), ("physical_to_logical_map", c_void_p),
                ("logical_to_physical_map", c_void_p), ("logical_replica_count", c_void_p)]


class DeviceTables(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("num_layers", c_int32), ("num_experts", c_int32), ("num_slots", c_int32),
                ("reserved", c_int32)] + [
        (name, c_void_p) for name in ("physical_to_logical_map", "logical_replica_count", "replicas", "first_replica",
                                      "candidates", "first_candidate", "thresholds")
    ]


class Choices(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("expert_ids", c_void_p), ("is_padding", c_void_p), ("counters", c_void_p),
                ("num_tokens", c_int64), ("top_k", c_int32), ("num_experts", c_int32), ("id_type", c_int32),
                ("reserved", c_int32)]


class Batch(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("totals", c_void_p), ("by_gpu", c_void_p), ("before", c_void_p),
                ("mine", c_void_p), ("num_experts", c_int32), ("num_gpus", c_int32)]


class Split(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("quotas", c_void_p), ("own", c_void_p), ("tight_gpus", c_void_p),
                ("num_slots", c_int32), ("num_tight_gpus", c_int32), ("version", c_int64), ("peak", c_double),
                ("mean", c_double), ("balancedness", c_double), ("equal_peak", c_double)]


class SplitOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("gpu_speeds", c_void_p), ("slack", c_double), ("num_gpus", c_int32),
                ("reserved", c_int32)]


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("connected", c_int32), ("reserved", c_int32), ("reconnects", c_int64),
                ("reports_sent", c_int64), ("refusals", c_int64), ("dropped_steps", c_int64), ("votes", c_int64),
                ("commits", c_int64), ("dropped_chunks", c_int64), ("disconnected_s", c_double),
                ("session_waits_over_1ms", c_int64)]


class RebalanceOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_int32) for name in ("num_layers", "num_experts", "num_replicas", "num_groups", "num_nodes", "num_gpus",
                                     "tie_break", "reserved")
    ]


class PlanOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("policy", c_char_p), ("previous", c_void_p),
                ("previous_replicas", c_void_p), ("gpu_speeds", c_void_p), ("previous_max_replicas", c_int32)] + [
        (name, c_int32) for name in ("num_layers", "num_experts", "num_slots", "num_gpus", "num_nodes", "num_groups",
                                     "tie_break", "hierarchy", "effort", "allow_duplicates", "max_moves_per_gpu")
    ]


class ReplayOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("policy", c_char_p), ("split", c_char_p), ("min_gain", c_double), ("token_ns", c_double)] + [
        (name, c_int64) for name in ("expert_bytes", "steps_of_window", "every", "history")] + [
        (name, c_int32) for name in ("num_windows", "num_layers", "num_experts", "num_slots", "num_gpus", "num_nodes", "num_groups",
                                     "reserved")
    ]


class ReplayFigures(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_double) for name in ("balancedness_without_eplb", "balancedness", "seconds_without_eplb", "seconds_saved",
                                      "seconds_spent")] + [(name, c_int64) for name in ("rebalances", "transfers", "bytes")]


class PlanSizes(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("num_layers", c_int32), ("num_experts", c_int32), ("num_slots", c_int32),
                ("max_replicas", c_int32)]


Struct = TypeVar("Struct", bound=ctypes.Structure)


def sized(struct: "type[Struct]", **fields: Any) -> Struct:
    """A struct of zeros that knows its size, with these fields set."""
    return struct(struct_size=ctypes.sizeof(struct), **fields)
