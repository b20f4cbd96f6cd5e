"""What a trainer holds for experts, tensor by tensor, as rows of local slots.

A piece is one tensor of the trainer: all local experts', or one expert's. EPLB moves rows [local slots, ..] of one memory;
pieces of one expert each are put into such a memory, one after the other.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence

import torch

from eplb.errors import InvalidArgument


class Piece:
    """A tensor, and where the trainer finds it: the memory of `tensor` itself, or entry `key` of the dict that `owner` gives.

    owner: () -> the dict now; an optimizer that loads a checkpoint makes others.
    """

    def __init__(self, tensor: torch.Tensor, owner: Optional[Callable[[], Dict[str, Any]]] = None, key: str = "") -> None:
        self._tensor, self._owner, self._key = tensor, owner, key

    def get(self) -> torch.Tensor:
        if self._owner is not None:
            return self._owner()[self._key]
        return self._tensor.data

    def set(self, tensor: torch.Tensor) -> None:
        """Gives it other memory, of the same shape and type."""
        if self._owner is not None:
            self._owner()[self._key] = tensor
        else:
            self._tensor.data = tensor


class ExpertTensor:
    """rows [local slots, elements]: row i belongs to the expert in local slot i of `layer`. role: "weight" or "state".

    errors: InvalidArgument naming the tensor that cannot be rows of slots.
    """

    def __init__(self, name: str, layer: int, role: str, pieces: Sequence[Piece], num_slots: int) -> None:
        self.name, self.layer, self.role = name, layer, role
        self._pieces = list(pieces)
        tensors = [piece.get() for piece in pieces]
        for tensor in tensors:
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                raise refused(name, f"is a {type(tensor).__name__}, expected a plain tensor: turn off fp8 parameters and "
                                    f"FSDP for the experts")
            if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
                raise refused(name, f"has experts of {_what(tensors[0])} and of {_what(tensor)}")
        if len(tensors) == 1:
            self.rows = self._view(tensors[0], num_slots)
        else:
            self.rows = torch.stack(tensors)
            for piece, row in zip(pieces, self.rows):
                piece.set(row)
            self.rows = self.rows.view(num_slots, -1)
        self._addresses = [piece.get().data_ptr() for piece in pieces]

    def _view(self, tensor: torch.Tensor, num_slots: int) -> torch.Tensor:
        if not tensor.is_contiguous() or tensor.numel() % num_slots:
            raise refused(self.name, f"has shape {list(tensor.shape)}, strides {list(tensor.stride())}: it is not "
                                     f"{num_slots} experts side by side")
        return tensor.view(num_slots, -1)

    def in_place(self) -> bool:
        """Whether the trainer still computes with this memory."""
        return [piece.get().data_ptr() for piece in self._pieces] == self._addresses

    def expect_in_place(self) -> None:
        """errors: InvalidArgument when the memory was exchanged, for example by load_state_dict of the optimizer."""
        if not self.in_place():
            raise refused(self.name, "has other memory than was registered: load checkpoints before the first "
                                     "step_boundary, and replace no memory of experts after it")


def refused(name: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"tensor \"{name}\": {why}")


def _what(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)}"
