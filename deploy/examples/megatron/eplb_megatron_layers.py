"""The MoE layers of a Megatron-Core model: their experts' parameters as rows of local slots, and their routers' outputs.

A piece is one tensor that Megatron holds: all local experts' (GroupedMLP), or one expert's (SequentialMLP, TEGroupedMLP).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterator, List, Sequence, Tuple

import torch

import eplb
from eplb.torch.layers import attached_experts
from eplb.torch.routing import SlotColumns
from eplb_megatron_ranks import LayerKey
from eplb_megatron_sharded import lies_in_a_buffer

_PAGE = "docs/registering-tensors.md"


@dataclass
class MoeLayer:
    """module: the MoELayer. index: EPLB's number of the layer, given once all ranks are known. key: Megatron's.

    families: name -> parameters, one that holds all local experts, or one for each local slot. in_buffers: names of those
    whose parameters are views of a larger memory, which is not this layer's.
    """

    name: str
    module: Any
    key: LayerKey
    families: Dict[str, List[torch.nn.Parameter]]
    in_buffers: FrozenSet[str] = frozenset()
    index: int = -1
    routing: "SlotRouting" = field(init=False)

    @property
    def num_local_slots(self) -> int:
        return int(self.module.num_local_experts)

    @property
    def num_experts(self) -> int:
        return int(self.module.config.num_moe_experts)

    def is_buffered(self, family: str) -> bool:
        """True if its experts lie apart and must stay in place. Side by side in one parameter they are rows anywhere."""
        return family in self.in_buffers and len(self.families[family]) > 1

    def shape_of(self, family: str) -> Tuple[int, int]:
        """(local slots, elements of an expert)"""
        return self.num_local_slots, sum(each.numel() for each in self.families[family]) // self.num_local_slots

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for parameters in self.families.values():
            yield from parameters


class SlotRouting(SlotColumns):
    """Turns a router's output, whose columns are logical experts, into one whose columns are slots, and counts tokens.

    It hooks the router, so that everything inside it (auxiliary losses, z-loss, expert bias) sees logical experts, and the
    dispatcher behind it slots.
    """

    def __init__(self, layer: MoeLayer, ledger: torch.Tensor) -> None:
        """ledger: the layer's counts, of TokenCounts."""
        super().__init__(layer.name, layer.num_experts, ledger.device, ledger)
        layer.module.router.register_forward_hook(self._hook)
        attached_experts.add(layer.module)

    def _hook(self, _module: Any, _arguments: Any, output: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        """output: (probs [tokens, experts], routing_map bool [tokens, experts]); the same by slots is returned."""
        if not isinstance(output, tuple) or len(output) != 2 or any(
                tensor.shape[-1] != self.num_experts or tensor.dim() != 2 for tensor in output):
            raise eplb.FailedPrecondition(f"{self.name}.router gave no (probs, routing_map) [tokens, {self.num_experts}], as "
                                          f"routers of Megatron-Core 0.10 and later do")
        probs, routing_map = output
        return self.in_slot_order(probs), self.count_and_turn(routing_map, 1)


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
            if module in attached_experts:
                raise eplb.InvalidArgument(f"{full_name} is attached already: its router would be permuted twice")
            kind = ("mtp" in name.split("."), int(module.layer_number))
            seen[kind] = seen.get(kind, -1) + 1
            _check_configuration(full_name, module.config)
            families = _families_of(full_name, module)
            in_buffers = frozenset(family for family, each in families.items() if any(map(lies_in_a_buffer, each)))
            layers.append(MoeLayer(full_name, module, (*kind, seen[kind]), families, in_buffers))
    return layers


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


# Options of TransformerConfig whose results depend on where experts are, or that hide the load: what they do.
_REFUSED_OPTIONS = (
    ("moe_expert_capacity_factor", "the router's output is then what is left after dropping, and no load can be read off it; "
                                   "EPLB is for dropless training"),
    ("moe_pad_expert_input_to_capacity", "it pads to moe_expert_capacity_factor; EPLB is for dropless training"),
    ("moe_token_dropping", "EPLB is for dropless training"),
    ("moe_expert_rank_capacity_factor", "a rank then drops what is above its budget of tokens, so that what is dropped "
                                        "depends on which experts are on it; EPLB is for dropless training"),
    ("moe_paged_stash", "its buffers are sized by a rank's budget of tokens, and what is above it is computed otherwise"),
    ("fp4", "gradients are rounded by chance, drawn in the order of slots, so that results depend on the placement"),
    ("moe_single_grouped_weight", "the experts of a rank are then one GroupedTensor, in no known form"),
    ("moe_single_grouped_bias", "the biases of a rank are then one GroupedTensor, in no known form"))


def _check_configuration(name: str, config: Any) -> None:
    for option, why in _REFUSED_OPTIONS:
        if getattr(config, option, None) not in (None, False):
            raise eplb.InvalidArgument(f"{name}: {option} is set: {why}")
    if getattr(config, "transformer_impl", None) == "inference_optimized":
        raise eplb.InvalidArgument(f"{name}: transformer_impl is inference_optimized: InferenceGroupedMLP gives experts other "
                                   f"memory in its first forward without gradients; train with transformer_engine or local")
    if getattr(config, "fp8", None) and getattr(config, "fp8_recipe", "delayed") == "delayed":
        raise eplb.InvalidArgument(f"{name}: fp8_recipe is delayed: its amax history of each expert would stay with the "
                                   f"slot; use blockwise, tensorwise or mxfp8")
