"""The structs and callbacks of eplb.h as ctypes sees them; eplb.h says what each field means.

Structs only ever grow at their end, and each carries its size, so that these work with every library whose
eplb_abi_version() is not below ABI_VERSION.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, List, Tuple, TypeVar

ABI_VERSION = 8

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


def _of(kind: Any, names: str) -> List[Tuple[str, Any]]:
    """Fields of one type, in the order of their names."""
    return [(name, kind) for name in names.split()]


_SIZE = ("struct_size", c_size_t)


class ClientOptions(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_char_p, "job run_id endpoint tls_ca tls_cert tls_key tls_server_name reduce transport bind_address "
                                      "initial_placement placements_path history_path"),
                *_of(c_int64, "first_step nccl_piece_bytes"),
                *_of(c_double, "start_deadline_s vote_deadline_s transfer_deadline_s"),
                *_of(c_int32, "rank world_size num_layers num_experts num_slots num_gpus num_nodes num_groups vote_every report_every "
                              "report_max_steps layers_per_chunk state_placement nccl_max_ctas nccl_channels_per_net_peer "
                              "nccl_traffic_class nccl_warm_up_ranks pipeline_parallel_size expert_tensor_parallel reserved "
                              "require_daemon take_over"),
                ("split", c_char_p), *_of(c_int32, "ahead reserved2")]


class Tensor(ctypes.Structure):
    _fields_ = [_SIZE, ("name", c_char_p), ("base", c_void_p), *_of(c_int64, "row_bytes row_stride"),
                *_of(c_int32, "num_rows layer role reserved"), ("rebuild", RebuildCallback), ("user", c_void_p)]


class ReplicaRows(ctypes.Structure):
    _fields_ = [_SIZE, ("name", c_char_p), ("base", c_void_p), *_of(c_int64, "row_bytes row_stride"),
                *_of(c_int32, "num_rows layer type reserved")]


class Boundary(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_int32, "voted switched"), *_of(c_int64, "version sent_bytes received_bytes"), ("pause_s", c_double),
                *_of(c_int64, "decided_first_step decided_last_step"), ("reason", c_char_p), *_of(c_int32, "votes_next window_ends_next")]


class Placement(ctypes.Structure):
    _fields_ = [_SIZE, ("version", c_int64), ("digest", c_char * 72),
                *_of(c_int32, "num_layers num_experts num_slots first_local_slot num_local_slots max_replicas"),
                *_of(c_void_p, "physical_to_logical_map logical_to_physical_map logical_replica_count")]


class DeviceTables(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_int32, "num_layers num_experts num_slots reserved"),
                *_of(c_void_p, "physical_to_logical_map logical_replica_count replicas first_replica candidates first_candidate "
                               "thresholds")]


class Choices(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_void_p, "expert_ids is_padding counters"), ("num_tokens", c_int64),
                *_of(c_int32, "top_k num_experts id_type reserved")]


class Batch(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_void_p, "totals by_gpu before mine"), *_of(c_int32, "num_experts num_gpus")]


class Split(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_void_p, "quotas own tight_gpus"), *_of(c_int32, "num_slots num_tight_gpus"), ("version", c_int64),
                *_of(c_double, "peak mean balancedness equal_peak")]


class SplitOptions(ctypes.Structure):
    _fields_ = [_SIZE, ("gpu_speeds", c_void_p), ("slack", c_double), *_of(c_int32, "num_gpus reserved")]


class SplitSetup(ctypes.Structure):
    _fields_ = [_SIZE, ("max_tokens", c_int64), ("deadline_s", c_double), *_of(c_int32, "top_k split_on_gpu")]


class SplitFigures(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_int64, "batches late refused version"), *_of(c_double, "peak mean balancedness equal_peak"),
                *_of(c_int64, "drawn")]


class Stats(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_int32, "connected reserved"),
                *_of(c_int64, "reconnects reports_sent refusals dropped_steps votes commits dropped_chunks"),
                ("disconnected_s", c_double), ("session_waits_over_1ms", c_int64)]


class RebalanceOptions(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_int32, "num_layers num_experts num_replicas num_groups num_nodes num_gpus tie_break reserved")]


class PlanOptions(ctypes.Structure):
    _fields_ = [_SIZE, ("policy", c_char_p), *_of(c_void_p, "previous previous_replicas gpu_speeds"),
                *_of(c_int32, "previous_max_replicas num_layers num_experts num_slots num_gpus num_nodes num_groups tie_break "
                              "hierarchy effort allow_duplicates max_moves_per_gpu")]


class ReplayOptions(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_char_p, "policy split"), *_of(c_double, "min_gain token_ns"),
                *_of(c_int64, "expert_bytes steps_of_window every history"),
                *_of(c_int32, "num_windows num_layers num_experts num_slots num_gpus num_nodes num_groups reserved")]


class ReplayFigures(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_double, "balancedness_without_eplb balancedness seconds_without_eplb seconds_saved seconds_spent"),
                *_of(c_int64, "rebalances transfers bytes")]


class PlanQuestion(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_char_p, "endpoint tls_ca tls_cert tls_key tls_server_name job run_id replaces_run_id engine"),
                *_of(c_void_p, "counts current"), *_of(c_int64, "number expert_bytes"), ("timeout_s", c_double),
                *_of(c_int32, "num_layers num_experts num_slots num_gpus num_nodes num_groups")]


class PlanAnswer(ctypes.Structure):
    _fields_ = [_SIZE, ("version", c_int64), *_of(c_int32, "changes reserved"), ("reason", c_char * 520), ("endpoint", c_char * 264)]


class PlanSizes(ctypes.Structure):
    _fields_ = [_SIZE, *_of(c_int32, "num_layers num_experts num_slots max_replicas")]


Struct = TypeVar("Struct", bound=ctypes.Structure)


def sized(struct: "type[Struct]", **fields: Any) -> Struct:
    """A struct of zeros that knows its size, with these fields set."""
    return struct(struct_size=ctypes.sizeof(struct), **fields)
