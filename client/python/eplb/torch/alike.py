"""Traits of training that belong to slots and must be equal for all experts."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from eplb.torch.layers import ExpertLayer
from eplb.torch.pieces import refused
from eplb.torch.state import OptimizerState

_PLAIN = (bool, int, float, str, type(None))
_WAY_OUT = "experts change slots, and this stays: it must be the same for all experts of a layer"


def expect_alike(layers: Sequence[ExpertLayer], state: OptimizerState) -> None:
    """errors: InvalidArgument naming a parameter that is trained otherwise than those of this rank's other experts."""
    for layer in layers:
        for family in layer.families.values():
            first, expected = "", None
            for name, parameter in zip(family.names, family.parameters):
                traits = _traits(parameter, state)
                if traits is not None and expected is not None:
                    _expect_equal(f"{layer.name}.{name}", traits, expected, f"for {first}")
                elif traits is not None:
                    first, expected = name, traits


def traits_of(layers: Sequence[ExpertLayer], state: OptimizerState) -> Dict[str, List[Any]]:
    """Returns the traits of this rank's experts as JSON values, each set once. REQUIRES: expect_alike found nothing."""
    sets: List[Any] = []
    of_families: List[Tuple[int, str, int]] = []
    for layer in layers:
        for key, family in layer.families.items():
            traits = next((each for each in (_traits(one, state) for one in family.parameters) if each is not None), None)
            if traits is None:
                continue
            if traits not in sets:
                sets.append(traits)
            of_families.append((layer.index, key, sets.index(traits)))
    return {"sets": sets, "families": of_families}


def expect_alike_on_ranks(found: Sequence[Mapping[str, Any]]) -> None:
    """found: of all ranks, in their order, as of traits_of. errors: InvalidArgument, the same on all ranks, naming the tensor."""
    first: Dict[Tuple[int, str], Tuple[int, Any]] = {}
    for rank, of_rank in enumerate(found):
        for layer, key, number in of_rank["families"]:
            traits = of_rank["sets"][number]
            other, expected = first.setdefault((layer, key), (rank, traits))
            _expect_equal(f"layers.{layer}.{key}", traits, expected, f"on rank {other}", f" on rank {rank}")


def _traits(parameter: torch.Tensor, state: OptimizerState) -> Optional[Dict[str, Any]]:
    """Returns requires_grad, and the options of the parameter's group; None if another rank's optimizer has it. Names tell groups
    apart and change nothing."""
    group = state.group(parameter)
    if group is None:
        return None
    found: Dict[str, Any] = {"requires_grad": parameter.requires_grad}
    for key, value in group.items():
        if torch.is_tensor(value) and value.numel() == 1:
            value = float(value)
        if isinstance(value, (tuple, list)) and all(isinstance(each, _PLAIN) for each in value):
            value = list(value)
        elif not isinstance(value, _PLAIN):
            continue
        if key != "params" and "name" not in key:
            found[f"optimizer's {key}"] = value
    return found


def _expect_equal(name: str, traits: Mapping[str, Any], expected: Mapping[str, Any], other: str, here: str = "") -> None:
    # requires_grad first, because a frozen parameter may lack all options of an optimizer.
    for key in sorted({*traits, *expected}, key=lambda each: (each != "requires_grad", each)) if traits != expected else ():
        if traits.get(key) != expected.get(key) or (key in traits) != (key in expected):
            raise refused(name, f"{key} is {traits.get(key, 'not there')}{here} and {expected.get(key, 'not there')} {other}; "
                                f"{_WAY_OUT}")
