"""state_dict and load_state_dict while experts are moved: renamed to logical experts where a name can say that, else refused.

A trainer numbers experts in the names of its parameters by local slot, or, as with a list of all experts of which a rank has
some, by global slot. Only a global number can name an expert that is on another rank than its own.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import torch

from eplb.errors import FailedPrecondition
from eplb.torch.layers import ExpertLayer

_WAY_OUT = "save and load within `with attached.static_order():`"


class LayerNames:
    """Hooks on the experts' module of one layer.

    lists: names of parameters that are one expert's, with {} for its number; stacks: names of those that hold all local ones.
    numbers: in names, of the local slots. first_slot: of this rank's GPU. is_global: whether the numbers are those of all
    slots, on every rank. experts: () -> [slots], the expert in each slot of the layer now.
    A copy of the module takes a copy along that knows the experts where they were when it was made.
    """

    def __init__(self, name: str, lists: Sequence[str], stacks: Sequence[str], numbers: Sequence[int], first_slot: int,
                 is_global: bool, experts: Callable[[], np.ndarray]) -> None:
        self._name, self._lists, self._stacks, self._numbers = name, lists, stacks, numbers
        self._first, self._is_global, self._experts = first_slot, is_global, experts
        self._handles: List[Any] = []

    def __reduce__(self) -> Any:
        return _copied, (self._name, self._lists, self._stacks, self._numbers, self._first, self._is_global,
                         self._experts().copy())

    def hook(self, layer: ExpertLayer) -> None:
        register_save = layer.experts._register_state_dict_hook
        self._handles = [register_save(self._save), layer.experts._register_load_state_dict_pre_hook(self._load)]
        for slot, (name, single) in enumerate(layer.singles.items()):
            # In the state dict of the whole its entries are renamed by the hook above.
            tail = ".".join(f"{layer.name}.{name}".split(".")[-2:])
            own = functools.partial(self._expect_whole, slot, tail)
            self._handles.append(single._register_state_dict_hook(functools.partial(_third, own)))
            self._handles.append(single._register_load_state_dict_pre_hook(functools.partial(_second, own)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _local(self) -> List[int]:
        """The expert in each local slot."""
        count = len(self._numbers)
        return [int(expert) for expert in self._experts()[self._first:self._first + count]]

    def _targets(self, what: str) -> Optional[List[int]]:
        """For each local slot, where its expert's entry is among the names: a number. None: experts are where names say.

        errors: FailedPrecondition when an expert of this rank has no name here.
        """
        local = self._local()
        own = range(self._first, self._first + len(local))
        if local == list(own):
            return None
        if self._is_global and not self._stacks:
            return local
        if sorted(local) != list(own):
            raise self._refused(what, next(expert for expert in local if expert not in own))
        return [self._numbers[expert - self._first] for expert in local]

    def _save(self, _module: Any, state: Dict[str, Any], prefix: str, _metadata: Any) -> None:
        targets = self._targets("state_dict would write experts by slot")
        for name in self._stacks if targets is not None else ():
            state[prefix + name] = _reordered(state[prefix + name], np.argsort(self._local()))
        for name in self._lists:
            held = {number: state[prefix + name.format(number)] for number in self._numbers}
            for number in set(self._numbers).difference(self._numbers if targets is None else targets):
                del state[prefix + name.format(number)]
            for number, target in zip(self._numbers, self._numbers if targets is None else targets):
                state[prefix + name.format(target)] = _alone(held[number])

    def _load(self, state: Dict[str, Any], prefix: str, *_: Any) -> None:
        targets = self._targets("load_state_dict would put the expert of one slot into another's")
        if targets is None:
            return
        for name in self._stacks:
            if prefix + name in state:
                state[prefix + name] = _reordered(state[prefix + name], np.array(self._local()) - self._first)
        for name in self._lists:
            given = {number: state[prefix + name.format(number)] for number in {*targets, *self._numbers}
                     if prefix + name.format(number) in state}
            for slot, number in enumerate(targets if given else ()):
                if number not in given:
                    raise self._refused("load_state_dict was not given the expert of a slot", self._local()[slot])
            for number in given:
                del state[prefix + name.format(number)]
            for number, target in zip(self._numbers, targets if given else ()):
                state[prefix + name.format(number)] = given[target]

    def _expect_whole(self, slot: int, tail: str, prefix: str) -> None:
        """errors: FailedPrecondition for a single expert's own state dict unless it is in its own slot."""
        local = self._local()
        if local[slot] != self._first + slot and not prefix.endswith(f".{tail}.") and prefix != f"{tail}.":
            raise self._refused("the state dict of a single expert's module has no number, and would be taken for the expert of "
                                "its slot; it is", local[slot])

    def _refused(self, what: str, expert: int) -> FailedPrecondition:
        return FailedPrecondition(f"{self._name}: {what} (expert {expert}), for experts have moved: {_WAY_OUT}")


def names_of(layer: ExpertLayer, first_slot: int, is_global: bool, experts: Callable[[], np.ndarray]) -> LayerNames:
    families = layer.families.values()
    return LayerNames(layer.name, [family.template for family in families if not family.is_stacked],
                      [family.names[0] for family in families if family.is_stacked], numbers_of(layer, first_slot), first_slot,
                      is_global, experts)


def numbers_of(layer: ExpertLayer, first_slot: int) -> List[int]:
    """By local slot, in the names of the layer's parameters; of stacked ones the slots."""
    families = list(layer.families.values())
    return families[0].numbers or list(range(first_slot, first_slot + layer.num_local_slots))


def refuse_moved(is_static: Callable[[], bool], name: str) -> None:
    """errors: FailedPrecondition for state_dict or load_state_dict of an optimizer while experts are moved."""
    if not is_static():
        raise FailedPrecondition(f"optimizer.{name} numbers the state of experts by slot, and experts have moved: {_WAY_OUT}")


def _copied(*arguments: Any) -> LayerNames:
    *rest, experts = arguments
    return LayerNames(*rest, lambda: experts)


def _third(call: Callable[[str], None], _module: Any, _state: Any, prefix: str, *_: Any) -> None:
    call(prefix)


def _second(call: Callable[[str], None], _state: Any, prefix: str, *_: Any) -> None:
    call(prefix)


def _reordered(stack: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Rows of a stack by `order`; a stack whose first dimension is another is several experts side by side."""
    rows = stack.detach().reshape(len(order), -1)
    return rows[torch.as_tensor(np.asarray(order), device=stack.device)].reshape(stack.shape)


def _alone(value: torch.Tensor) -> torch.Tensor:
    """The same memory as a storage of its own, so that a file with one expert has no others in it, and writes into it reach the
    model."""
    if value.requires_grad or value.dtype == torch.bool or value.device.type not in ("cpu", "cuda"):
        return value
    return torch.from_dlpack(value.detach())
