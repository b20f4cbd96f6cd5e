"""Options of a client; client/python/README.md has a table of them."""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import os
from typing import Any, Dict, Mapping, Optional, Union

from eplb import _library
from eplb import _structs as structs
from eplb._arguments import choice, expect_fields, integer, real, switch, text

Seconds = Union[float, datetime.timedelta]
Text = Union[str, "os.PathLike[str]"]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a client, named as in eplb_client_options of eplb.h. None takes the library's default.

    client/python/README.md has each option's meaning and default. Deadlines are seconds or a timedelta. The Path "static" is a
    file; the text "static" is the static layout.
    """

    job: Optional[str] = None
    run_id: Optional[str] = None
    rank: Optional[int] = None
    world_size: Optional[int] = None
    endpoint: Optional[str] = None
    require_daemon: Optional[bool] = None
    take_over: Optional[bool] = None
    tls_ca: Optional[Text] = None
    tls_cert: Optional[Text] = None
    tls_key: Optional[Text] = None
    tls_server_name: Optional[str] = None
    num_layers: Optional[int] = None
    num_experts: Optional[int] = None
    num_slots: Optional[int] = None
    num_gpus: Optional[int] = None
    pipeline_parallel_size: Optional[int] = None
    expert_tensor_parallel: Optional[int] = None
    num_nodes: Optional[int] = None
    num_groups: Optional[int] = None
    first_step: Optional[int] = None
    vote_every: Optional[int] = None
    report_every: Optional[int] = None
    report_max_steps: Optional[int] = None
    reduce: Optional[str] = None
    split: Optional[str] = None
    layers_per_chunk: Optional[int] = None
    state_placement: Optional[str] = None
    ahead: Optional[bool] = None
    transport: Optional[str] = None
    nccl_max_ctas: Optional[int] = None
    nccl_channels_per_net_peer: Optional[int] = None
    nccl_traffic_class: Optional[int] = None
    nccl_piece_bytes: Optional[int] = None
    nccl_warm_up_ranks: Optional[int] = None
    bind_address: Optional[str] = None
    initial_placement: Optional[Text] = None
    placements_path: Optional[Text] = None
    history_path: Optional[Text] = None
    start_deadline: Optional[Seconds] = None
    vote_deadline: Optional[Seconds] = None
    transfer_deadline: Optional[Seconds] = None


_SWITCHES = ("require_daemon", "take_over", "ahead")
_DEADLINES = ("start_deadline", "vote_deadline", "transfer_deadline")


def options_from(given: Mapping[str, Any]) -> Options:
    """errors: InvalidArgument for an option of another name, with the nearest one that there is."""
    expect_fields(given, Options)
    return Options(**given)


def completed(options: Options, all_gather: Any) -> Options:
    """The options with the defaults that depend on others or on the all-gather."""
    rank = options.rank if options.rank is not None else getattr(all_gather, "rank", None)
    world_size = options.world_size if options.world_size is not None else getattr(all_gather, "world_size", None)
    rank = 0 if rank is None else rank
    world_size = 1 if world_size is None else world_size
    num_slots = options.num_experts if options.num_slots is None else options.num_slots
    per_ep_group = max(1, (options.pipeline_parallel_size or 1) * (options.expert_tensor_parallel or 1))
    num_gpus = max(1, world_size // per_ep_group) if options.num_gpus is None else options.num_gpus
    return dataclasses.replace(options, rank=rank, world_size=world_size, num_slots=num_slots, num_gpus=num_gpus)


def to_struct(options: Options) -> structs.ClientOptions:
    """errors: InvalidArgument naming an option of a wrong type, or out of the range of its integer."""
    struct = structs.ClientOptions()
    _library.check(_library.load().eplb_client_options_init(ctypes.byref(struct), ctypes.sizeof(struct)))
    types: Dict[str, Any] = dict(struct._fields_)
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is None:
            continue
        if field.name in _DEADLINES:
            seconds = value.total_seconds() if isinstance(value, datetime.timedelta) else value
            setattr(struct, field.name + "_s", real(field.name, seconds))
        elif field.name == "state_placement":
            struct.state_placement = structs.STATE_PLACEMENTS[choice(field.name, value, structs.STATE_PLACEMENTS)]
        elif field.name in _SWITCHES:
            setattr(struct, field.name, switch(field.name, value))
        elif types[field.name] is ctypes.c_char_p:
            given = text(field.name, value)
            # Path("./static") has lost its dot, and is a path all the same.
            is_file = field.name == "initial_placement" and given == b"static" and isinstance(value, os.PathLike)
            setattr(struct, field.name, b"./static" if is_file else given)
        else:
            setattr(struct, field.name, integer(field.name, value, ctypes.sizeof(types[field.name])))
    return struct
