"""state_dict and load_state_dict of experts: as without EPLB while each is in its own slot, refused while any is moved.

A hook must never return an expert's values under the name of another slot: code that keeps a state dict, and copies a newer one
into it, would write them into the live parameters of that slot.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence

import torch

from eplb.errors import FailedPrecondition
from eplb.torch.layers import ExpertLayer

_WAY_OUT = "save and load within `with attached.static_order():`"


class StateDictHooks:
    """Hooks on the experts' module of one layer, and on all modules in it.

    names: those of parameters that are one expert's. is_static: () -> whether the layer's experts are in their own slots. A copy
    of the module has hooks with the answer of is_static at the time of the copy.
    """

    def __init__(self, layer: str, names: Sequence[str], is_static: Callable[[], bool]) -> None:
        self._layer, self._names, self._is_static = layer, names, is_static
        self._handles: List[Any] = []

    def __reduce__(self) -> Any:
        return _copied, (self._layer, self._names, self._is_static())

    def hook(self, layer: ExpertLayer) -> None:
        self._handles = [layer.experts._register_state_dict_hook(self._save),
                         layer.experts._register_load_state_dict_pre_hook(self._load)]
        for module in layer.experts.modules():
            if module is not layer.experts:  # frameworks save single experts, and single layers of them
                self._handles.append(module._register_state_dict_hook(self._save_single))
                self._handles.append(module._register_load_state_dict_pre_hook(self._load))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _save(self, _module: Any, state: Dict[str, Any], prefix: str, _metadata: Any) -> None:
        self._save_single()
        for name in self._names:
            state[prefix + name] = _alone(state[prefix + name])

    def _save_single(self, *_: Any) -> None:
        self._expect_static("state_dict would write experts by slot")

    def _load(self, *_: Any) -> None:
        self._expect_static("load_state_dict would put the expert of one slot into another's")

    def _expect_static(self, what: str) -> None:
        if not self._is_static():
            raise FailedPrecondition(f"{self._layer}: {what}, for experts have moved: {_WAY_OUT}")


def hooks_of(layer: ExpertLayer, is_static: Callable[[], bool]) -> StateDictHooks:
    names = [name for family in layer.families.values() if not family.is_stacked for name in family.names]
    return StateDictHooks(layer.name, names, is_static)


def refuse_moved(is_static: Callable[[], bool], name: str) -> None:
    """errors: FailedPrecondition for state_dict or load_state_dict of an optimizer while experts are moved."""
    if not is_static():
        raise FailedPrecondition(f"optimizer.{name} numbers the state of experts by slot, and experts have moved: {_WAY_OUT}")


def _copied(layer: str, names: Sequence[str], was_static: bool) -> StateDictHooks:
    return StateDictHooks(layer, names, lambda: was_static)


def _alone(value: torch.Tensor) -> torch.Tensor:
    """The same memory as a storage of its own, so that a file with one expert has no others in it, and writes into it reach the
    model."""
    if value.requires_grad or value.dtype == torch.bool or value.device.type not in ("cpu", "cuda"):
        return value
    return torch.from_dlpack(value.detach())
