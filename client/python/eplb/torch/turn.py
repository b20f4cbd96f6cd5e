"""The operator torch.ops.eplb.turn: counts a router's choices and turns them from logical experts to slots.

torch.ops.eplb.count counts alone. For ids on the CPU both are one pass of libeplb, and for ids on a CUDA device one kernel of
it. For masks, on other devices, and where libeplb cannot use the device, they are made of torch's operators. They never wait for the device.
A compiled graph holds each as one node. Placement and counts are tensors, so a switch changes no graph.

ledger: int64 [experts + 4]. First the number of ids below 0, the choices of each expert, and the number of ids beyond the
experts; libeplb counts those below 0 among the latter. Then, for the current step, the runs counted outside of a backward, and the runs without gradients, which a backward may repeat.
table: int64 [experts + 2]: -1, the slot of each expert, -1.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Optional, Set

import torch

from eplb import _library
from eplb import _structs as structs
from eplb.errors import FailedPrecondition, Internal, ResourceExhausted

# Values of the operator's `run`.
NOT_COUNTED, WITHOUT_GRADIENTS, WITH_GRADIENTS = 0, 1, 2

_SIGNATURE = "turn(Tensor chosen, Tensor table, Tensor(a!) ledger, int dim, int run) -> Tensor"
_ID_TYPES = {torch.int32: structs.ID_TYPES["int32"], torch.int64: structs.ID_TYPES["int64"]}
_Runs = ctypes.c_int64 * 2


def turn(chosen: torch.Tensor, table: torch.Tensor, ledger: torch.Tensor, dim: int, run: int) -> torch.Tensor:
    """chosen: int32 or int64 ids of any shape, or a bool mask whose dimension `dim` is the experts. returns: the same by slots;
    an id outside 0..experts - 1 stays, because it may be a mark of no expert.

    run: WITH_GRADIENTS counts. Within a backward it counts only if all runs of the step before it were without gradients:
    activation checkpointing either counts in its first run, or makes that run without gradients.
    """
    return torch.ops.eplb.turn.default(chosen, table, ledger, dim, run)


def count(chosen: torch.Tensor, ledger: torch.Tensor, dim: int, run: int) -> None:
    """Counts as turn does."""
    torch.ops.eplb.count.default(chosen, ledger, dim, run)


def new_ledger(num_experts: int, device: torch.device) -> torch.Tensor:
    """Zeros. One tensor for each layer: a graph that writes parts of one tensor is guarded by all their overlaps."""
    return torch.zeros(num_experts + 4, dtype=torch.int64, device=device)


def new_table(num_experts: int, device: torch.device) -> torch.Tensor:
    """Returns the table of expert e in slot e."""
    table = torch.arange(-1, num_experts + 1, device=device)
    table[-1] = -1
    return table


def load_kernels(device: torch.device) -> None:
    """Loads the kernels of libeplb onto a CUDA device, because their first launch would wait for all that the device runs."""
    ledger = new_ledger(1, device)
    _by_kernel(ledger[:0], ledger, ledger)


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _on_cpu(chosen: torch.Tensor, table: torch.Tensor, ledger: torch.Tensor, dim: int, run: int) -> torch.Tensor:
    if chosen.dtype == torch.bool:
        return _on_device(chosen, table, ledger, dim, run)
    chosen = chosen.contiguous()
    turned = torch.empty_like(chosen)
    _pass_over(chosen, ledger, _counts_now(ledger, table.numel() - 2, run), table.data_ptr() + 8, turned.data_ptr())
    return turned


def _count_on_cpu(chosen: torch.Tensor, ledger: torch.Tensor, dim: int, run: int) -> None:
    if chosen.dtype == torch.bool:
        _count_on_device(chosen, ledger, dim, run)
    elif _counts_now(ledger, ledger.numel() - 4, run):
        _pass_over(chosen.contiguous(), ledger, True)


def _pass_over(chosen: torch.Tensor, ledger: torch.Tensor, counts: bool, slots: Optional[int] = None,
               turned: Optional[int] = None) -> None:
    _library.check(_library.load().eplb_turn_tokens(ctypes.byref(_choices_of(chosen, ledger, counts)), slots, turned))


def _choices_of(chosen: torch.Tensor, ledger: torch.Tensor, counts: bool) -> structs.Choices:
    return structs.sized(structs.Choices, expert_ids=chosen.data_ptr(), counters=ledger.data_ptr() + 8 if counts else None,
                         num_tokens=chosen.numel(), top_k=1, num_experts=ledger.numel() - 4, id_type=_ID_TYPES[chosen.dtype])


def _counts_now(ledger: torch.Tensor, num_experts: int, run: int) -> bool:
    if run == NOT_COUNTED:
        return False
    runs = _Runs.from_address(ledger.data_ptr() + 8 * (num_experts + 2))  # its last two numbers
    if not _in_backward():
        runs[0 if run == WITH_GRADIENTS else 1] += 1
        return _note_forward(ledger, run)
    if run == WITHOUT_GRADIENTS or runs[0] > 0 or runs[1] == 0:
        return False
    runs[1] -= 1
    return True


def _note_forward(ledger: torch.Tensor, run: int) -> bool:
    """Returns whether a run outside of a backward is counted. Then it raises the ledger's version, by which the host sees a
    forward without waiting for the device."""
    if run == WITH_GRADIENTS:
        torch.autograd.graph.increment_version(ledger)
    return run == WITH_GRADIENTS


def _on_device(chosen: torch.Tensor, table: torch.Tensor, ledger: torch.Tensor, dim: int, run: int) -> torch.Tensor:
    if chosen.dtype == torch.bool:
        _count_on_device(chosen, ledger, dim, run)
        turned = torch.empty_like(chosen, memory_format=torch.contiguous_format)
        turned.index_copy_(dim, table[1:-1], chosen)
        return turned
    weight = _weight(ledger, run)
    turned = torch.empty_like(chosen, memory_format=torch.contiguous_format)
    if _by_kernel(chosen, ledger, weight, table.data_ptr() + 8, turned.data_ptr()):
        return turned
    rows = _rows_of(chosen, ledger)
    _count_rows(rows, ledger, weight)
    slots = table.index_select(0, rows).view(chosen.shape)
    return torch.where(slots < 0, chosen, slots.to(chosen.dtype))


def _count_on_device(chosen: torch.Tensor, ledger: torch.Tensor, dim: int, run: int) -> None:
    num_experts, weight = ledger.numel() - 4, _weight(ledger, run)
    if weight is None:
        return
    if chosen.dtype == torch.bool:
        ledger[1:num_experts + 1] += chosen.movedim(dim, 0).reshape(num_experts, -1).sum(dim=1) * weight
    elif not _by_kernel(chosen, ledger, weight):
        _count_rows(_rows_of(chosen, ledger), ledger, weight)


_without_kernel: Set[torch.device] = set()  # CUDA devices that libeplb cannot use


def _has_kernel(chosen: torch.Tensor) -> bool:
    return chosen.is_cuda and chosen.device not in _without_kernel


def _by_kernel(chosen: torch.Tensor, ledger: torch.Tensor, weight: Optional[torch.Tensor], slots: Optional[int] = None,
               turned: Optional[int] = None) -> bool:
    """Turns and counts by a kernel of libeplb. returns: False if there is none for the device; nothing has happened then."""
    if not _has_kernel(chosen):
        return False
    chosen = chosen.contiguous()
    choices = _choices_of(chosen, ledger, weight is not None)
    try:
        _library.check(_library.load().eplb_turn_tokens_on_gpu(
            ctypes.byref(choices), slots, None if weight is None else weight.data_ptr(), turned, chosen.device.index or 0,
            torch.cuda.current_stream(chosen.device).cuda_stream))
    except (FailedPrecondition, Internal, ResourceExhausted) as error:
        _without_kernel.add(chosen.device)
        logging.getLogger("eplb").warning("on %s choices are turned by torch's operators, not by a kernel: %s", chosen.device, error)
        return False
    return True


def _rows_of(chosen: torch.Tensor, ledger: torch.Tensor) -> torch.Tensor:
    """Returns each id's place in table and ledger."""
    return chosen.reshape(-1).long().clamp(-1, ledger.numel() - 4) + 1


def _count_rows(rows: torch.Tensor, ledger: torch.Tensor, weight: Optional[torch.Tensor]) -> None:
    if weight is not None:
        ledger.scatter_add_(0, rows, weight.expand_as(rows))


def _weight(ledger: torch.Tensor, run: int) -> Optional[torch.Tensor]:
    """Returns 0 or 1, what each choice adds, decided on the device as _counts_now does; None: nothing is counted."""
    counted, owed = ledger.data[-2:].unbind()  # .data: the ledger's version rises with forwards that train alone
    if run == NOT_COUNTED:
        return None
    if not _in_backward():
        (counted if run == WITH_GRADIENTS else owed).add_(1)
        return ledger.new_ones(()) if _note_forward(ledger, run) else None
    if run == WITHOUT_GRADIENTS:
        return None
    weight = ((counted == 0) & (owed > 0)).long()
    owed.sub_(weight)
    return weight


def _like(chosen: torch.Tensor, _table: torch.Tensor, _ledger: torch.Tensor, _dim: int, _run: int) -> torch.Tensor:
    return torch.empty_like(chosen, memory_format=torch.contiguous_format)


# A Library, because the wrapper of torch.library.custom_op takes longer than the pass over the choices.
_operators = torch.library.Library("eplb", "FRAGMENT")
_operators.define(_SIGNATURE, tags=(torch.Tag.pt2_compliant_tag,))
_operators.impl("turn", _on_cpu, "CPU")
_operators.impl("turn", _on_device, "CompositeExplicitAutograd")
torch.library.register_fake("eplb::turn", _like, lib=_operators)
_operators.define("count(Tensor chosen, Tensor(a!) ledger, int dim, int run) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
_operators.impl("count", _count_on_cpu, "CPU")
_operators.impl("count", _count_on_device, "CompositeExplicitAutograd")
torch.library.register_fake("eplb::count", lambda chosen, ledger, dim, run: None, lib=_operators)
