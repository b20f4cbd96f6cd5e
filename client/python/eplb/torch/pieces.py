"""A trainer's tensors of experts as rows of local slots.

A piece is one tensor of the trainer: all local experts', or one expert's. EPLB moves rows [local slots, ..] of one memory;
pieces of one expert each are put into such a memory, one after the other.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from eplb import _lists
from eplb._rows import described, is_dtensor, local_of, refused
from eplb.torch.shards import expect_whole_experts

# Trainers' tensors that lie in stacks made here, and where; by id.
_stacked: Dict[int, Tuple[Any, int]] = {}


class Piece:
    """A tensor, and where the trainer finds it: the memory of `tensor` itself, or entry `key` of the dict that `owner` gives.

    owner: () -> the dict now; an optimizer that loads a checkpoint makes others.
    """

    def __init__(self, tensor: torch.Tensor, owner: Optional[Callable[[], Dict[str, Any]]] = None, key: str = "") -> None:
        self._tensor, self._owner, self._key = tensor, owner, key

    def get(self) -> torch.Tensor:
        """Returns the tensor; of a DTensor the local shard."""
        if is_dtensor(self._tensor):
            return local_of(self.whole())  # type: ignore[no-any-return]
        return self.whole() if self._owner is not None else self._tensor.data

    def set(self, tensor: torch.Tensor) -> None:
        """Gives it other memory, of the same shape and type."""
        if self._owner is not None:
            self._owner()[self._key] = tensor
        else:
            self._tensor.data = tensor

    @property
    def is_entry(self) -> bool:
        """True for an entry of a dict, such as state of an optimizer."""
        return self._owner is not None

    def whole(self) -> torch.Tensor:
        """The trainer's own object."""
        return self._tensor if self._owner is None else self._owner()[self._key]

    def pointer(self) -> Callable[[], int]:
        """Returns a function that gives the address of the current object."""
        if is_dtensor(self._tensor):
            return lambda: self.get().data_ptr()
        return self.whole().data_ptr


class ExpertTensor:
    """rows [local slots, elements]: row i belongs to the expert in local slot i of `layer`. role: "weight" or "state".

    Pieces that are rows of one memory already stay there; others get memory that is made here.
    errors: InvalidArgument naming the tensor that cannot be rows of slots, or a parameter that is a view of a larger
    buffer.
    """

    def __init__(self, name: str, layer: int, role: str, pieces: Sequence[Piece], num_slots: int) -> None:
        self.name, self.layer, self.role = name, layer, role
        self.pieces = list(pieces)
        expect_whole_experts(name, [piece.whole() for piece in pieces])
        tensors = [piece.get() for piece in pieces]
        expect_equal_pieces(name, tensors)
        # Memory of each piece: objects of their own, because the trainer may point its objects elsewhere.
        self._homes: List[torch.Tensor] = [tensor.detach() for tensor in tensors]
        self._is_made_here = len(tensors) > 1 and all(_is_remembered(piece.whole()) for piece in pieces)
        if len(tensors) == 1:
            self.rows = self._view(tensors[0], num_slots)
        elif len(tensors) == num_slots and _lists._lie_as_rows(tensors):
            self.rows = torch.as_strided(tensors[0], (num_slots, tensors[0].numel()), (_lists._distance(tensors), 1))
        else:
            self.rows = self._stack(tensors).view(num_slots, -1)
        self.addresses = [home.data_ptr() for home in self._homes]  # at which each piece must be

    def _stack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Makes the pieces rows of memory of their own. State of a checkpoint may be parts of what was loaded, which
        no computation uses."""
        if not any(piece.is_entry for piece in self.pieces):
            _lists._expect_own_memory(tensors, self.name)
        stack = torch.stack(list(tensors))
        self._homes, self._is_made_here = list(stack), True
        for i in range(len(tensors)):
            self._send_home(i)
        return stack

    def _send_home(self, i: int) -> None:
        self.pieces[i].set(self._homes[i].detach())
        if self._is_made_here:
            _remember(self.pieces[i].whole())

    def _view(self, tensor: torch.Tensor, num_slots: int) -> torch.Tensor:
        if not tensor.is_contiguous() or tensor.numel() % num_slots:
            raise refused(self.name, f"has shape {list(tensor.shape)}, strides {list(tensor.stride())}: it is not "
                                     f"{num_slots} experts side by side")
        return tensor.view(num_slots, -1)

    def in_place(self) -> bool:
        """True if the trainer still computes with this memory."""
        return [piece.get().data_ptr() for piece in self.pieces] == self.addresses

    def adopt(self) -> bool:
        """Takes what has replaced pieces: their values go into the rows, and the pieces are these rows again.

        returns: whether anything had. errors: InvalidArgument naming the tensor, for pieces of another type, shape or device;
        then nothing was changed.
        """
        found = [piece.get() for piece in self.pieces]
        moved = [i for i, tensor in enumerate(found) if tensor.data_ptr() != self.addresses[i]]
        for i in moved:
            tensor, home = found[i], self._homes[i]
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or described(tensor) != described(home) \
                    or tensor.device != home.device:
                raise refused(self.name, f"is {described(tensor)} on {tensor.device} in slot {i} now, and was registered as "
                                         f"{described(home)} on {home.device}: convert or move the model before it is attached, "
                                         f"or after detach")
        # Copies, as what came may be another row of this very memory.
        values = [found[i].detach().clone() for i in moved]
        with torch.no_grad():
            for i, value in zip(moved, values):
                self._homes[i].copy_(value)
                self._send_home(i)
        return bool(moved)

    def release(self) -> None:
        """Gives every piece memory of its own, with the values that it has; what lay as rows before stays."""
        for piece, home in zip(self.pieces, self._homes) if self._is_made_here else ():
            piece.set(home.clone())


def expect_equal_pieces(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """errors: InvalidArgument unless these are plain tensors of one shape and type."""
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise refused(name, f"is a {type(tensor).__name__}, expected a plain tensor: turn off fp8 parameters and "
                                f"FSDP for the experts")
        if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
            raise refused(name, f"has experts of {described(tensors[0])} and of {described(tensor)}")


def _remember(tensor: torch.Tensor) -> None:
    key = id(tensor)
    _stacked[key] = (weakref.ref(tensor, lambda _: _stacked.pop(key, None)), tensor.data_ptr())


def _is_remembered(tensor: torch.Tensor) -> bool:
    reference, address = _stacked.get(id(tensor), (lambda: None, 0))
    return reference() is tensor and tensor.data_ptr() == address
