"""The MoE layers of a Megatron-Core model: their experts' parameters as rows of local slots, and their routers' outputs.

A piece is one tensor that Megatron holds: all local experts' (GroupedMLP), or one expert's (SequentialMLP, TEGroupedMLP).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch

import eplb
from eplb.torch.pieces import ExpertTensor, Piece
from eplb.torch.routing import SlotColumns
from eplb_megatron_ranks import LayerKey

_PAGE = "docs/registering-tensors.md"


@dataclass
class MoeLayer:
    """module: the MoELayer. index: EPLB's number of the layer, given once all ranks are known. key: Megatron's.

    families: name -> parameters, one that holds all local experts, or one for each local slot.
    """

    name: str
    module: Any
    key: LayerKey
    families: Dict[str, List[torch.nn.Parameter]]
    index: int = -1
    routing: "SlotRouting" = field(init=False)

    @property
    def num_local_slots(self) -> int:
        return int(self.module.num_local_experts)

    @property
    def num_experts(self) -> int:
        return int(self.module.config.num_moe_experts)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for parameters in self.families.values():
            yield from parameters


class SlotRouting(SlotColumns):
    """Turns a router's output, whose columns are logical experts, into one whose columns are slots, and counts tokens.

    It hooks the router, so that everything inside it (auxiliary losses, z-loss, expert bias) sees logical experts, and the
    dispatcher behind it slots.
    """

    def __init__(self, layer: MoeLayer) -> None:
        super().__init__(layer.name, layer.num_experts, next(layer.parameters()).device)
        layer.module.router.register_forward_hook(self._hook)
        layer.module.eplb_attached = True

    def _hook(self, module: Any, _arguments: Any, output: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        """output: (probs [tokens, experts], routing_map bool [tokens, experts]); the same by slots is returned."""
        if not isinstance(output, tuple) or len(output) != 2 or any(
                tensor.shape[-1] != self._num_experts or tensor.dim() != 2 for tensor in output):
            raise eplb.FailedPrecondition(f"{self._name}.router gave no (probs, routing_map) [tokens, {self._num_experts}]: "
                                          f"this is another router than the adapter was written for")
        probs, routing_map = output
        # As Megatron counts for its expert bias: recomputation runs the router twice, the first time without gradients.
        if module.training and torch.is_grad_enabled():
            self.counts += routing_map.sum(dim=0)
        return self.in_slot_order(probs), self.in_slot_order(routing_map)


def find_layers(chunks: Sequence[torch.nn.Module]) -> List[MoeLayer]:
    """The MoE layers of a rank's model chunks, wrapped or not, in order.

    errors: InvalidArgument naming the layer whose experts, or whose configuration, the adapter cannot move.
    """
    layers: List[MoeLayer] = []
    seen: Dict[Tuple[bool, int], int] = {}
    for number, chunk in enumerate(chunks):
        for name, module in chunk.named_modules():
            if not all(getattr(module, part, None) is not None for part in ("router", "experts", "token_dispatcher")):
                continue
            full_name = name if len(chunks) == 1 else f"chunk {number}: {name}"
            if getattr(module, "eplb_attached", False):
                raise eplb.InvalidArgument(f"{full_name} is attached already: its router would be permuted twice")
            kind = ("mtp" in name.split("."), int(module.layer_number))
            seen[kind] = seen.get(kind, -1) + 1
            _check_configuration(full_name, module.config)
            layers.append(MoeLayer(full_name, module, (*kind, seen[kind]), _families_of(full_name, module)))
    return layers


def expert_weights(layer: MoeLayer) -> List[ExpertTensor]:
    return [ExpertTensor(f"layers.{layer.index}.{name}", layer.index, "weight", [Piece(each) for each in parameters],
                         layer.num_local_slots)
            for name, parameters in layer.families.items()]


def _families_of(name: str, module: Any) -> Dict[str, List[torch.nn.Parameter]]:
    experts, num_slots = module.experts, int(module.num_local_experts)
    buffers = [each for each, _ in experts.named_buffers()]
    if buffers:
        raise eplb.InvalidArgument(f"{name}.experts has the buffer {buffers[0]}: the adapter moves parameters and optimizer "
                                   f"state; what else belongs to an expert would stay behind ({_PAGE})")
    families: Dict[str, List[torch.nn.Parameter]] = {}
    slots: Dict[str, List[int]] = {}
    for parameter_name, parameter in experts.named_parameters():
        if parameter_name in ("weight1", "weight2"):
            families[parameter_name] = [parameter]
            continue
        family, slot = _family_and_slot(parameter_name)
        if slot < 0:
            raise eplb.InvalidArgument(f"{name}.experts ({type(experts).__name__}) has the parameter {parameter_name}, "
                                       f"which is none of GroupedMLP, SequentialMLP or TEGroupedMLP with a weight for each "
                                       f"expert")
        families.setdefault(family, []).append(parameter)
        slots.setdefault(family, []).append(slot)
    for family, found in slots.items():
        if sorted(found) != list(range(num_slots)):
            raise eplb.InvalidArgument(f"{name}.experts has {family} for the slots {sorted(found)}, expected "
                                       f"0..{num_slots - 1}")
        families[family] = [parameter for _, parameter in sorted(zip(found, families[family]), key=lambda pair: pair[0])]
    if not families:
        raise eplb.InvalidArgument(f"{name}.experts ({type(experts).__name__}) has no parameters")
    return families


def _family_and_slot(name: str) -> Tuple[str, int]:
    """("linear_fc1.weight", 3) of local_experts.3.linear_fc1.weight and of linear_fc1.weight3; slot -1 of anything else."""
    match = re.fullmatch(r"local_experts\.(\d+)\.(.+)", name)
    if match:
        return match[2], int(match[1])
    match = re.fullmatch(r"(.+?)(\d+)", name)
    return (match[1], int(match[2])) if match else (name, -1)


def _check_configuration(name: str, config: Any) -> None:
    if getattr(config, "moe_expert_capacity_factor", None) is not None:
        raise eplb.InvalidArgument(f"{name}: moe_expert_capacity_factor is set: the router's output is then what is left "
                                   f"after dropping, and no load can be read off it; EPLB is for dropless training")
    if getattr(config, "fp8", None) and getattr(config, "fp8_recipe", "delayed") == "delayed":
        raise eplb.InvalidArgument(f"{name}: fp8_recipe is delayed: its amax history of each expert would stay with the "
                                   f"slot; use blockwise, tensorwise or mxfp8")

