"""Routers in slot order: the experts of a layer's slots on the device, and the tokens that each expert got."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np
import torch

from eplb import _rows
from eplb.errors import FailedPrecondition
from eplb.torch.layers import ExpertLayer
from eplb.torch.turn import NOT_COUNTED, WITH_GRADIENTS, WITHOUT_GRADIENTS, load_kernels, new_ledger, new_table, turn

# (output of the router, the layer's columns) -> the same by slots; it also counts, mostly by columns.count_and_turn.
Turn = Callable[[Any, "SlotColumns"], Any]

# (layer, its columns) -> what hooks the place where the layer's choices pass, with remove(): before it numbers are logical
# experts, after it slots. It counts by columns.count_and_turn.
Seam = Callable[[ExpertLayer, "SlotColumns"], Any]

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class SlotColumns:
    """Placement and counts of one layer as tensors on `device`.

    Their memory stays where it is: compiled graphs and captured CUDA graphs see switches and counts.
    ledger: where choices are counted (eplb.torch.turn); None: one of its own. counts_all: also runs without gradients count,
    because nothing is trained.
    """

    def __init__(self, name: str, num_experts: int, device: torch.device, ledger: Optional[torch.Tensor] = None,
                 counts_all: bool = False) -> None:
        self.name, self.num_experts = name, num_experts
        self.ledger = new_ledger(num_experts, device) if ledger is None else ledger
        self._idle = self.ledger.data  # the same memory: the ledger's version rises with forwards that train alone, compiled too
        self.mask_dim = 1  # dimension of the experts in masks, once a batch has shown it
        self._counts_all = counts_all
        self._experts = torch.arange(num_experts, device=device)  # [slots]
        self._table = new_table(num_experts, device)

    @property
    def counts(self) -> torch.Tensor:
        """int64 [experts]: choices of each expert since they were last read."""
        return self.ledger[1:self.num_experts + 1]

    def set_slots(self, experts: np.ndarray) -> None:
        """experts: [slots], the expert in each slot. A device is not waited for."""
        for target, values in ((self._experts, experts), (self._table[1:-1], np.argsort(experts))):
            source = torch.from_numpy(values.astype(np.int64))
            target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)

    def count_and_turn(self, chosen: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Counts choices and turns them to slots, in one pass.

        chosen: integers of any shape, logical experts, or a bool mask whose dimension `dim` is the logical experts. returns:
        the same by slots. An index outside 0..experts - 1 is a mark of no expert, which is not counted and stays.
        """
        trains = self._counts_all or torch.is_grad_enabled()
        return self._turned(chosen, dim, WITH_GRADIENTS if trains else WITHOUT_GRADIENTS)

    def in_slot_order(self, columns: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """columns: a tensor whose dimension `dim` is the logical experts. returns: the same by slots, differentiable."""
        return columns.index_select(dim, self._experts)

    def slots_of(self, indices: torch.Tensor) -> torch.Tensor:
        """Turns indices as count_and_turn does, and counts nothing."""
        return self._turned(indices, -1, NOT_COUNTED)

    def count_columns(self, chosen: torch.Tensor, dim: int = 1) -> None:
        """Adds choices. chosen: a tensor whose dimension `dim` is the logical experts, not zero for a choice."""
        self.count_and_turn(chosen != 0, dim)

    def count_indices(self, indices: torch.Tensor) -> None:
        """Adds choices. indices: integers of any shape, logical experts; others are no choice."""
        self.count_and_turn(indices)

    def _turned(self, chosen: torch.Tensor, dim: int, run: int) -> torch.Tensor:
        ledger = self.ledger if run == WITH_GRADIENTS else self._idle
        if chosen.dtype in (torch.int32, torch.int64, torch.bool):
            return turn(chosen, self._table, ledger, dim % chosen.dim(), run)
        return turn(chosen.int(), self._table, ledger, 0, run).to(chosen.dtype)


class RouterHook:
    """Turns a router's output from logical experts to slots, and counts tokens, each once however often it is recomputed.

    Everything inside the router (auxiliary losses, biases) sees logical experts, and the dispatcher after it slots.
    It holds nothing of the client: a copy of the module takes a copy of it along.
    turn: None: turn_by_shape. errors of the hook: FailedPrecondition for an output of unknown meaning.
    """

    def __init__(self, columns: SlotColumns, router: torch.nn.Module, turn: Optional[Turn]) -> None:
        self.columns = columns
        self._turn = turn
        self._handle = router.register_forward_hook(self._hook, with_kwargs=True)

    def remove(self) -> None:
        self._handle.remove()

    def _hook(self, _module: torch.nn.Module, arguments: Any, named: Any, output: Any) -> Any:
        if self._turn is not None:
            return self._turn(output, self.columns)
        return turn_by_shape(output, self.columns, num_tokens_of((*arguments, *named.values())))


def hook_router(turn: Optional[Turn], layer: ExpertLayer, columns: SlotColumns) -> RouterHook:
    """The seam at the output of a layer's router. turn: as of RouterHook."""
    assert layer.router is not None  # attach refuses to have neither it nor another seam
    return RouterHook(columns, layer.router, turn)


def turn_by_shape(output: Any, columns: SlotColumns, num_tokens: Optional[int] = None) -> Any:
    """Turns and counts outputs whose shapes tell their meaning:

    - (probs, routing_map), both [tokens, experts], of which one is bool, as of Megatron-Core;
    - weights and integer indices, both [.., k], in either order, and scalars; with k = experts they may be a map, as
      one_hot gives, and are refused;
    - masks [tokens, experts, capacity], one of them bool, as of DeepSpeed, beside scalars and counts [experts], which stay in
      the order of logical experts.
    num_tokens: that the router was given, if known. errors: FailedPrecondition for other outputs, and for indices of tokens,
    which an expert-choice router gives.
    """
    if isinstance(output, (tuple, list)) and all(torch.is_tensor(each) or each is None or isinstance(each, (int, float))
                                                 for each in output):
        places = [place for place, each in enumerate(output)
                  if torch.is_tensor(each) and (each.dim() > 1 or each.numel() > 1)]
        tensors = [output[place] for place in places]
        turned = _map(tensors, columns) or _indices(tensors, columns, num_tokens) or _masks(tensors, columns)
        if turned:
            parts = list(output)
            for place, each in zip(places, turned):
                parts[place] = each
            # Only named tuples have _make; dynamo of torch 2.11 gives torch.return_types, which take one sequence, _fields as well.
            return type(output)(*parts) if hasattr(output, "_make") else type(output)(parts)
    raise FailedPrecondition(
        f"router {columns.name} gave {_described(output)}; the shapes do not show which of them is by expert (there are "
        f"{columns.num_experts}): give attach a `turn`, (output, columns) -> the output by slots, that calls "
        f"columns.count_and_turn(indices), or columns.in_slot_order(tensor, dim) and columns.count_columns")


def _map(tensors: List[torch.Tensor], columns: SlotColumns) -> Optional[List[torch.Tensor]]:
    masks = [each for each in tensors if each.dtype == torch.bool]
    if len(tensors) != 2 or len(masks) != 1 or any(each.dim() != 2 or each.shape[1] != columns.num_experts
                                                   for each in tensors):
        return None
    return _turn_masks(tensors, columns, 1)


def _indices(tensors: List[torch.Tensor], columns: SlotColumns, num_tokens: Optional[int]) -> Optional[List[torch.Tensor]]:
    indices = [each for each in tensors if each.dtype in _INTEGERS]
    if len(tensors) != 2 or len(indices) != 1 or tensors[0].shape != tensors[1].shape or tensors[0].dim() < 2 \
            or indices[0].shape[-1] == columns.num_experts:
        return None
    rows = indices[0].shape[:-1]
    if num_tokens is not None and columns.num_experts in rows and rows.numel() != num_tokens:
        raise FailedPrecondition(
            f"router {columns.name} gave {_described(tensors)} for {num_tokens} tokens: one row for each of {columns.num_experts} "
            f"experts holds numbers of tokens, as of an expert-choice router. attach turns experts' numbers; let the router give "
            f"masks or (probs, routing_map), or give attach a `turn`")
    return [columns.count_and_turn(each) if each is indices[0] else each for each in tensors]


def _masks(tensors: List[torch.Tensor], columns: SlotColumns) -> Optional[List[torch.Tensor]]:
    masks = [each for each in tensors if each.dim() == 3]
    rest = [each for each in tensors if each.dim() != 3]
    chosen = [each for each in masks if each.dtype == torch.bool]
    if len(chosen) != 1 or any(each.shape != chosen[0].shape for each in masks) \
            or any(each.shape != (columns.num_experts,) for each in rest):
        return None
    dims = [dim for dim in range(3) if chosen[0].shape[dim] == columns.num_experts]
    if not dims:
        return None
    if len(dims) == 1:
        columns.mask_dim = dims[0]
    # Tokens or capacity may be as many as experts: then as in [tokens, experts, capacity], or as an earlier batch showed.
    dim = dims[0] if len(dims) == 1 else columns.mask_dim
    return _turn_masks(tensors, columns, dim) if dim in dims else None


def _turn_masks(tensors: Sequence[torch.Tensor], columns: SlotColumns, dim: int) -> List[torch.Tensor]:
    """Tensors of more dimensions than one have the experts in dimension `dim`; those of one stay."""
    return [each if each.dim() == 1 else columns.count_and_turn(each, dim) if each.dtype == torch.bool
            else columns.in_slot_order(each, dim) for each in tensors]


def num_tokens_of(arguments: Sequence[Any]) -> Optional[int]:
    """Returns the tokens of the first [.., width] tensor of numbers among a router's arguments."""
    for each in arguments:
        if torch.is_tensor(each) and each.dim() > 1 and each.is_floating_point():
            return each.shape[:-1].numel()
    return None


class TokenCounts:
    """Counts of all layers on the device, which the host reads without waiting for what the device does meanwhile.

    ledgers: of each layer, where its columns count. is_on_device: whether a read costs anything.
    """

    def __init__(self, num_layers: int, num_experts: int, device: torch.device) -> None:
        self.ledgers = [new_ledger(num_experts, device) for _ in range(num_layers)]
        load_kernels(device)
        self._runs = [ledger[-2:] for ledger in self.ledgers]
        self.device = device
        self.is_on_device = device.type == "cuda"
        self._host = torch.zeros(num_layers, num_experts + 4, dtype=torch.int64, pin_memory=self.is_on_device)
        self._copied = torch.cuda.Event() if self.is_on_device else None
        self._is_reading = False

    def now(self) -> torch.Tensor:
        """Returns a copy, int64 [layers, experts] on the device: tokens since counts were last taken."""
        return self._stacked()[:, 1:-3].contiguous()

    def end_step(self) -> None:
        """Forgets how often routers ran, because what a backward repeats ran in the same step."""
        if self._runs:
            torch._foreach_zero_(self._runs)

    def start_reading(self, reduce: Optional[Callable[[torch.Tensor], None]] = None) -> None:
        """Takes what was counted and begins to copy it to the host. reduce: sums it over ranks, in place."""
        taken = self._stacked()
        self.clear()
        if reduce is not None:
            reduce(taken)
        self._host.copy_(taken, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.device))
        self._is_reading = True

    def read(self, reduce: Optional[Callable[[torch.Tensor], None]] = None) -> np.ndarray:
        """Returns int64 [layers, experts], valid until the next start_reading: what it took, or what was counted until now
        if it was not called since the last read. Waits for the copy. reduce: as of start_reading."""
        if not self._is_reading:
            self.start_reading(reduce)
        if self._copied is not None:
            self._copied.synchronize()
        self._is_reading = False
        return self._host.numpy()[:, 1:-3]

    @contextlib.contextmanager
    def left_as_before(self) -> Iterator[None]:
        """Context of forwards that do not count."""
        before = [ledger.clone() for ledger in self.ledgers]
        try:
            yield
        finally:
            for ledger, value in zip(self.ledgers, before):
                ledger.copy_(value)

    def silences(self) -> List[str]:
        """Returns, for each layer, why nothing was counted in what was read last; "" if something was."""
        return ["" if counts else "chose no expert" if counted else "ran without gradients" if uncounted else "got no call"
                for counts, counted, uncounted in zip(self._host[:, 1:-3].sum(dim=1), self._host[:, -2], self._host[:, -1])]

    def told_silences(self, names: Sequence[str]) -> str:
        """names: of the layers. returns: which routers counted nothing, and why, in one line; "" if all counted."""
        silent: Dict[str, List[str]] = {}
        for name, silence in zip(names, self.silences()):
            if silence:
                silent.setdefault(silence, []).append(name)
        return "; ".join(f"{_routers_of(found)} {silence}" for silence, found in silent.items())

    def _stacked(self) -> torch.Tensor:
        return torch.stack(self.ledgers) if self.ledgers else self._host.new_zeros(self._host.shape, device=self.device)

    def clear(self) -> None:
        self._is_reading = False
        if self.ledgers:
            torch._foreach_zero_(self.ledgers)


def _routers_of(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"the router{'s' if len(names) > 1 else ''} of {', '.join(names[:most])}{more}"


def _described(output: Any) -> str:
    if torch.is_tensor(output):
        return _rows.described(output)
    if isinstance(output, (tuple, list)):
        return f"({', '.join(map(_described, output))})"
    if isinstance(output, dict):
        return f"a dict of {', '.join(f'{key}: {_described(value)}' for key, value in output.items())}"
    return type(output).__name__
