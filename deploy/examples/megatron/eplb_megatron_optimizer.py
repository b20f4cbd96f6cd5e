"""State of Megatron-Core's optimizers for each expert: fp32 masters and moments, whole or in shards.

Known: Float16OptimizerWithFloat16Params, FP32Optimizer, DistributedOptimizer, LayerWiseDistributedOptimizer, chains of them,
and optimizers of torch, also torch.distributed.optim.ZeroRedundancyOptimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch

import eplb
from eplb.torch.pieces import ExpertTensor, Piece, refused
from eplb.torch.state import keeps_state
from eplb_megatron_layers import MoeLayer
from eplb_megatron_sharded import Shard, StateShards

_PAGE = "docs/registering-tensors.md"

# A layer's EPLB number and the name of a family of its parameters.
Family = Tuple[int, str]


@dataclass(frozen=True)
class Home:
    """Elements [start, stop) of a parameter that an optimizer of this rank updates.

    updated: what the inner optimizer updates in their place, by which its state is found. main: their fp32 master; None where
    `updated` is the parameter's own memory.
    """

    leaf: Any
    inner: Any
    updated: torch.Tensor
    main: Optional[torch.Tensor]
    start: int
    stop: int

    def state(self) -> Dict[str, Any]:
        found: Dict[str, Any] = self.inner.state.get(self.updated, {})
        return found

    def moving_state(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """State with a value for each element. What is one number for a parameter, as torch's step, stays in its slot."""
        for key, value in self.state().items():
            if torch.is_tensor(value) and not self.is_scalar(value):
                yield key, value

    def is_scalar(self, value: Any) -> bool:
        if torch.is_tensor(value):
            return value.numel() == 1 and (value.dim() == 0 or self.stop - self.start > 1)
        return isinstance(value, (int, float))

    def gathers_late(self) -> bool:
        """True if other ranks get the weights of these elements with the next forward, not in the step."""
        return any(getattr(getattr(self.leaf, config, None), "overlap_param_gather", False)
                   for config in ("config", "ddp_config"))


def leaves_of(optimizer: Any) -> List[Any]:
    """The optimizers that a ChainedOptimizer chains, or the one. errors: InvalidArgument for what cannot move by expert."""
    if hasattr(optimizer, "chained_optimizers"):
        return [leaf for each in optimizer.chained_optimizers for leaf in leaves_of(each)]
    _expect_by_expert(optimizer)
    _expect_by_expert(inner_of(optimizer))
    return [optimizer]


def _expect_by_expert(optimizer: Any) -> None:
    names = [kind.__name__ for kind in type(optimizer).__mro__]
    if "HybridDeviceOptimizer" in names:
        raise eplb.InvalidArgument(f"{names[0]} holds state in host memory while weights are on a GPU ({_PAGE}): train "
                                   f"without --optimizer-cpu-offload")
    config = getattr(optimizer, "ddp_config", None)
    if getattr(config, "use_megatron_fsdp", False) or getattr(config, "use_custom_fsdp", False):
        raise eplb.InvalidArgument(f"{names[0]} updates parameters that Megatron-FSDP shards: a rank holds no whole expert "
                                   f"({_PAGE}): train without --use-megatron-fsdp")
    known = inner_of(optimizer) is None or hasattr(optimizer, "shard_fp32_from_float16_groups")
    if any("DistributedOptimizer" in name for name in names) and not known:
        raise eplb.InvalidArgument(f"{names[0]} has no shard_fp32_from_float16_groups, by which Megatron-Core 0.10 and later "
                                   f"say which elements of a parameter a rank updates ({_PAGE})")


def inner_of(leaf: Any) -> Any:
    """The torch optimizer of one of Megatron's or of torch's ZeroRedundancyOptimizer; another torch optimizer is its own."""
    return getattr(leaf, "optimizer", getattr(leaf, "optim", leaf))


def _homes_of(leaf: Any) -> Iterator[Tuple[torch.Tensor, Home]]:
    inner = inner_of(leaf)
    if inner is None:  # a stage without trained parameters
        return
    if hasattr(leaf, "shard_fp32_from_float16_groups"):
        yield from _homes_in_buffers(leaf, inner)
        return
    groups = zip(getattr(leaf, "float16_groups", ()), getattr(leaf, "fp32_from_float16_groups", ()))
    masters = [(model, main) for models, mains in groups for model, main in zip(models, mains)]
    of_models = {id(main) for _, main in masters}
    for model, main in masters:
        yield model, Home(leaf, inner, main, main, 0, model.numel())
    for group in inner.param_groups:
        for each in group["params"]:
            if id(each) not in of_models:
                yield each, Home(leaf, inner, each, None, 0, each.numel())


def _homes_in_buffers(leaf: Any, inner: Any) -> Iterator[Tuple[torch.Tensor, Home]]:
    """Shards of DistributedOptimizer. A precision-aware one has no masters of its own: they are among the inner one's state."""
    halves = zip(leaf.model_float16_groups, leaf.shard_float16_groups, leaf.shard_fp32_from_float16_groups)
    wholes = ((models, shards, [None] * len(shards)) for models, shards in zip(leaf.model_fp32_groups,
                                                                             leaf.shard_fp32_groups))
    for group in (*halves, *wholes):
        for model, shard, main in zip(*group):
            elements = leaf._get_model_param_range_map(model)["param"]
            yield model, Home(leaf, inner, shard if main is None else main, main, elements.start, elements.end)


class ExpertState:
    """The state of the experts' parameters over all of a rank's optimizers."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves = leaves
        self._homes: Dict[int, Home] = {id(parameter): home for leaf in leaves for parameter, home in _homes_of(leaf)}

    def home(self, parameter: torch.Tensor) -> Optional[Home]:
        return self._homes.get(id(parameter))

    def leaves_of_experts(self, layers: Sequence[MoeLayer]) -> List[Any]:
        """The optimizers that update an expert's parameter."""
        mine = {id(parameter) for layer in layers for parameter in layer.parameters()}
        of_experts = {id(home.leaf) for parameter, home in self._homes.items() if parameter in mine}
        return [leaf for leaf in self._leaves if id(leaf) in of_experts]

    def is_there(self, layers: Sequence[MoeLayer]) -> Optional[bool]:
        """True if the moments exist: optimizers make them in the first step that is not skipped. None: this rank has none to
        come."""
        homes = [home for layer in layers for parameter in layer.parameters() if parameter.requires_grad
                 for home in [self.home(parameter)] if home is not None and keeps_state(home.inner, home.inner.param_groups)]
        return all(home.state() for home in homes) if homes else None

    def views(self, layers: Sequence[MoeLayer], chunks: Sequence[torch.nn.Module], left_out: Set[Family]) -> List[Any]:
        """An object with `param_groups` and `state`, as client.check looks at, for each torch optimizer: its parameters are
        the model's, so that they have names, and the master of each is among its state. left_out: experts' that `check`
        cannot see, as the client does not move them as they are."""
        hidden = {id(parameter) for layer in layers for family, parameters in layer.families.items()
                  if (layer.index, family) in left_out for parameter in parameters}
        views: Dict[int, Any] = {}
        for parameter in (each for chunk in chunks for each in chunk.parameters()):
            home = self.home(parameter)
            if home is not None and id(parameter) not in hidden:
                view = views.setdefault(id(home.inner), SimpleNamespace(param_groups=[{"params": []}], state={}))
                view.param_groups[0]["params"].append(parameter)
                view.state[parameter] = {**home.state(), **({} if home.main is None else {"master": home.main})}
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

    def has_masters(self, parameters: Sequence[torch.nn.Parameter]) -> bool:
        """True if this rank holds a whole master of each."""
        return all(home is not None and home.main is not None for home in map(self.home, parameters))

    # ---- whole on this rank ----

    def tensors(self, layer: MoeLayer, family: str, role_of_masters: str = "state") -> List[ExpertTensor]:
        """Masters, and whatever state there is now. errors: InvalidArgument naming a parameter or a piece of state."""
        parameters, name = layer.families[family], f"layers.{layer.index}.{family}"
        pieces: Dict[str, List[Piece]] = {}
        for parameter in parameters:
            for key, piece in self._pieces(name, parameter):
                pieces.setdefault(key, []).append(piece)
        for key, of_key in pieces.items():
            if len(of_key) != len(parameters):
                raise eplb.InvalidArgument(f"tensor \"{name}.{key}\": {len(of_key)} of {len(parameters)} experts have it")
        return [ExpertTensor(f"{name}.{key}", layer.index, role_of_masters if key == "master" else "state", of_key,
                             layer.num_local_slots) for key, of_key in pieces.items()]

    def scalars(self, layers: Sequence[MoeLayer]) -> Dict[str, List[float]]:
        """Distinct values of state that is one number for a parameter, as Adam's step: all experts must share it."""
        values: Dict[str, Set[float]] = {}
        for parameter in (each for layer in layers for each in layer.parameters() if each.requires_grad):
            home = self.home(parameter)
            for key, value in home.state().items() if home is not None else ():
                if home is not None and home.is_scalar(value):
                    values.setdefault(key, set()).add(float(value))
        return {key: sorted(each) for key, each in sorted(values.items())}

    def _pieces(self, name: str, parameter: torch.nn.Parameter) -> Iterator[Tuple[str, Piece]]:
        home = self.home(parameter)
        if home is None:
            raise refused(name, "no optimizer of this rank updates it, nor a whole copy of it")
        if home.main is not None:
            _expect_size(f"{name}.master", home.main, home)
            yield "master", Piece(home.main)
        for key, value in home.moving_state():
            _expect_size(f"{name}.{key}", value, home)
            yield key, Piece(value, home.state, key)

    # ---- in shards ----

    def in_shards(self, layer: MoeLayer) -> List[str]:
        """Families of which this rank does not update every element."""
        return [family for family, parameters in layer.families.items() if trained(layer, family) and any(
            home is None or (home.start, home.stop) != (0, parameter.numel())
            for parameter, home in ((parameter, self.home(parameter)) for parameter in parameters))]

    def ranges(self, layer: MoeLayer, family: str) -> List[Tuple[int, int]]:
        """[start, stop) of what this rank updates, in [local slots * elements]."""
        return [(offset + home.start, offset + home.stop) for offset, _, home in self._with_offsets(layer, family)]

    def kinds(self, layer: MoeLayer, family: str) -> List[Tuple[str, str]]:
        """(key, element type) of what this rank holds in shards now: masters, and state."""
        found: Set[Tuple[str, str]] = set()
        for _, _, home in self._with_offsets(layer, family):
            tensors = [*home.moving_state(), *([] if home.main is None else [("master", home.main)])]
            found.update((key, str(value.dtype).replace("torch.", "")) for key, value in tensors)
        return sorted(found)

    def shards(self, layer: MoeLayer, family: str, key: str, dtype: str) -> StateShards:
        """This rank's of one kind, perhaps none. errors: InvalidArgument for state that is not of a value for each element."""
        name = f"layers.{layer.index}.{family}.{key}"
        shards: List[Shard] = []
        for offset, _, home in self._with_offsets(layer, family):
            tensor = home.main if key == "master" else home.state().get(key)
            if tensor is None:
                raise refused(name, "other shards of the experts have it, one of this rank does not")
            _expect_size(name, tensor, home)
            shards.append((offset + home.start, _getter(home, key)))
        return StateShards(name, layer.index, layer.shape_of(family), getattr(torch, dtype), self._device(layer), shards)

    def late_weights(self, layer: MoeLayer, family: str) -> StateShards:
        """The elements of the weights that this rank updates: the others are those of the step before, until a forward."""
        shards: List[Shard] = [(offset + home.start, _slice_of(parameter, home))
                               for offset, parameter, home in self._with_offsets(layer, family)]
        dtype = layer.families[family][0].dtype
        return StateShards(f"layers.{layer.index}.{family}", layer.index, layer.shape_of(family), dtype, self._device(layer),
                           shards)

    def gathers_late(self) -> bool:
        return any(home.gathers_late() for home in self._homes.values())

    def _with_offsets(self, layer: MoeLayer, family: str) -> Iterator[Tuple[int, torch.nn.Parameter, Home]]:
        offset = 0
        for parameter in layer.families[family]:
            home = self.home(parameter)
            if home is not None:
                yield offset, parameter, home
            offset += parameter.numel()

    @staticmethod
    def _device(layer: MoeLayer) -> torch.device:
        return next(layer.parameters()).device


def trained(layer: MoeLayer, family: str) -> bool:
    """errors: InvalidArgument where some experts are trained and some are not."""
    parameters = layer.families[family]
    number = sum(each.requires_grad for each in parameters)
    if number not in (0, len(parameters)):
        raise refused(f"layers.{layer.index}.{family}", f"{number} of {len(parameters)} experts are trained; expected all or "
                                                        f"none")
    return number > 0


def unknown_kinds(now: Mapping[Family, Sequence[Tuple[str, str]]], then: Mapping[Family, Sequence[Tuple[str, str]]]) -> List[str]:
    """Names of state in shards that was not there when everything was registered."""
    return [f"layers.{layer}.{family}.{key}" for (layer, family), kinds in sorted(now.items())
            for key, _ in kinds if key not in {each for each, _ in then.get((layer, family), ())}]


def _getter(home: Home, key: str) -> Callable[[], torch.Tensor]:
    if key == "master" and home.main is not None:
        main = home.main
        return lambda: main
    return lambda: home.state()[key]  # type: ignore[no-any-return]


def _slice_of(parameter: torch.nn.Parameter, home: Home) -> Callable[[], torch.Tensor]:
    return lambda: parameter.detach().view(-1)[home.start:home.stop]


def _expect_size(name: str, tensor: torch.Tensor, home: Home) -> None:
    size = home.stop - home.start
    if tensor.numel() != size:
        raise refused(name, f"has {tensor.numel()} elements, the parameter {size}: a flat shard or a factored state cannot be "
                            f"cut by expert ({_PAGE})")
    if hasattr(home.inner, "_scales") and tensor.dtype in (torch.uint8, torch.float16):
        raise refused(name, f"is {str(tensor.dtype).replace('torch.', '')} with a scale that the optimizer holds elsewhere and "
                            f"that would stay with the slot: use --exp-avg-dtype, --exp-avg-sq-dtype and --main-params-dtype "
                            f"fp32 or bf16")
