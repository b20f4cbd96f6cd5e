"""state_dict and load_state_dict of models and optimizers while experts are moved.

Stacks that are DTensors are given by expert, for torch.distributed.checkpoint. All others are refused: a hook must never return
an expert's values under the name of another slot. Code that keeps a state dict, and copies a newer one into it, would write
them into the live parameters of that slot.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from eplb._rows import is_dtensor
from eplb.errors import FailedPrecondition
from eplb.torch.layers import ExpertLayer
from eplb.torch.state import is_scalar

# () -> the expert in each local slot of a layer; None while each is in its own.
Moved = Callable[[], Optional[Sequence[int]]]

_WAY_OUT = "save and load within `with attached.static_order():`"
_LOADS = "load_state_dict would put the expert of one slot into another's"


class StateDictHooks:
    """Hooks on the experts' module of one layer, and on all modules in it, as frameworks save single experts and single layers
    of them. Each takes care of the module's own parameters.

    is_stack: they are DTensors of all experts; is_single: of one expert each. close: (reason) ends the run of EPLB. A copy of the
    module has hooks with the answer of moved at the time of the copy.
    """

    def __init__(self, layer: str, is_stack: bool, is_single: bool, moved: Moved, close: Callable[[str], None]) -> None:
        self._layer, self._is_stack, self._is_single, self._moved, self._close = layer, is_stack, is_single, moved, close
        self._handles: List[Any] = []

    def __reduce__(self) -> Any:
        return _copied, (self._layer, self._is_stack, self._is_single, self._moved())

    def hook(self, layer: ExpertLayer) -> None:
        for module in layer.experts.modules():
            self._handles.append(module._register_state_dict_hook(self._save))
            self._handles.append(module.register_load_state_dict_pre_hook(self._load))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _save(self, module: Any, state: Dict[str, Any], prefix: str, _metadata: Any) -> None:
        experts = self._moved_stacks("state_dict would write experts by slot")
        for name in (prefix + key for key in module._parameters if prefix + key in state):
            if experts is not None:
                state[name] = _by_expert(state[name], experts, self._moved)
            elif self._is_single:
                state[name] = _alone(state[name])

    def _load(self, module: Any, state: Dict[str, Any], prefix: str, *_: Any) -> None:
        experts = self._moved_stacks(_LOADS)
        for key, stack in module._parameters.items() if experts is not None else ():
            if not _is_by_expert(state.get(prefix + key), stack, experts):
                error = self._refused(f"{_LOADS}, and torch may have done so already: load a checkpoint")
                self._close(str(error))
                raise error
            state[prefix + key] = stack.detach()  # a load in place has written there

    def _moved_stacks(self, what: str) -> Optional[Sequence[int]]:
        """errors: FailedPrecondition for moved experts that are no DTensors."""
        experts = self._moved()
        if experts is not None and not self._is_stack:
            raise self._refused(what)
        return experts

    def _refused(self, what: str) -> FailedPrecondition:
        return FailedPrecondition(f"{self._layer}: {what}, for experts have moved: {_WAY_OUT}")


def hooks_of(layer: ExpertLayer, moved: Moved, close: Callable[[str], None] = lambda reason: None) -> StateDictHooks:
    """Hooks the experts of a layer. moved: what tells where they are. close: as of StateDictHooks."""
    hooks = StateDictHooks(layer.name, layer.shard is not None, not any(family.is_stacked for family in layer.families.values()), moved,
                           close)
    hooks.hook(layer)
    return hooks


class OptimizerStateDicts:
    """Hooks of state_dict and load_state_dict of an optimizer that updates stacks which are DTensors.

    moved: (layer) -> the expert in each local slot; None while each is in its own.
    """

    def __init__(self, optimizer: Any, layers: Sequence[ExpertLayer],
                 moved: Callable[[ExpertLayer], Optional[Sequence[int]]]) -> None:
        self._optimizer, self._moved = optimizer, moved
        self._layers = {id(parameter): layer for layer in layers for parameter in layer.parameters()}
        self._handles = [optimizer.register_state_dict_post_hook(lambda _, state: self._save(state)),
                         optimizer.register_load_state_dict_pre_hook(lambda _, state: self._load(state))]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _save(self, state: Dict[str, Any]) -> None:
        entries = state["state"]
        for name, parameter, experts in self._stacks(state):
            if name in entries:  # a dict of the optimizer's own, which must not change
                moved = functools.partial(self._moved, self._layers[id(parameter)])
                entries[name] = {key: value if is_scalar(value, parameter) else _by_expert(_stack(value, "state_dict"), experts, moved)
                                 for key, value in entries[name].items()}

    def _load(self, state: Dict[str, Any]) -> Dict[str, Any]:
        entries = dict(state["state"])
        for name, parameter, experts in self._stacks(state):
            own, found = self._optimizer.state[parameter], entries.get(name, {})
            for key, value in found.items():
                if not is_scalar(value, parameter) and not _is_by_expert(value, own.get(key), experts):
                    raise _refused("load_state_dict")
            entries[name] = {key: value if is_scalar(value, parameter) else own[key] for key, value in found.items()}
        return {**state, "state": entries}

    def _stacks(self, state: Dict[str, Any]) -> Iterator[Tuple[Any, Any, Sequence[int]]]:
        """Gives, of each moved stack, its name in the state dict, the parameter, and the experts in its slots."""
        for group, saved in zip(self._optimizer.param_groups, state["param_groups"]):
            for parameter, name in zip(group["params"], saved["params"]):
                layer = self._layers.get(id(parameter))
                experts = self._moved(layer) if layer is not None else None
                if experts is not None:
                    yield name, parameter, experts


def refuse_moved(is_static: Callable[[], bool], name: str) -> None:
    """errors: FailedPrecondition for state_dict or load_state_dict of an optimizer while experts are moved."""
    if not is_static():
        raise _refused(name)


def _refused(name: str) -> FailedPrecondition:
    return FailedPrecondition(f"optimizer.{name} numbers the state of experts by slot, and experts have moved: {_WAY_OUT}")


def _stack(value: Any, name: str) -> Any:
    if not is_dtensor(value):
        raise _refused(name)
    return value


def _by_expert(stack: Any, experts: Any, moved: Any) -> Any:
    from eplb.torch.by_expert import by_expert  # brings torch.distributed.checkpoint

    return by_expert(stack, experts, moved)


def _is_by_expert(value: Any, stack: Any, experts: Any) -> bool:
    from eplb.torch.by_expert import is_by_expert

    return is_dtensor(stack) and is_by_expert(value, stack, experts)


def _copied(layer: str, is_stack: bool, is_single: bool, moved: Optional[Sequence[int]]) -> StateDictHooks:
    return StateDictHooks(layer, is_stack, is_single, lambda: moved, lambda reason: None)


def _alone(value: torch.Tensor) -> torch.Tensor:
    """The same memory as a storage of its own, so that a file with one expert has no others in it, and writes into it reach the
    model."""
    if value.requires_grad or value.dtype == torch.bool or value.device.type not in ("cpu", "cuda"):
        return value
    return torch.from_dlpack(value.detach())
