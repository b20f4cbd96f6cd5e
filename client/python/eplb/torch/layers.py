"""The MoE layers of a model: the modules that hold experts, their parameters expert by expert, and their routers."""

from __future__ import annotations

import fnmatch
import re
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from eplb._rows import local_of
from eplb.errors import InvalidArgument
from eplb.torch.shards import Shard, expect_whole_experts, rows_of, shard_of

_PAGE = "docs/attach.md"

# Which modules hold the local experts of a layer: a condition, a class, or a pattern of names as of fnmatch.
Experts = Union[Callable[[nn.Module], bool], type, str]
# The router of a layer: its name inside the nearest module around the experts that has one, or (that module) -> the router.
Router = Union[str, Callable[[nn.Module], nn.Module]]


# Modules of experts that are attached, which find_layers refuses. A copy of one is not in it.
attached_experts: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(frozen=True)
class Family:
    """One tensor of every expert: a parameter for each local slot, or one that holds all.

    template: of the names below the experts' module, {} for the number of each local slot. places: of each parameter the dict
    of its module, and its key there.
    """

    template: str
    parameters: List[nn.Parameter]
    places: List[Tuple[Dict[str, Any], str]]
    numbers: List[int]

    @property
    def is_stacked(self) -> bool:
        return not self.numbers

    @property
    def names(self) -> List[str]:
        return [self.template.format(number) for number in self.numbers] or [self.template]


@dataclass
class ExpertLayer:
    """name: of the experts' module. index: EPLB's number of the layer, given once all ranks are known.

    families: by name. singles: with a module for each local expert those, by their names below `experts`. shard: of
    parameters that are DTensors, where this rank's experts are among all.
    """

    name: str
    experts: nn.Module
    router: Optional[nn.Module]
    families: Dict[str, Family]
    singles: Dict[str, nn.Module]
    num_local_slots: int
    shard: Optional[Shard] = None
    index: int = -1

    def parameters(self) -> Iterator[nn.Parameter]:
        for family in self.families.values():
            yield from family.parameters

    def by_expert(self, experts: Sequence[int]) -> Iterator[Tuple[str, int, torch.Tensor]]:
        """experts: in the local slots. Yields (name, expert, its weights in the model's own memory)."""
        for family in self.families.values():
            rows: Any = family.parameters
            if family.is_stacked:
                rows = (row.squeeze(0) for row in local_of(family.parameters[0]).detach().unflatten(0, (len(experts), -1)))
            for expert, row in zip(experts, rows):
                yield f"{self.name}.{family.template}", expert, row.detach()


def find_layers(chunks: Sequence[nn.Module], experts: Experts, router: Optional[Router],
                num_local_experts: Optional[int] = None) -> List[ExpertLayer]:
    """The MoE layers of a rank's modules, in the order of named_modules.

    num_local_experts: where shapes do not say it. errors: InvalidArgument naming module and parameter; also for
    experts, a router or a parameter of experts that has two places.
    """
    layers: List[ExpertLayer] = []
    names = _Names(chunks)
    for chunk in chunks:
        found: List[str] = []
        for name, module in chunk.named_modules(remove_duplicate=False):
            inside = any(name == outer or name.startswith(f"{outer}." if outer else "") for outer in found)
            if inside or not _is_named(experts, name, module):
                continue
            found.append(name)
            full_name = names.of(module)[0]
            if module in attached_experts:
                raise InvalidArgument(f"{full_name} is attached already: its router would be turned twice")
            names.expect_one_place(module)
            families, singles = _parts_of(full_name, module, num_local_experts)
            shard = _shard_of(full_name, families)
            layers.append(ExpertLayer(full_name, module, _router_of(chunk, name, full_name, router), families, singles,
                                      _num_slots(full_name, families, num_local_experts), shard))
    names.expect_own_routers(layers)
    return layers


class _Names:
    """The names under which modules and parameters stand in a rank's chunks; several where one is shared."""

    def __init__(self, chunks: Sequence[nn.Module]) -> None:
        self._names: Dict[int, List[str]] = {}
        for number, chunk in enumerate(chunks):
            before = f"chunk {number}: " if len(chunks) > 1 else ""
            for name, module in chunk.named_modules(remove_duplicate=False):
                self._names.setdefault(id(module), []).append(before + (name or type(module).__name__))
                for key, parameter in module._parameters.items():
                    if parameter is not None:
                        self._names.setdefault(id(parameter), []).append(before + (f"{name}.{key}" if name else key))

    def of(self, each: Any) -> List[str]:
        """Returns the names; for a module outside the chunks its type."""
        return self._names.get(id(each)) or [type(each).__name__]

    def expect_one_place(self, experts: nn.Module) -> None:
        """errors: InvalidArgument naming both places of an experts' module, or of a parameter in it."""
        if len(self.of(experts)) > 1:
            raise InvalidArgument(f"{_joined(self.of(experts))} are one module of experts: they move with one router's "
                                  f"tokens, so give each layer experts of its own ({_PAGE})")
        for parameter in experts.parameters():
            if len(self.of(parameter)) > 1:
                raise InvalidArgument(f"{_joined(self.of(parameter))} are one parameter of experts: it would move in "
                                      f"both places with one expert, so give each its own ({_PAGE})")

    def expect_own_routers(self, layers: Sequence[ExpertLayer]) -> None:
        """errors: InvalidArgument naming two layers and the router that both found."""
        first: Dict[int, ExpertLayer] = {}
        for layer in layers:
            other = layer if layer.router is None else first.setdefault(id(layer.router), layer)
            if other is not layer:
                raise InvalidArgument(f"router: {other.name} and {layer.name} have one router, "
                                      f"{self.of(layer.router)[0]}: its output cannot be in the order of both layers' "
                                      f"slots, so let `router` name one of each layer's own ({_PAGE})")


def _joined(names: Sequence[str]) -> str:
    return " and ".join(names[:2])


def _is_named(experts: Experts, name: str, module: nn.Module) -> bool:
    if isinstance(experts, str):
        return fnmatch.fnmatchcase(name, experts)
    if isinstance(experts, type):
        return isinstance(module, experts)
    return bool(experts(module))


def _router_of(chunk: nn.Module, name: str, full_name: str, router: Optional[Router]) -> Optional[nn.Module]:
    if router is None:
        return None
    parents = name.split(".")[:-1]
    around = [chunk.get_submodule(".".join(parents[:count])) for count in range(len(parents), -1, -1)]
    if not isinstance(router, str):
        found = router(around[0])
        if not isinstance(found, nn.Module):
            raise InvalidArgument(f"router: it gave {type(found).__name__} for the module around {full_name}, expected a module")
        return found
    for module in around:
        try:
            return module.get_submodule(router)
        except AttributeError:
            continue
    raise InvalidArgument(f"router: no module around {full_name} has a \"{router}\" ({_PAGE})")


def _parts_of(name: str, module: nn.Module, num_slots: Optional[int]) -> Tuple[Dict[str, Family], Dict[str, nn.Module]]:
    """Families by name, and the modules of single experts."""
    buffers = [each for each, _ in module.named_buffers()]
    if buffers:
        raise InvalidArgument(f"{name} has the buffer {buffers[0]}: parameters and optimizer state move; what else belongs to an "
                              f"expert would stay behind ({_PAGE})")
    places = _places_of(module)
    if not places:
        raise InvalidArgument(f"{name} ({type(module).__name__}) has no parameters")
    singles = _single_experts(module)
    if singles is not None:
        is_named = isinstance(module, (nn.ModuleList, nn.ModuleDict))  # `experts` means its entries
        if _are_stacks(name, "modules", len(singles), places, num_slots, is_decided=is_named):
            return _stacked(places), {}
        return _by_module(name, singles, places), singles
    numbered = _by_number(places, num_slots)
    if numbered:
        _are_stacks(name, "parameters", len(next(iter(numbered.values())).numbers), places, num_slots)
    return numbered or _stacked(places), {}


def _are_stacks(name: str, what: str, count: int, places: Dict[str, Any], num_slots: Optional[int],
                is_decided: bool = False) -> bool:
    """True if `count` numbered modules or parameters are stacks of all experts rather than one expert each.

    errors: InvalidArgument where they may be either.
    """
    sizes = {rows_of(parameter) for parameter, _ in places.values()}
    if num_slots not in (None, count):
        return sizes == {num_slots}
    if sizes == {count} and not is_decided:
        way_out = ("let `experts` name the list itself, and keep stacks outside a list" if what == "modules" else
                   "put it into a module of a list, and give stacks names that end in no number")
        raise InvalidArgument(f"{name} ({', '.join(places)[:80]}): its {count} numbered {what} may be one expert each, "
                              f"or stacks of {count} by their first dimension: where each is an expert {way_out} "
                              f"({_PAGE})")
    return False


def _places_of(module: nn.Module) -> Dict[str, Tuple[nn.Parameter, Tuple[Dict[str, Any], str]]]:
    """Name -> (the parameter, where it is)."""
    found = {}
    for prefix, owner in module.named_modules():
        for key, parameter in owner._parameters.items():
            if parameter is not None:
                found[f"{prefix}.{key}" if prefix else key] = (parameter, (owner._parameters, key))
    return found


def _single_experts(module: nn.Module) -> Optional[Dict[str, nn.Module]]:
    """The first list of modules in it, which are one expert each. Entries of other ranks may be None."""
    for prefix, each in module.named_modules():
        if isinstance(each, (nn.ModuleList, nn.ModuleDict)):
            found = {f"{prefix}.{key}" if prefix else key: child for key, child in each._modules.items() if child is not None}
            shapes = {tuple((name, parameter.shape) for name, parameter in child.named_parameters())
                      for child in found.values()}
            if found and len(shapes) == 1 and all(re.fullmatch(r"(?:.*\.)?\d+", key) for key in found):
                return found
    return None


def _by_module(name: str, singles: Dict[str, nn.Module], places: Dict[str, Any]) -> Dict[str, Family]:
    families: Dict[str, Family] = {}
    for parameter_name, (parameter, place) in places.items():
        single = next((key for key in singles if parameter_name.startswith(f"{key}.")), None)
        if single is None:
            raise InvalidArgument(f"{name} has the parameter {parameter_name} beside one module for each expert: it would stay "
                                  f"where it is; let `experts` name the module that holds experts alone")
        rest, before = parameter_name[len(single) + 1:], single.rpartition(".")
        template = f"{before[0]}{before[1]}{{}}.{rest}"
        _add(families.setdefault(rest, Family(template, [], [], [])), parameter, place, int(before[2]))
    return families


def _by_number(places: Dict[str, Any], num_slots: Optional[int]) -> Dict[str, Family]:
    """weight0, weight1, ..: a parameter for each expert, told apart by a number at the end of its name. Empty: these are none."""
    families: Dict[str, Family] = {}
    for parameter_name, (parameter, place) in places.items():
        match = re.fullmatch(r"(.*?)(\d+)", parameter_name)
        if match is None:
            return {}
        _add(families.setdefault(match[1], Family(f"{match[1]}{{}}", [], [], [])), parameter, place, int(match[2]))
    for key, family in families.items():
        if sorted(family.numbers) != list(range(len(family.numbers))) \
                or num_slots not in (None, len(family.numbers)) \
                or len({parameter.shape for parameter in family.parameters}) != 1:
            return {}
        order = sorted(range(len(family.numbers)), key=family.numbers.__getitem__)
        families[key] = Family(family.template, *([part[i] for i in order] for part in
                                                  (family.parameters, family.places, family.numbers)))
    return families


def _add(family: Family, parameter: nn.Parameter, place: Tuple[Dict[str, Any], str], number: int) -> None:
    family.parameters.append(parameter)
    family.places.append(place)
    family.numbers.append(number)


def _stacked(places: Dict[str, Any]) -> Dict[str, Family]:
    return {name: Family(name, [parameter], [place], []) for name, (parameter, place) in places.items()}


def _shard_of(name: str, families: Dict[str, Family]) -> Optional[Shard]:
    """errors: InvalidArgument for experts that a shard cuts, and for stacks of which this rank holds different experts."""
    shards: Dict[str, Optional[Shard]] = {}
    for key, family in families.items():
        if family.is_stacked:
            shards[key] = shard_of(f"{name}.{key}", family.parameters[0])
        else:
            expect_whole_experts(f"{name}.{family.names[0]}", family.parameters)
    found = set(shards.values())
    if len(found) > 1:
        raise InvalidArgument(f"{name} has " + ", ".join(f"{key} {_part_text(each)}" for key, each in sorted(shards.items())[:6])
                              + f", expected the same part of each: shard all stacks of a layer alike ({_PAGE})")
    return next(iter(found), None)


def _part_text(shard: Optional[Shard]) -> str:
    return "whole" if shard is None else f"in part {shard.place} of {shard.parts}"


def _num_slots(name: str, families: Dict[str, Family], given: Optional[int]) -> int:
    found = {key: len(family.parameters) if not family.is_stacked else
             given or rows_of(family.parameters[0])
             for key, family in families.items()}
    numbers = sorted(set(found.values()))
    if len(numbers) != 1 or numbers[0] < 1 or given not in (None, numbers[0]):
        raise InvalidArgument(f"{name} has " + ", ".join(f"{key} for {count} experts" for key, count in sorted(found.items())[:6])
                              + f", expected as many of each{f', {given}' if given else ''}: give num_local_experts where the "
                                f"first dimension is another ({_PAGE})")
    return numbers[0]


def device_of(layers: Sequence[ExpertLayer]) -> torch.device:
    """Returns the device of the experts; the CPU if there are none."""
    return next((parameter.device for layer in layers for parameter in layer.parameters()), torch.device("cpu"))
