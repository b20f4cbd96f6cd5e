"""What Megatron-Core's optimizers hold for each expert: fp32 master weights and moments, as rows of local slots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch

import eplb
from eplb.torch.pieces import ExpertTensor, Piece
from eplb_megatron_layers import MoeLayer

_PAGE = "docs/registering-tensors.md"


def leaves_of(optimizer: Any) -> List[Any]:
    """The optimizers that a ChainedOptimizer chains, or the one. errors: InvalidArgument for what cannot move by expert."""
    _expect_by_parameter(optimizer)
    if hasattr(optimizer, "chained_optimizers"):
        return [leaf for each in optimizer.chained_optimizers for leaf in leaves_of(each)]
    _expect_by_parameter(inner_of(optimizer))
    return [optimizer]


def _expect_by_parameter(optimizer: Any) -> None:
    names = [kind.__name__ for kind in type(optimizer).__mro__]
    if any("DistributedOptimizer" in name for name in names):
        raise eplb.InvalidArgument(
            f"{names[0]} cuts master weights and moments out of flat buffers across the borders of experts, so that they "
            f"cannot move with one ({_PAGE}): train without --use-distributed-optimizer; Megatron then holds whole tensors "
            f"for each parameter (Float16OptimizerWithFloat16Params, FP32Optimizer)")
    if "HybridDeviceOptimizer" in names:
        raise eplb.InvalidArgument(f"{names[0]} holds state in host memory while weights are on a GPU ({_PAGE}): train "
                                   f"without --optimizer-cpu-offload")


def inner_of(leaf: Any) -> Any:
    """The torch optimizer of one of Megatron's; a torch optimizer is its own."""
    return getattr(leaf, "optimizer", leaf)


class ExpertState:
    """The state of the experts' parameters over all of a rank's optimizers."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves = leaves
        # id of a model parameter -> (the torch optimizer, the master that it updates in the parameter's place)
        self._homes: Dict[int, Tuple[Any, Optional[torch.Tensor]]] = {}
        for leaf in leaves:
            inner = inner_of(leaf)
            if inner is None:  # a stage without trained parameters
                continue
            groups = zip(getattr(leaf, "float16_groups", ()), getattr(leaf, "fp32_from_float16_groups", ()))
            masters = {id(model): main for models, mains in groups for model, main in zip(models, mains)}
            updated = {id(each) for group in inner.param_groups for each in group["params"]}
            self._homes.update({model: (inner, main) for model, main in masters.items()})
            self._homes.update({each: (inner, None) for each in updated - {id(main) for main in masters.values()}})

    def is_there(self, layers: Sequence[MoeLayer]) -> bool:
        """Whether the moments exist: optimizers make them in the first step that is not skipped."""
        return all(self._state(parameter) or not self._keeps_state(parameter)
                   for layer in layers for parameter in layer.parameters() if parameter.requires_grad)

    def views(self, chunks: Sequence[torch.nn.Module]) -> List[Any]:
        """An object with `param_groups` and `state`, as client.check looks at, for each torch optimizer: its parameters are
        the model's, so that they have names, and the master of each is among its state."""
        views: Dict[int, Any] = {}
        for parameter in (each for chunk in chunks for each in chunk.parameters()):
            inner, main = self._homes.get(id(parameter), (None, None))
            if inner is not None:
                view = views.setdefault(id(inner), SimpleNamespace(param_groups=[{"params": []}], state={}))
                view.param_groups[0]["params"].append(parameter)
                view.state[parameter] = {**self._state(parameter), **({} if main is None else {"master": main})}
        return list(views.values())

    def create(self) -> None:
        """Makes state as Megatron does before it loads a checkpoint. errors: FailedPrecondition where it has no way to."""
        for leaf in self._leaves:
            if inner_of(leaf) is None:
                continue
            if not hasattr(leaf, "init_state_fn"):
                raise eplb.FailedPrecondition(f"{type(leaf).__name__} has no init_state_fn, and no state before its first "
                                              f"step")
            leaf.init_state_fn(inner_of(leaf), getattr(leaf, "config", None))

    def tensors(self, layer: MoeLayer) -> List[ExpertTensor]:
        """Masters, and whatever state there is now. errors: InvalidArgument naming a parameter or a piece of state."""
        found: List[ExpertTensor] = []
        for family, parameters in layer.families.items():
            name = f"layers.{layer.index}.{family}"
            trained = [each for each in parameters if each.requires_grad]
            if not trained:
                continue
            if len(trained) != len(parameters):
                raise eplb.InvalidArgument(f"tensor \"{name}\": {len(trained)} of {len(parameters)} experts are trained; "
                                           f"expected all or none")
            pieces: Dict[str, List[Piece]] = {}
            for parameter in parameters:
                for key, piece in self._pieces(name, parameter):
                    pieces.setdefault(key, []).append(piece)
            for key, of_key in pieces.items():
                if len(of_key) != len(parameters):
                    raise eplb.InvalidArgument(f"tensor \"{name}.{key}\": {len(of_key)} of {len(parameters)} experts have "
                                               f"it")
                found.append(ExpertTensor(f"{name}.{key}", layer.index, "state", of_key, layer.num_local_slots))
        return found

    def scalars(self, layers: Sequence[MoeLayer]) -> Dict[str, List[float]]:
        """Distinct values of state that is one number for a parameter, as Adam's step: all experts must share it."""
        values: Dict[str, Set[float]] = {}
        for layer in layers:
            for parameter in layer.parameters():
                for key, value in self._state(parameter).items() if parameter.requires_grad else ():
                    if isinstance(value, (int, float)) or torch.is_tensor(value) and value.numel() == 1 < parameter.numel():
                        values.setdefault(key, set()).add(float(value))
        return {key: sorted(each) for key, each in sorted(values.items())}

    def _pieces(self, name: str, parameter: torch.nn.Parameter) -> Iterator[Tuple[str, Piece]]:
        main = self._main(name, parameter)
        if main is not parameter:
            self._expect_whole(f"{name}.master", main, parameter)
            yield "master", Piece(main)
        for key, value in self._state(parameter).items():
            if torch.is_tensor(value) and (value.numel() > 1 or parameter.numel() == 1):
                self._expect_whole(f"{name}.{key}", value, parameter)
                yield key, Piece(value, lambda: self._state(parameter), key)

    def _main(self, name: str, parameter: torch.nn.Parameter) -> torch.Tensor:
        if id(parameter) not in self._homes:
            raise eplb.InvalidArgument(f"tensor \"{name}\": no optimizer of this rank updates it, nor a whole copy of it")
        main = self._homes[id(parameter)][1]
        return parameter if main is None else main

    def _state(self, parameter: torch.nn.Parameter) -> Dict[str, Any]:
        inner, main = self._homes.get(id(parameter), (None, None))
        return {} if inner is None else inner.state.get(parameter if main is None else main, {})

    def _keeps_state(self, parameter: torch.nn.Parameter) -> bool:
        """False for gradient descent without momentum."""
        inner, _ = self._homes.get(id(parameter), (None, None))
        return inner is None or any(group.get("momentum", 1) != 0 for group in inner.param_groups)

    def _expect_whole(self, name: str, tensor: torch.Tensor, parameter: torch.nn.Parameter) -> None:
        if tensor.numel() != parameter.numel():
            raise eplb.InvalidArgument(f"tensor \"{name}\": has {tensor.numel()} elements, the parameter "
                                       f"{parameter.numel()}: a flat shard or a factored state cannot be cut by expert "
                                       f"({_PAGE})")
