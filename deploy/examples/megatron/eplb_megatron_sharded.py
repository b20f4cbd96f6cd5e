"""Memory of experts that is not one row for each slot: weights in DDP's buffers, and state in shards of a buffer.

With Megatron's distributed optimizer the weights of a rank are views of contiguous buffers, each parameter at an offset that
the optimizer keeps: they must stay there, so that other rows move and the weights follow them. Its masters and moments are
cut evenly over the expert-data ranks, wherever experts begin and end. What crosses expert-data ranks is nothing that EPLB
moves, which is within an EP group; it is carried here, between two steps.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from eplb.torch.carry import carry
from eplb.torch.pieces import refused


def lies_in_a_buffer(parameter: torch.Tensor) -> bool:
    """True if its memory is a part of a larger one, whose owner addresses it by its offset."""
    if type(parameter) not in (torch.Tensor, torch.nn.Parameter):
        return False  # refused by its type, where it is looked at
    storage = parameter.untyped_storage() if hasattr(parameter, "untyped_storage") else parameter.storage()
    return bool(storage.nbytes() > parameter.numel() * parameter.element_size())


class BufferedWeights:
    """The weights of the experts in a layer's local slots, where they lie in a buffer; and rows that move in their place.

    rows: [local slots, elements], fp32 masters whose rounded values the weights are; or a copy of the weights, to be brought
    up to date by collect before rows move. errors: InvalidArgument where weights are not their masters' values.
    """

    def __init__(self, name: str, layer: int, parameters: Sequence[torch.nn.Parameter],
                 masters: Optional[torch.Tensor] = None) -> None:
        self.name, self.layer, self.is_copy = name, layer, masters is None
        self._parameters = list(parameters)
        for parameter in self._parameters:
            if type(parameter) not in (torch.Tensor, torch.nn.Parameter):
                raise refused(name, f"is a {type(parameter).__name__}, expected a plain tensor: turn off fp8 parameters and "
                                    f"FSDP for the experts")
        if masters is not None:
            self.rows = masters
            self._expect_rounded_masters()
        else:
            self.rows = torch.stack([parameter.detach().reshape(-1) for parameter in self._parameters])

    @torch.no_grad()
    def collect(self) -> None:
        """Brings the copy up to date. cost: the bytes of the local experts' weights, read and written once."""
        if self.is_copy:
            for row, parameter in zip(self.rows, self._parameters):
                row.copy_(parameter.reshape(-1))

    @torch.no_grad()
    def spread(self, local_slots: Sequence[int]) -> None:
        """Writes the weights of some slots from the rows."""
        for slot in local_slots:
            parameter = self._parameters[int(slot)]
            parameter.data.copy_(self.rows[int(slot)].view(parameter.shape))

    def _expect_rounded_masters(self) -> None:
        for row, parameter in zip(self.rows, self._parameters):
            rounded = row.to(parameter.dtype).view(parameter.shape)
            if not torch.equal(rounded.view(torch.int16), parameter.detach().view(torch.int16)):
                raise refused(self.name, "the weights are not the rounded values of their fp32 masters: where weights were "
                                         "loaded without the optimizer's state, call optimizer.reload_model_params() before "
                                         "attach")


# Elements that this rank holds, from an offset in [local slots * elements] on: () -> them, flat.
Shard = Tuple[int, Callable[[], torch.Tensor]]


class StateShards:
    """One kind of state of the experts in a layer's local slots, of which each expert-data rank holds some elements.

    shape: (local slots, elements of an expert). shards: this rank's, none or several.
    """

    def __init__(self, name: str, layer: int, shape: Tuple[int, int], dtype: torch.dtype, device: torch.device,
                 shards: Sequence[Shard]) -> None:
        self.name, self.layer = name, layer
        self._shape, self._dtype, self._device, self._shards = shape, dtype, device, list(shards)

    @torch.no_grad()
    def gathered(self, group: Any) -> torch.Tensor:
        """[local slots, elements], the same on all ranks of `group`, the expert-data group. Collective."""
        whole = torch.zeros(self._shape[0] * self._shape[1], dtype=self._dtype, device=self._device)
        for offset, shard in self._shards:
            mine = shard()
            whole[offset:offset + mine.numel()] = mine.reshape(-1)
        # Each byte is one rank's and zero elsewhere: its sum is the byte.
        dist.all_reduce(whole.view(torch.uint8), group=group)
        return whole.view(self._shape)

    @torch.no_grad()
    def scatter(self, whole: torch.Tensor) -> None:
        """Writes this rank's shards from what `gathered` gives."""
        flat = whole.view(-1)
        for offset, shard in self._shards:
            mine = shard()
            mine.copy_(flat[offset:offset + mine.numel()].view(mine.shape))


def carry_shards(shards: Sequence[StateShards], before: np.ndarray, after: np.ndarray, gpu: int, ep_group: Any,
                 expert_data_group: Any) -> None:
    """Moves the state of experts from the slots of one permutation to those of another. Collective in both groups.

    before, after, gpu: as of carry. cost: for each kind of state of a changed layer an all-reduce of the local experts' whole
    state over the expert-data group and an all-to-all of it over the EP group; as much memory, for one of them at a time.
    """
    for each in shards:
        if (before[each.layer] == after[each.layer]).all():
            continue
        rows: Any = SimpleNamespace(layer=each.layer, rows=each.gathered(expert_data_group))
        carry([rows], before, after, gpu, ep_group)
        each.scatter(rows.rows)


def expect_cover(name: str, shape: Tuple[int, int], by_rank: Sequence[Sequence[Sequence[int]]]) -> None:
    """by_rank: [start, stop) of the shards of each expert-data rank, in [local slots * elements].

    errors: InvalidArgument naming the first elements that no rank updates, or two do.
    """
    end = 0
    for start, stop in sorted(tuple(shard) for shards in by_rank for shard in shards):
        if start > end:
            break
        if start < end:
            raise refused(name, f"elements {start}..{min(stop, end) - 1} of {shape[0]} local experts are updated on more than "
                                f"one expert-data rank, and others on one: train with --num-distributed-optimizer-instances "
                                f"1")
        end = stop
    if end == shape[0] * shape[1]:
        return
    if len(by_rank) == 1 and end == 0:
        raise refused(name, "no optimizer of this rank updates it, nor a whole copy of it")
    raise refused(name, f"no optimizer of its {len(by_rank)} expert-data ranks updates elements from {end} on, of "
                        f"{shape[0]} local experts of {shape[1]} elements")
