"""Weights of experts that must stay where they are in a larger buffer, and rows that move in their place."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Sequence

import torch

from eplb import _lists
from eplb.torch.layers import ExpertLayer
from eplb.torch.pieces import ExpertTensor, Piece, expect_equal_pieces
from eplb.torch.state import OptimizerState


class BufferedWeights:
    """A copy of one parameter of the experts in a layer's local slots, as rows that the client moves.

    The owner of the buffer addresses each parameter by its offset, as Megatron-Core's DDP and ZeRO do. It has the interface of
    pieces.ExpertTensor. cost: the bytes of the weights once more, written at each vote and read after each switch.
    errors: InvalidArgument for tensors that cannot be rows of slots.
    """

    role = "weight"

    def __init__(self, name: str, layer: int, parameters: Sequence[torch.Tensor]) -> None:
        self.name, self.layer = name, layer
        self.pieces = [Piece(parameter) for parameter in parameters]
        expect_equal_pieces(name, [piece.get() for piece in self.pieces])
        self.rows = torch.stack([parameter.detach().reshape(-1) for parameter in parameters])
        self.addresses = [piece.get().data_ptr() for piece in self.pieces]

    @torch.no_grad()
    def collect(self) -> None:
        """Brings the rows up to date, before they move."""
        for row, piece in zip(self.rows, self.pieces):
            row.copy_(piece.get().view(-1))

    @torch.no_grad()
    def spread(self, _layer: int, local_slots: Sequence[int]) -> None:
        """Writes the weights of some slots from the rows, after these have moved."""
        for slot in map(int, local_slots):
            self.pieces[slot].get().view(-1).copy_(self.rows[slot])

    def adopt(self) -> bool:
        """Takes note of a buffer that is elsewhere now. returns: whether it is."""
        before, self.addresses = self.addresses, [piece.get().data_ptr() for piece in self.pieces]
        return before != self.addresses

    def release(self) -> None:
        """Does nothing, because the parameters were never moved."""


def weights_of(layer: ExpertLayer, state: OptimizerState) -> Iterator[Any]:
    """Yields ExpertTensors and BufferedWeights of a layer.

    Weights apart in a larger buffer are buffered only if an optimizer updates other tensors in their place, or parts of them. An
    ExpertTensor refuses other ones, because nothing is known of the buffer's owner.
    """
    for key, family in layer.families.items():
        name, parameters = f"layers.{layer.index}.{key}", family.parameters
        are_plain = all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in parameters)
        if are_plain and all(map(state.has_master, parameters)) and not _lists._lie_as_rows(parameters) \
                and any(map(_lists._is_part_of_a_buffer, parameters)):
            yield BufferedWeights(name, layer.index, parameters)
        else:
            yield ExpertTensor(name, layer.index, "weight", [Piece(each) for each in parameters], layer.num_local_slots)


def ids_of_buffered(tensors: Sequence[Any]) -> Iterator[int]:
    """Yields the ids of the parameters of which copies move."""
    return (id(piece.whole()) for each in tensors if isinstance(each, BufferedWeights) for piece in each.pieces)


def collect(tensors: Sequence[Any], refresh: Optional[Callable[[], None]]) -> None:
    """Brings rows up to date before they move. refresh: of attach. Collective if refresh is."""
    if refresh is not None:
        refresh()
    for tensor in tensors:
        if isinstance(tensor, BufferedWeights):
            tensor.collect()


def spread(tensors: Sequence[Any]) -> None:
    """Writes all weights in buffers from their rows, after these have moved."""
    for tensor in tensors:
        if isinstance(tensor, BufferedWeights):
            tensor.spread(tensor.layer, range(len(tensor.rows)))
