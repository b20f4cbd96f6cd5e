"""Routers in slot order: the experts of a layer's slots on the device, and the tokens that each expert got."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import numpy as np
import torch

from eplb import _rows
from eplb.errors import FailedPrecondition

# (what the router gave, the layer's columns) -> the same by slots; it also calls count_columns or count_indices.
Turn = Callable[[Any, "SlotColumns"], Any]

_NOT_CALLED = "got no call"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class SlotColumns:
    """The expert of each slot of one layer, and counts, both on `device`.

    Its memory stays where it is: a captured CUDA graph sees switches and counts.
    counts: int64 [experts], tokens since they were last read; given: a row of a table of all layers.
    """

    def __init__(self, name: str, num_experts: int, device: torch.device, counts: Optional[torch.Tensor] = None) -> None:
        self.name, self.num_experts = name, num_experts
        self._experts = torch.arange(num_experts, device=device)  # [slots]
        # [experts + 1], the slot of each expert; the last is that of no expert.
        self._slots = torch.arange(num_experts + 1, device=device)
        self._slots[num_experts] = -1
        self.counts = torch.zeros(num_experts, dtype=torch.int64, device=device) if counts is None else counts
        self.is_counting = True

    def set_slots(self, experts: np.ndarray) -> None:
        """experts: [slots], the expert in each slot."""
        self._experts.copy_(torch.from_numpy(experts.astype(np.int64)))
        self._slots[:self.num_experts].copy_(torch.from_numpy(np.argsort(experts).astype(np.int64)))

    def in_slot_order(self, columns: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """columns: a tensor whose dimension `dim` is the logical experts. returns: the same by slots, differentiable."""
        return columns.index_select(dim, self._experts)

    def slots_of(self, indices: torch.Tensor) -> torch.Tensor:
        """indices: integers of any shape, logical experts; -1 and all else outside 0..experts - 1 for none.

        returns: the slot of each, -1 for none, of the same type; of unsigned integers -1 is their largest. An index
        outside raises no error, which would make the host wait for the device.
        """
        wide = indices.long()
        is_none = (wide < 0) | (wide >= self.num_experts)
        return self._slots[wide.masked_fill(is_none, self.num_experts)].to(indices.dtype)

    def count_columns(self, chosen: torch.Tensor, dim: int = 1) -> None:
        """Adds choices. chosen: a tensor whose dimension `dim` is the logical experts, not zero for a choice."""
        if not self.is_counting:
            return
        others = [each for each in range(chosen.dim()) if each != dim % chosen.dim()]
        self.counts += (chosen != 0).sum(dim=others)

    def count_indices(self, indices: torch.Tensor) -> None:
        """Adds choices. indices: integers of any shape, logical experts; others are no choice."""
        if not self.is_counting:
            return
        flat = indices.reshape(-1).long()
        is_expert = (flat >= 0) & (flat < self.num_experts)
        self.counts.index_add_(0, flat.clamp(0, self.num_experts - 1), is_expert.long())


class RouterHook:
    """Turns what a router gives from logical experts to slots, and counts tokens, each once however often it is recomputed.

    Everything inside the router (auxiliary losses, biases) sees logical experts, and what is behind it slots.
    It holds nothing of the client: a copy of the module takes a copy of it along.
    turn: None: turn_by_shape. errors of the hook: FailedPrecondition for an output that nothing is known of.
    """

    def __init__(self, columns: SlotColumns, router: torch.nn.Module, turn: Optional[Turn]) -> None:
        self.columns = columns
        self._turn: Turn = turn or ByShape()
        self._unpaid = 0  # forwards without gradients in training: activation checkpointing runs each again
        self.silence = _NOT_CALLED  # why the newest step counted nothing; "": it counted
        self.silent_steps = 0  # in a row that counted nothing
        self._silence_now = _NOT_CALLED  # of the step under way
        self._handle = router.register_forward_hook(self._hook)

    def remove(self) -> None:
        self._handle.remove()

    def end_step(self) -> None:
        self._unpaid = 0
        self.silence, self._silence_now = self._silence_now, _NOT_CALLED
        self.silent_steps = self.silent_steps + 1 if self.silence else 0

    def _hook(self, module: torch.nn.Module, _arguments: Any, output: Any) -> Any:
        self.columns.is_counting = self._is_counted(module)
        if self.columns.is_counting:
            self._silence_now = ""
        elif self._silence_now:
            self._silence_now = "ran without gradients" if module.training else "ran in eval mode"
        return self._turn(output, self.columns)

    def _is_counted(self, module: torch.nn.Module) -> bool:
        if not module.training:
            return False
        if not torch.is_grad_enabled():
            self._unpaid += 1
            return False
        if not _in_backward():
            return True
        # Recomputed: the first run was counted unless it ran without gradients.
        if self._unpaid == 0:
            return False
        self._unpaid -= 1
        return True


class ByShape:
    """The outputs whose shapes say what they are:

    - (probs, routing_map), both [tokens, experts], of which one is bool, as of Megatron-Core;
    - weights and integer indices, both [.., k], in either order, and scalars; with k = experts they may be a map, as
      one_hot gives, and are refused;
    - masks [tokens, experts, capacity], one of them bool, as of DeepSpeed, beside scalars and counts [experts], which stay in
      the order of logical experts.
    """

    def __init__(self) -> None:
        self._dim = 0  # of the experts in masks, once one has shown it

    def __call__(self, output: Any, columns: SlotColumns) -> Any:
        if isinstance(output, (tuple, list)) and all(torch.is_tensor(each) or each is None or isinstance(each, (int, float))
                                                     for each in output):
            tensors = [each for each in output if torch.is_tensor(each) and (each.dim() > 1 or each.numel() > 1)]
            for kind in (self._map, self._indices, self._masks):
                turned = kind(tensors, columns)
                if turned is not None:
                    parts = [turned.get(id(each), each) for each in output]
                    return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
        raise FailedPrecondition(
            f"router {columns.name} gave {_described(output)}, of which the shapes do not say what is by expert (there are "
            f"{columns.num_experts}): give attach a `turn`, (output, columns) -> the output by slots, that calls "
            f"columns.in_slot_order(tensor, dim) or columns.slots_of(indices), and columns.count_columns or count_indices")

    def _map(self, tensors: List[torch.Tensor], columns: SlotColumns) -> Optional[Dict[int, torch.Tensor]]:
        masks = [each for each in tensors if each.dtype == torch.bool]
        if len(tensors) != 2 or len(masks) != 1 or any(each.dim() != 2 or each.shape[1] != columns.num_experts
                                                       for each in tensors):
            return None
        columns.count_columns(masks[0], 1)
        return {id(each): columns.in_slot_order(each, 1) for each in tensors}

    def _indices(self, tensors: List[torch.Tensor], columns: SlotColumns) -> Optional[Dict[int, torch.Tensor]]:
        indices = [each for each in tensors if each.dtype in _INTEGERS]
        if len(tensors) != 2 or len(indices) != 1 or tensors[0].shape != tensors[1].shape or tensors[0].dim() < 2 \
                or indices[0].shape[-1] == columns.num_experts:
            return None
        columns.count_indices(indices[0])
        return {id(indices[0]): columns.slots_of(indices[0])}

    def _masks(self, tensors: List[torch.Tensor], columns: SlotColumns) -> Optional[Dict[int, torch.Tensor]]:
        masks = [each for each in tensors if each.dim() == 3]
        rest = [each for each in tensors if each.dim() != 3]
        chosen = [each for each in masks if each.dtype == torch.bool]
        if len(chosen) != 1 or any(each.shape != chosen[0].shape for each in masks) \
                or any(each.shape != (columns.num_experts,) for each in rest):
            return None
        dims = [dim for dim in range(3) if chosen[0].shape[dim] == columns.num_experts]
        if len(dims) == 1:
            self._dim = dims[0]
        # Tokens or capacity may be as many as experts: then as in [tokens, experts, capacity], or as an earlier batch showed.
        dim = self._dim if self._dim in dims and self._dim else 1
        if dim not in dims:
            return None
        columns.count_columns(chosen[0], dim)
        return {id(each): columns.in_slot_order(each, dim) for each in masks}


class TokenCounts:
    """Counts of all layers on the device, which the host reads without waiting for what the device does meanwhile.

    table: int64 [layers, experts], what the layers' columns count into. is_on_device: whether a read costs anything.
    """

    def __init__(self, num_layers: int, num_experts: int, device: torch.device) -> None:
        self.table = torch.zeros(num_layers, num_experts, dtype=torch.int64, device=device)
        self.is_on_device = device.type == "cuda"
        self._host = torch.zeros(num_layers, num_experts, dtype=torch.int64, pin_memory=self.is_on_device)
        self._copied = torch.cuda.Event() if self.is_on_device else None
        self._is_reading = False

    def start_reading(self, reduce: Optional[Callable[[torch.Tensor], None]] = None) -> None:
        """Takes what was counted and begins to copy it to the host. reduce: sums it over ranks, in place."""
        taken = self.table.clone()
        self.table.zero_()
        if reduce is not None:
            reduce(taken)
        self._host.copy_(taken, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._is_reading = True

    def take(self) -> Optional[np.ndarray]:
        """Returns the counts that start_reading took, valid until its next call; None without one. Waits for the copy."""
        if not self._is_reading:
            return None
        if self._copied is not None:
            self._copied.synchronize()
        self._is_reading = False
        return self._host.numpy()

    def clear(self) -> None:
        self.table.zero_()
        self._is_reading = False


def _in_backward() -> bool:
    """Before torch 2 it is not known, and only checkpointing that runs without gradients first is counted right."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def _described(output: Any) -> str:
    if torch.is_tensor(output):
        return _rows.described(output)
    if isinstance(output, (tuple, list)):
        return f"({', '.join(map(_described, output))})"
    if isinstance(output, dict):
        return f"a dict of {', '.join(f'{key}: {_described(value)}' for key, value in output.items())}"
    return type(output).__name__


