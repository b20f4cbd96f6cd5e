"""Checks in each boundary that trainer and EPLB use the same memory."""

from __future__ import annotations

from operator import attrgetter, is_, itemgetter
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from eplb.torch.alike import expect_alike
from eplb.torch.layers import ExpertLayer
from eplb.torch.pieces import ExpertTensor, refused
from eplb.torch.state import OptimizerState, is_scalar

_get_pointer = torch.Tensor.data_ptr
_is_trained = attrgetter("requires_grad")


class Watch:
    """A trainer's own objects at registration: parameters in their modules, their memory, whether
    they are trained, the groups and the dicts of the optimizers' state, and the tensors in them.

    intact compares them by loops inside the interpreter, 0.1 us for each piece. Threads: the training thread.
    """

    def __init__(self, layers: Sequence[ExpertLayer], state: OptimizerState, tensors: Sequence[ExpertTensor]) -> None:
        self._layers, self._state, self._tensors = layers, state, tensors
        families = [(layer, key, family) for layer in layers for key, family in layer.families.items()]
        self._names = [f"{layer.name}.{name}" for layer, _, family in families for name in family.names]
        self._parameters = [parameter for _, _, family in families for parameter in family.parameters]
        self._modules = [place[0] for _, _, family in families for place in family.places]
        self._keys = [place[1] for _, _, family in families for place in family.places]
        self._flags = list(map(_is_trained, self._parameters))
        self.renew()

    def renew(self) -> None:
        """Takes what is there now for what must be there."""
        pieces = [(tensor.role, piece, address) for tensor in self._tensors
                  for piece, address in zip(tensor.pieces, tensor.addresses)]
        plain = [(role, piece.whole(), address) for role, piece, address in pieces if not hasattr(piece.whole(), "to_local")]
        self._weights = _columns([(tensor, address) for role, tensor, address in plain if role == "weight"])
        self._rest = _columns([(tensor, address) for role, tensor, address in plain if role != "weight"])
        self._shards: List[Tuple[Callable[[], int], int]] = [
            (piece.pointer(), address) for _, piece, address in pieces if hasattr(piece.whole(), "to_local")]
        self._optimizers = [(optimizer, optimizer.state, list(optimizer.state.values())) for optimizer in self._state.optimizers]
        self._entries = self._entries_of_state()

    def intact(self, fully: bool = True) -> bool:
        """True if nothing was replaced. fully: also the tensors of state, in dicts that are the same; before rows move they
        must be. cost: O(pieces); nothing is read from a device."""
        return (all(map(is_, map(dict.get, self._modules, self._keys), self._parameters))
                and self._state.updates_the_same()
                and all(optimizer.state is state and len(state) == len(values) and all(map(is_, state.values(), values))
                        for optimizer, state, values in self._optimizers)
                and list(map(_get_pointer, self._weights[0])) == self._weights[1]
                and all(pointer() == address for pointer, address in self._shards)
                and (not fully or self._is_state_intact()))

    def adopt(self) -> List[str]:
        """Takes what has replaced pieces into the rows. returns: names of the tensors that had other memory.

        errors: InvalidArgument naming a tensor that cannot be the one that was registered.
        """
        for name, module, key, parameter in zip(self._names, self._modules, self._keys, self._parameters):
            if module.get(key) is not parameter:
                raise refused(name, "is another Parameter object than was attached: attach after what replaces parameters, "
                                    "and change their values in place")
        if not self._state.updates_the_same():
            self._state.expect_updated(self._layers)
            expect_alike(self._layers, self._state)
        self._state.expect_understood(self._layers)
        registered = {tensor.name: tensor for tensor in self._tensors if tensor.role == "state"}
        for layer in self._layers:
            self._state.expect_same_parts(layer, registered)
        adopted = [tensor.name for tensor in self._tensors if tensor.adopt()]
        self.renew()
        return adopted

    def expect_trained_as_before(self) -> None:
        """errors: InvalidArgument naming a parameter that was frozen or unfrozen: other ranks' need not have been."""
        if list(map(_is_trained, self._parameters)) == self._flags:
            return
        for name, parameter, was_trained in zip(self._names, self._parameters, self._flags):
            if parameter.requires_grad != was_trained:
                raise refused(name, f"requires_grad was {was_trained} at attach and is {parameter.requires_grad}: detach, freeze or "
                                    f"unfreeze the experts of all ranks alike, and attach again")

    def _is_state_intact(self) -> bool:
        return (all(list(map(len, dicts)) == lengths and all(map(is_, map(take, dicts), tensors))
                    for take, dicts, lengths, tensors in self._entries)
                and list(map(_get_pointer, self._rest[0])) == self._rest[1])

    def _entries_of_state(self) -> List[Tuple[Callable[[Any], Any], List[Any], List[int], List[Any]]]:
        """By key of state: what takes it, the dicts of all experts' parameters, their lengths, and the tensors in them."""
        found: Dict[str, List[Any]] = {}
        for parameter in self._parameters:
            state = self._state.of(parameter)
            for key, value in state.items():
                if torch.is_tensor(value) and not is_scalar(value, parameter):  # scalars may be replaced in each step
                    found.setdefault(key, []).append((state, value))
        return [(itemgetter(key), [state for state, _ in each], [len(state) for state, _ in each], [value for _, value in each])
                for key, each in found.items()]


def _columns(pairs: Sequence[Tuple[Any, int]]) -> Tuple[List[Any], List[int]]:
    return [tensor for tensor, _ in pairs], [address for _, address in pairs]
