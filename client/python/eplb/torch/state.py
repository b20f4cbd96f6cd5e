"""Masters and state of torch optimizers for each expert, as rows of local slots."""

from __future__ import annotations

from collections import deque
from operator import is_
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from eplb.errors import InvalidArgument
from eplb.torch.layers import ExpertLayer
from eplb.torch.pieces import ExpertTensor, Piece, refused
from eplb.torch.scattered import Part

# A model's parameter -> what an optimizer updates in its place, whole or in part, or None: the parameter itself.
Masters = Callable[[torch.Tensor], Union[torch.Tensor, Part, None]]

_PAGE = "docs/attach.md"

# Gradient descent, which keeps nothing for a parameter where its momentum is 0. Others have a momentum and keep more, as RMSprop.
_WITHOUT_STATE = ("SGD", "FusedSGD")

# Parts of the names of optimizers whose update of one element depends on a norm or a rotation of the whole parameter.
_OF_WHOLE_PARAMETERS = ("lamb", "lars", "larc", "adafactor", "came", "muon", "shampoo", "soap", "novograd", "galore", "kron", "psgd")

_PLAIN = (int, float, str, type(None))


class OptimizerState:
    """The state of the experts' parameters over all of a rank's optimizers.

    It is looked up in optimizer.state at each call: an optimizer that loads a checkpoint makes another.
    """

    def __init__(self, optimizers: Sequence[Any], masters: Optional[Masters] = None) -> None:
        self.optimizers = list(optimizers)
        self._masters = masters
        self.renew()

    def renew(self) -> None:
        """Looks anew at which parameters the optimizers update: groups may be added, and others put in their place."""
        self._params = [list(group["params"]) for optimizer in self.optimizers for group in optimizer.param_groups]
        self._homes: Dict[int, Tuple[Any, int]] = {
            id(parameter): (optimizer, number) for optimizer in self.optimizers
            for number, group in enumerate(optimizer.param_groups) for parameter in group["params"]}

    def updates_the_same(self) -> bool:
        """True if the optimizers' groups have the parameters that renew found. cost: O(parameters), some 20 ns each."""
        found = [group["params"] for optimizer in self.optimizers for group in optimizer.param_groups]
        return len(found) == len(self._params) and all(len(now) == len(then) and all(map(is_, now, then))
                                                       for now, then in zip(found, self._params))

    def expect_updated(self, layers: Sequence[ExpertLayer]) -> None:
        """errors: InvalidArgument naming a trained parameter that no optimizer updates now, as with flat buffers, or a stack
        whose optimizer mixes its experts."""
        self.renew()
        for layer in layers if self.optimizers else ():
            for key, family in layer.families.items():
                for parameter in family.parameters:
                    if parameter.requires_grad and id(self._main(parameter)) not in self._homes:
                        raise refused(f"{layer.name}.{key}", f"no optimizer has it in param_groups, nor a whole copy of it: flat "
                                                             f"buffers and shards that cut experts cannot move with one ({_PAGE})")
                is_in_part = self.part(family.parameters[0]) is not None
                if family.is_stacked and layer.num_local_slots > 1 or is_in_part:
                    self._expect_elementwise(f"{layer.name}.{key}", family.parameters[0])

    def expect_understood(self, layers: Sequence[ExpertLayer]) -> None:
        """errors: InvalidArgument naming state of an expert that would stay behind: an entry that is no tensor, or a tensor in
        an attribute of its optimizer."""
        experts: Dict[int, str] = {}
        shapes: Dict[Any, str] = {}
        for layer in layers:
            for family in layer.families.values():
                for name, parameter in zip(family.names, family.parameters):
                    for key, value in self.of(parameter).items():
                        _expect_plain(f"{layer.name}.{name}.{key}", value)
                    if self.home(parameter)[0] is not None:
                        experts.update((id(each), f"{layer.name}.{name}") for each in (parameter, self._main(parameter)))
                        shapes.setdefault(tuple(self._main(parameter).shape), f"{layer.name}.{name}")
        for optimizer in self.optimizers if experts else ():
            found = _HiddenState(optimizer, experts, shapes).find()
            if found:
                path, name = found
                raise refused(name, f"{type(optimizer).__name__}.{path} holds a tensor of its size beside `state`: it would not move "
                                    f"with the expert; keep it in the optimizer's `state` ({_PAGE})")

    def missing(self, layers: Sequence[ExpertLayer]) -> str:
        """The name of a parameter whose state is still to come, or "": optimizers make it in their first step. A parameter that
        is frozen, and in an optimizer that has made state of others, gets none."""
        if not self.updates_the_same():
            self.renew()
        has_begun = any(len(optimizer.state) for optimizer in self.optimizers)
        for layer in layers if self.optimizers else ():
            for family in layer.families.values():
                for number, parameter in enumerate(family.parameters):
                    waits = parameter.requires_grad or not has_begun and self.is_trained(parameter)
                    if waits and not self.of(parameter) and self._keeps_state(parameter):
                        return f"{layer.name}.{family.names[number]}"
        return ""

    def is_trained(self, parameter: torch.Tensor) -> bool:
        """Also one that gets its gradient elsewhere, if an optimizer updates it."""
        return parameter.requires_grad or id(self._main(parameter)) in self._homes

    def of(self, parameter: torch.Tensor) -> Mapping[str, Any]:
        optimizer, main = self.home(parameter)
        return {} if optimizer is None else optimizer.state.get(main, {})

    def home(self, parameter: torch.Tensor) -> Tuple[Any, torch.Tensor]:
        """(the optimizer, or None; what it updates)."""
        main = self._main(parameter)
        return self._homes.get(id(main), (None, 0))[0], main

    def group(self, parameter: torch.Tensor) -> Optional[Mapping[str, Any]]:
        """Returns the group in the optimizer that updates it; {} if none does, None if that is another rank's."""
        part = self.part(parameter)
        if part is not None and not part.count:
            return None
        optimizer, number = self._homes.get(id(self._main(parameter)), (None, 0))
        return {} if optimizer is None else optimizer.param_groups[number]

    def has_master(self, parameter: torch.Tensor) -> bool:
        """True if the optimizer updates another tensor in the place of a parameter, or a part of one."""
        return self._masters is not None and self._masters(parameter) is not None

    def part(self, parameter: torch.Tensor) -> Optional[Part]:
        """Returns where its master and its state are in flat tensors of the optimizer; None if they are tensors of their own."""
        found = None if self._masters is None else self._masters(parameter)
        return found if isinstance(found, Part) else None

    def flat_tensors(self, parameter: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Returns the flat tensors that hold the master of a parameter and its state, if any is there now. A part of the
        parameter's own memory is no master."""
        _, main = self.home(parameter)
        return {**({} if _is_same_memory(main, parameter) else {"master": main}),
                **{key: value for key, value in sorted(self.of(parameter).items())
                   if torch.is_tensor(value) and value.shape == main.shape}}

    def without_parts(self, layers: Sequence[ExpertLayer]) -> List[Any]:
        """Returns what client.check looks at in the optimizers, without flat tensors whose parts follow experts."""
        parts = (self.part(parameter) for layer in layers for parameter in layer.parameters())
        flat = {id(part.tensor) for part in parts if part is not None}
        return [SimpleNamespace(state={tensor: state for tensor, state in optimizer.state.items() if id(tensor) not in flat},
                                param_groups=[{"params": [each for each in group["params"] if id(each) not in flat]}
                                              for group in optimizer.param_groups]) for optimizer in self.optimizers]

    def tensors(self, layer: ExpertLayer) -> List[ExpertTensor]:
        """Masters, and whatever state there is now. errors: InvalidArgument naming a parameter or a piece of state."""
        found: List[ExpertTensor] = []
        for key, family in layer.families.items():
            name = f"layers.{layer.index}.{key}"
            trained = sum(map(self.is_trained, family.parameters))
            if trained not in (0, len(family.parameters)):
                raise refused(name, f"{trained} of {len(family.parameters)} experts are trained; expected all or none")
            pieces: Dict[str, List[Piece]] = {}
            for parameter in family.parameters if trained else ():
                for part, piece in self._pieces(name, parameter):
                    pieces.setdefault(part, []).append(piece)
            for part, of_part in pieces.items():
                if len(of_part) != len(family.parameters):
                    raise refused(f"{name}.{part}", f"{len(of_part)} of {len(family.parameters)} experts have it")
                found.append(ExpertTensor(f"{name}.{part}", layer.index, "state", of_part, layer.num_local_slots))
        return found

    def expect_same_parts(self, layer: ExpertLayer, registered: Mapping[str, Any]) -> None:
        """errors: InvalidArgument naming state that has appeared or gone. registered: by name, as of tensors."""
        for key, family in layer.families.items():
            name = f"layers.{layer.index}.{key}"
            expected = {each for each in registered if each.rpartition(".")[0] == name}
            for parameter in family.parameters:
                is_trained = self.is_trained(parameter)
                found = {f"{name}.{part}" for part, _ in self._pieces(name, parameter)} if is_trained else set()
                for each in sorted(found ^ (expected if is_trained else set())):
                    raise refused(each, "has come into the optimizer's state after registration" if each in found else
                                        "was registered and is no longer in the optimizer's state")

    def scalars(self, layer: ExpertLayer) -> List[Tuple[str, List[Mapping[str, Any]]]]:
        """State that is one number for each expert, as Adam's step: (key, the dicts of the local slots in order)."""
        found: List[Tuple[str, List[Mapping[str, Any]]]] = []
        for family in layer.families.values():
            first = family.parameters[0]
            if family.is_stacked or not self.is_trained(first) or self.part(first) is not None:
                continue
            states = [self.of(parameter) for parameter in family.parameters]
            found += [(key, states) for key, value in states[0].items() if is_scalar(value, first)]
        return found

    def _pieces(self, name: str, parameter: torch.Tensor) -> Iterator[Tuple[str, Piece]]:
        if self.part(parameter) is not None:
            return
        main = self._main(parameter)
        if not _is_same_memory(main, parameter):
            self._expect_whole(f"{name}.master", main, parameter)
            yield "master", Piece(main)
        for key, value in self.of(parameter).items():
            if torch.is_tensor(value) and not is_scalar(value, parameter):
                self._expect_whole(f"{name}.{key}", value, parameter)
                yield key, Piece(value, lambda: self.of(parameter), key)  # type: ignore[arg-type,return-value]

    def _main(self, parameter: torch.Tensor) -> torch.Tensor:
        main = None if self._masters is None else self._masters(parameter)
        return parameter if main is None else main.tensor if isinstance(main, Part) else main

    def _keeps_state(self, parameter: torch.Tensor) -> bool:
        optimizer, _ = self.home(parameter)
        return optimizer is None or keeps_state(optimizer, [self.group(parameter) or {}])

    def _expect_elementwise(self, name: str, parameter: torch.Tensor) -> None:
        optimizer, _ = self.home(parameter)
        for kind in type(optimizer).__mro__:
            if any(part in kind.__name__.lower() for part in _OF_WHOLE_PARAMETERS):
                raise refused(name, f"{kind.__name__} updates it by norms over several experts, so that results would depend on which "
                                    f"experts share a rank: give each expert parameters of its own ({_PAGE})")

    def _expect_whole(self, name: str, tensor: torch.Tensor, parameter: torch.Tensor) -> None:
        if tensor.numel() != parameter.numel():
            raise refused(name, f"has {tensor.numel()} elements, the parameter {parameter.numel()}: a flat shard or a factored "
                                f"state cannot be cut by expert ({_PAGE})")


def keeps_state(optimizer: Any, groups: Sequence[Mapping[str, Any]]) -> bool:
    """True if it makes state for parameters of some of these groups; False for gradient descent without momentum."""
    return type(optimizer).__name__ not in _WITHOUT_STATE or any(group.get("momentum", 0) != 0 for group in groups)


def _is_same_memory(main: torch.Tensor, parameter: torch.Tensor) -> bool:
    return main is parameter or main.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()


def is_scalar(value: Any, parameter: torch.Tensor) -> bool:
    """True if state of a parameter is one number."""
    if torch.is_tensor(value):
        return bool(value.numel() == 1 and value.shape != parameter.shape)
    return isinstance(value, (int, float))


def _expect_plain(name: str, value: Any) -> None:
    """errors: InvalidArgument for state that is neither a tensor nor a number, a text, or a tuple of such."""
    is_plain = torch.is_tensor(value) or isinstance(value, _PLAIN) \
        or isinstance(value, tuple) and all(isinstance(each, _PLAIN) for each in value)
    if not is_plain and not (isinstance(value, (list, dict)) and not value):
        raise refused(name, f"the optimizer's state is a {type(value).__name__}: a tensor or a number moves with its expert, and what "
                            f"is in lists, dicts or objects would stay behind ({_PAGE})")


class _HiddenState:
    """Looks through the attributes of an optimizer for tensors that belong to parameters of experts.

    experts: names by id of what the optimizer updates. shapes: one name for each of their shapes.
    """

    _DEPTH = 8

    def __init__(self, optimizer: Any, experts: Mapping[int, str], shapes: Mapping[Any, str]) -> None:
        self._optimizer, self._experts, self._shapes = optimizer, experts, shapes
        self._seen = {id(optimizer.state), id(optimizer.param_groups), *experts}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._seen.update((id(parameter), id(parameter.grad)))
        for state in optimizer.state.values():
            self._seen.update(map(id, state.values() if isinstance(state, Mapping) else ()))

    def find(self) -> Optional[Tuple[str, str]]:
        """Returns (the attribute, the name of the parameter), or None."""
        return next(self._inside("", vars(self._optimizer), 0), None)

    def _inside(self, path: str, value: Any, depth: int) -> Iterator[Tuple[str, str]]:
        if depth > self._DEPTH or id(value) in self._seen or callable(value) or isinstance(value, (str, bytes)):
            return
        self._seen.add(id(value))
        if torch.is_tensor(value):
            if value.numel() > 1 and value.dtype != torch.int64 and tuple(value.shape) in self._shapes:
                yield path, self._shapes[tuple(value.shape)]
        elif isinstance(value, Mapping):
            for key, each in value.items():
                name = self._experts.get(key if isinstance(key, int) else id(key))
                if name is not None and _has_tensor(each):
                    yield path, name
                yield from self._inside(path or str(key), each, depth + 1)
        elif isinstance(value, (list, tuple, set, deque)):
            for each in value:
                yield from self._inside(path, each, depth + 1)
        elif hasattr(value, "__dict__"):
            yield from self._inside(path, vars(value), depth + 1)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    return torch.is_tensor(value) and value.numel() > 1


def optimizers_of(optimizer: Any) -> List[Any]:
    """Returns a list of optimizers. errors: InvalidArgument for what has no `param_groups` and `state`."""
    found = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for each in found:
        if not hasattr(each, "param_groups") or not hasattr(each, "state"):
            raise InvalidArgument(f"optimizer: {type(each).__name__} has no param_groups and state as torch's have; give the "
                                  f"torch optimizer inside it ({_PAGE})")
    return found
