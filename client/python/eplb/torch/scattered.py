"""Tensors of experts that are no rows of the client: parts of the state of an optimizer that divides it, and single numbers.

An optimizer that divides its state over the expert-data ranks cuts it wherever its partitions end, also inside an expert. EPLB
moves rows within an EP group; these tensors cross expert-data ranks, so they are carried here whenever rows have moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from eplb.errors import InvalidArgument
from eplb.torch.carry import carry_scalars
from eplb.torch.groups import InEplbOrder, group_of
from eplb.torch.layers import ExpertLayer, Family, device_of
from eplb.torch.pieces import refused


@dataclass(frozen=True)
class Part:
    """Elements of a parameter whose state this rank holds, in a flat tensor that its optimizer updates.

    tensor: the flat tensor, as in param_groups. offset: the first of the elements in it. start: the first in the parameter.
    count: 0 if other expert-data ranks hold the state of the whole parameter.
    """

    tensor: torch.Tensor
    offset: int = 0
    start: int = 0
    count: int = 0


# This rank's elements of one kind of tensor of a layer: the first of them in [local slots * elements], and they themselves.
_Elements = List[Tuple[int, torch.Tensor]]


class Scattered:
    """The tensors and numbers of a rank's experts beside the client's rows. They are looked up at each carry, because an
    optimizer makes and replaces state.

    state: eplb.torch.state.OptimizerState. edp_group: as of attach.
    """

    def __init__(self, layers: Sequence[ExpertLayer], state: Any, edp_group: Any) -> None:
        self._layers, self._state = layers, state
        self._group = None if edp_group is None or dist.get_world_size(group_of(edp_group)) == 1 else group_of(edp_group)

    def expect_covered(self, all_gather: InEplbOrder, expert_data_size: int) -> None:
        """Collective. errors: InvalidArgument naming elements that no expert-data rank updates, or several do."""
        mine = all_gather.together(lambda: self._ranges(expert_data_size))
        by_rank: List[Any] = [mine]
        if self._group is not None:
            by_rank = [None] * expert_data_size
            dist.all_gather_object(by_rank, mine, group=self._group)
        all_gather.together(lambda: [_expect_cover(name, size, [ranges[name][1] for ranges in by_rank])
                                     for name, (size, _) in mine.items()])

    def has_parts(self) -> bool:
        return any(self._state.part(parameter) is not None for layer in self._layers for parameter in layer.parameters())

    @torch.no_grad()
    def carry(self, carry_rows: Callable[..., None], before: np.ndarray, after: np.ndarray) -> None:
        """Moves them from the slots of one permutation to those of another. Collective in EP and expert-data groups.

        carry_rows: carry.carry among the ranks of the EP group. cost: for each kind of state of a changed layer an all-reduce
        of the local experts' whole state over the expert-data group, and an all-to-all of it; as much memory for one at a time.
        """
        for layer in self._layers:
            if (before[layer.index] == after[layer.index]).all():
                continue
            carry_scalars(self._state.scalars(layer), layer.index, before, after, carry_rows, device_of([layer]))
            for family in layer.families.values():
                for dtype, elements in self._kinds(family):
                    rows = self._gathered(family, layer.num_local_slots, dtype, elements)
                    carry_rows([SimpleNamespace(layer=layer.index, rows=rows)], before, after)
                    for first, here in elements:
                        here.copy_(rows.view(-1)[first:first + here.numel()])

    def _kinds(self, family: Family) -> Iterator[Tuple[torch.dtype, _Elements]]:
        """Yields the type and this rank's elements of each kind of state, in the same order on all ranks."""
        parts = [(first, parameter, self._state.part(parameter)) for first, parameter in _places(family)]
        if parts[0][2] is None:
            return
        kinds: List[Dict[str, torch.Tensor]] = [self._state.flat_tensors(parameter) for _, parameter, _ in parts]
        for key in kinds[0]:
            yield kinds[0][key].dtype, [(first + part.start, flat[key].detach().view(-1)[part.offset:part.offset + part.count])
                                        for (first, _, part), flat in zip(parts, kinds) if part.count]

    def _gathered(self, family: Family, num_slots: int, dtype: torch.dtype, elements: _Elements) -> torch.Tensor:
        """Returns [local slots, elements of an expert], equal on all expert-data ranks. Collective."""
        size = sum(parameter.numel() for parameter in family.parameters)
        whole = torch.zeros(size, dtype=dtype, device=family.parameters[0].device)
        for first, here in elements:
            whole[first:first + here.numel()].copy_(here)
        if self._group is not None:
            # Each byte is one rank's and zero elsewhere, so that the sum is the byte.
            dist.all_reduce(whole.view(torch.uint8), group=self._group)
        return whole.view(num_slots, -1)

    def _ranges(self, expert_data_size: int) -> Dict[str, Tuple[int, List[Tuple[int, int]]]]:
        """Returns by name the number of elements, and [start, stop) of those whose state this rank holds."""
        found: Dict[str, Tuple[int, List[Tuple[int, int]]]] = {}
        for layer in self._layers:
            for key, family in layer.families.items():
                parts = [(first, self._state.part(parameter)) for first, parameter in _places(family)]
                if parts[0][1] is not None:
                    found[f"layers.{layer.index}.{key}"] = (
                        sum(parameter.numel() for parameter in family.parameters),
                        [(first + part.start, first + part.start + part.count) for first, part in parts if part.count])
        if found and expert_data_size > 1 and self._group is None:
            raise InvalidArgument(f"edp_group: the optimizer divides the state of {next(iter(found))} over {expert_data_size} "
                                  f"expert-data ranks: give their group")
        return found


def _places(family: Family) -> Iterator[Tuple[int, torch.Tensor]]:
    """Yields the parameters, each with its first element in [local slots * elements]."""
    first = 0
    for parameter in family.parameters:
        yield first, parameter
        first += parameter.numel()


def _expect_cover(name: str, size: int, by_rank: Sequence[Sequence[Tuple[int, int]]]) -> None:
    """by_rank: [start, stop) of the elements that each expert-data rank updates."""
    end = 0
    for start, stop in sorted(tuple(each) for ranges in by_rank for each in ranges):
        if start != end:
            break
        end = stop
    else:
        if end == size:
            return
    raise refused(name, f"each of its {size} elements must be updated on one of {len(by_rank)} expert-data ranks, and those from "
                        f"{end} on are updated on none or on several")
