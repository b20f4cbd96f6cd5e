"""A placement of any origin as the library takes it, with what it has beside its maps."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from eplb import _library
from eplb import _structs as structs
from eplb._arguments import integer, integers
from eplb.errors import InvalidArgument


def known(name: str, given: Optional[int], placement: Any, default: Optional[int] = None) -> int:
    """An argument, or what the placement has of that name. errors: InvalidArgument where neither has it or both differ."""
    held = getattr(placement, name, None)
    if given is None:
        given = default if held is None else held
    if given is None:
        raise InvalidArgument(f"{name}: missing; the placement does not have it")
    value = integer(name, given)
    # A plan without GPUs was made by hand, and its number of nodes is a default.
    if held is not None and value != held and getattr(placement, "num_gpus", None) is not None:
        raise InvalidArgument(f"{name} is {value}, the placement has {held}")
    return value


class Maps:
    """placement: an eplb.placement.Plan, client.placement, or integers [layers, slots]. struct: what points to its maps.

    errors: InvalidArgument for what is no map, naming layer and slot, or the expert without a slot.
    """

    def __init__(self, placement: Any, num_gpus: int, num_nodes: int) -> None:
        whole = hasattr(placement, "physical_to_logical_map")
        slots = integers("placement", placement.physical_to_logical_map if whole else placement, "[layers, slots]")
        if slots.ndim != 2 or slots.size == 0:
            raise InvalidArgument(f"placement: shape {list(slots.shape)}, expected [layers, slots]")
        self.num_layers, self.num_slots = slots.shape
        self._kept = [slots]
        self.struct = structs.PlanOptions()
        _library.check(_library.load().eplb_plan_options_init(ctypes.byref(self.struct), ctypes.sizeof(self.struct)))
        if whole:
            replicas = integers("placement", placement.logical_to_physical_map, "[layers, experts, X]")
            if replicas.ndim != 3 or replicas.shape[0] != self.num_layers:
                raise InvalidArgument(f"placement: logical_to_physical_map has shape {list(replicas.shape)}, expected "
                                      f"[{self.num_layers}, experts, X]")
            self.num_experts = int(replicas.shape[1])
            self.struct.previous_replicas, self.struct.previous_max_replicas = replicas.ctypes.data, replicas.shape[2]
            self._kept.append(replicas)
        else:
            self.num_experts = _experts_in(slots)
        _check_slots(slots, self.num_experts)
        self.struct.num_layers, self.struct.num_slots, self.struct.num_experts = *slots.shape, self.num_experts
        self.struct.num_gpus, self.struct.num_nodes = num_gpus, num_nodes
        self.struct.previous = slots.ctypes.data


def carried_map(placement: Any, view: Any) -> np.ndarray:
    """int32 [layers, slots] of what client.carry is given; empty for None. view: the current placement.

    errors: InvalidArgument for what is no such map, naming layer and slot, and for a primary that is not the lowest slot.
    """
    if placement is None:
        return np.empty(0, np.int32)
    shape = (view.num_layers, view.num_slots)
    if isinstance(placement, str):
        if placement != "static":
            raise InvalidArgument(f"placement: {placement!r}, expected \"static\", integers [layers, slots] or None")
        return np.ascontiguousarray(np.broadcast_to(np.arange(view.num_slots, dtype=np.int32) % view.num_experts, shape))
    slots = integers("placement", getattr(placement, "physical_to_logical_map", placement), "[layers, slots]")
    if slots.shape != shape:
        raise InvalidArgument(f"placement: shape {list(slots.shape)}, expected [{shape[0]} layers, {shape[1]} slots]")
    _check_slots(slots, view.num_experts)
    replicas = getattr(placement, "logical_to_physical_map", None)
    if replicas is not None and not np.array_equal(slots, view.physical_to_logical_map):
        _expect_lowest_primaries(integers("placement", replicas, "[layers, experts, X]"))
    return slots.astype(np.int32)


def _expect_lowest_primaries(replicas: np.ndarray) -> None:
    lowest = np.where(replicas < 0, np.iinfo(np.int64).max, replicas).min(axis=2)
    for layer, expert in np.argwhere(replicas[:, :, 0] != lowest):
        raise InvalidArgument(f"placement: layer {layer}: the primary of expert {expert} is in slot "
                              f"{replicas[layer, expert, 0]}, expected its lowest slot, {lowest[layer, expert]}: rows are "
                              f"carried by a map alone, which has no order of replicas")


def _experts_in(slots: np.ndarray) -> int:
    """Returns the highest expert plus one of integers [layers, slots]. errors: InvalidArgument for more than 32 bits can count."""
    most = int(slots.max())
    if most >= (1 << 31) - 1:
        layer, slot = np.unravel_index(int(slots.argmax()), slots.shape)
        raise InvalidArgument(f"placement: layer {layer}, slot {slot}: expert {most} does not fit into 32 bits")
    return most + 1


def _check_slots(slots: np.ndarray, num_experts: int) -> None:
    """Checks that every slot holds an expert or nothing, and every expert is in a slot."""
    for layer, slot in np.argwhere((slots < -1) | (slots >= num_experts)):
        raise InvalidArgument(f"placement: layer {layer} slot {slot} holds {slots[layer, slot]}, expected an expert, or -1 for "
                              f"none")
    if num_experts < 1:
        raise InvalidArgument("placement: no slot holds an expert")
    # With more experts than slots one of the first is missing, so that the table has a bound.
    width = min(num_experts, slots.shape[1] + 1)
    seen = np.zeros((slots.shape[0], width), bool)
    layers, places = np.nonzero((slots >= 0) & (slots < width))
    seen[layers, slots[layers, places]] = True
    for layer, expert in np.argwhere(~seen):
        raise InvalidArgument(f"placement: layer {layer}: expert {expert} is in no slot")
