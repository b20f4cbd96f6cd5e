"""Compares the assumed layout of experts with what the model shows: its routers, and other modules with the same experts."""

from __future__ import annotations

import gc
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from torch import nn

from eplb._rows import described
from eplb.errors import InvalidArgument
from eplb.torch.layers import ExpertLayer

_PAGE = "docs/attach.md"

# Modules that hold others and have no forward of their own.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def expect_equal_shares(found: Sequence[Tuple[int, Mapping[str, int]]]) -> None:
    """found: of each rank its pipeline stage and, by layer, the number of its experts. errors: InvalidArgument, the same on all
    ranks, naming a layer of which two ranks hold different numbers of experts."""
    first: Dict[Tuple[int, str], Tuple[int, int]] = {}
    for rank, (stage, layers) in enumerate(found):
        for name, count in layers.items():
            other, expected = first.setdefault((stage, name), (rank, count))
            if count != expected:
                raise InvalidArgument(f"{name}: rank {other} holds {expected} experts and rank {rank} holds {count}: EPLB needs the "
                                      f"same number on each rank ({_PAGE})")


def expect_routers_of(layers: Iterable[ExpertLayer], num_experts: int, num_ranks: int) -> None:
    """errors: InvalidArgument naming a router whose parameters show another number of experts than num_experts.

    A router without parameters of two dimensions shows none.
    """
    for layer in layers:
        if layer.router is None:
            continue
        shown = {name: parameter for name, parameter in layer.router.named_parameters() if parameter.dim() > 1}
        if shown and all(num_experts not in parameter.shape for parameter in shown.values()):
            name, parameter = next(iter(shown.items()))
            raise InvalidArgument(
                f"router of {layer.name}: its {name} is {described(parameter)}, and no dimension of its parameters is the "
                f"{num_experts} experts that {num_ranks} ranks of ep_group with {layer.num_local_slots} each make: give the ep_group "
                f"over which this layer is spread, and num_local_experts if it is not the first dimension of stacks; check_batch "
                f"takes the place of this check for a router with no row for each expert ({_PAGE})")


def expect_one_model(chunks: Sequence[nn.Module], layers: Sequence[ExpertLayer]) -> None:
    """errors: InvalidArgument naming a module outside of the model that computes with the same experts. cost: one look at each
    object of the process."""
    own = {id(module) for chunk in chunks for module in chunk.modules()}
    experts = {id(module): layer.name for layer in layers for module in layer.experts.modules() if module is not layer.experts}
    experts.update((id(layer.experts), layer.name) for layer in layers)
    experts.update((id(parameter), layer.name) for layer in layers for parameter in layer.parameters())
    for module, part in _parts_of_all_modules():
        if id(part) in experts and id(module) not in own and not isinstance(module, _CONTAINERS):
            raise InvalidArgument(f"{experts[id(part)]}: a {type(module).__name__} outside of the model has the same experts, and its "
                                  f"router would not follow them: attach one model that has both, or give it experts of its own "
                                  f"({_PAGE})")


def _parts_of_all_modules() -> Iterator[Tuple[nn.Module, Any]]:
    modules: List[nn.Module] = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    for module in modules:
        for parts in (module.__dict__.get("_modules"), module.__dict__.get("_parameters")):
            for part in (parts or {}).values():
                yield module, part
