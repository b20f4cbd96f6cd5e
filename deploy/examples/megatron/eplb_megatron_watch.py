"""Checks in each boundary that Megatron and EPLB use the same memory."""

from __future__ import annotations

from operator import is_, itemgetter
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from eplb.torch.pieces import ExpertTensor, refused
from eplb_megatron_layers import MoeLayer
from eplb_megatron_optimizer import ExpertState, Home

_get_pointer = torch.Tensor.data_ptr


class Watch:
    """Parameters in their modules, their memory, the dicts of the optimizers' state and the tensors in them, as they were when
    the rows were made. tensors: whose pieces are rows.

    intact compares them by loops inside the interpreter: 0.1 us for each piece. Threads: the training thread.
    """

    def __init__(self, layers: Sequence[MoeLayer], state: ExpertState, tensors: Sequence[ExpertTensor]) -> None:
        self._tensors = list(tensors)
        self._names: List[str] = []
        self._modules: List[Dict[str, Any]] = []
        self._keys: List[str] = []
        self._parameters: List[torch.nn.Parameter] = []
        for layer in layers:
            for name, module in layer.module.experts.named_modules():
                for key, parameter in module._parameters.items():
                    self._names.append(".".join(part for part in (layer.name, "experts", name, key) if part))
                    self._modules.append(module._parameters)
                    self._keys.append(key)
                    self._parameters.append(parameter)
        self._homes: List[Home] = [home for parameter in self._parameters if parameter is not None
                                   for home in [state.home(parameter)] if home is not None]
        self.renew()

    def renew(self) -> None:
        """Takes what is there now for what must be there."""
        self._wholes = [piece.whole() for tensor in self._tensors for piece in tensor.pieces]
        self._addresses = [address for tensor in self._tensors for address in tensor.addresses]
        by_optimizer: Dict[int, Tuple[Any, Any, List[torch.Tensor]]] = {}
        by_key: Dict[str, List[Tuple[Dict[str, Any], torch.Tensor]]] = {}
        for home in self._homes:
            by_optimizer.setdefault(id(home.inner), (home.inner, home.inner.state, []))[2].append(home.updated)
            for key, value in home.moving_state():
                by_key.setdefault(key, []).append((home.state(), value))
        self._states = [(inner, state, updated, [state.get(each) for each in updated])
                        for inner, state, updated in by_optimizer.values()]
        self._entries: List[Tuple[Callable[[Any], Any], List[Any], List[Any]]] = [
            (itemgetter(key), [state for state, _ in each], [value for _, value in each]) for key, each in by_key.items()]

    def intact(self) -> bool:
        """True if nothing was replaced. cost: O(pieces); nothing is read from a device."""
        return (all(map(is_, map(dict.get, self._modules, self._keys), self._parameters))
                and list(map(_get_pointer, self._wholes)) == self._addresses
                and all(inner.state is state and all(map(is_, map(state.get, updated), dicts))
                        for inner, state, updated, dicts in self._states)
                and all(all(map(is_, map(take, dicts), values)) for take, dicts, values in self._entries))

    def adopt(self) -> List[str]:
        """Takes what has replaced pieces into the rows. returns: names of the tensors that had other memory.

        errors: InvalidArgument naming a tensor that cannot be the one that was registered.
        """
        for name, module, key, parameter in zip(self._names, self._modules, self._keys, self._parameters):
            if module.get(key) is not parameter:
                raise refused(name, "is another Parameter object than was attached, which no optimizer updates: change values in "
                                    "place, or attach after it")
        adopted = [tensor.name for tensor in self._tensors if tensor.adopt()]
        self.renew()
        return adopted
