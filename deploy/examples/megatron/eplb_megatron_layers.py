"""The MoE layers of a Megatron-Core model: their experts' parameters as rows of local slots, and their routers' outputs.

A piece is one tensor that Megatron holds: all local experts' (GroupedMLP), or one expert's (SequentialMLP, TEGroupedMLP).
EPLB moves rows [local slots, ..] of one memory; pieces of one expert each are put into such a memory, one after the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

import eplb
from eplb_megatron_ranks import LayerKey

_PAGE = "docs/registering-tensors.md"


class Piece:
    """A tensor, and where Megatron finds it: the memory of `tensor` itself, or entry `key` of the dict that `owner` gives.

    owner: () -> the dict now; an optimizer that loads a checkpoint makes others.
    """

    def __init__(self, tensor: torch.Tensor, owner: Optional[Callable[[], Dict[str, Any]]] = None, key: str = "") -> None:
        self._tensor, self._owner, self._key = tensor, owner, key

    def get(self) -> torch.Tensor:
        if self._owner is not None:
            return self._owner()[self._key]
        return self._tensor.data

    def set(self, tensor: torch.Tensor) -> None:
        """Gives it other memory, of the same shape and type."""
        if self._owner is not None:
            self._owner()[self._key] = tensor
        else:
            self._tensor.data = tensor


class ExpertTensor:
    """rows [local slots, elements]: row i belongs to the expert in local slot i of `layer`. role: "weight" or "state".

    errors: InvalidArgument naming the tensor that cannot be rows of slots.
    """

    def __init__(self, name: str, layer: int, role: str, pieces: Sequence[Piece], num_slots: int) -> None:
        self.name, self.layer, self.role = name, layer, role
        self._pieces = list(pieces)
        tensors = [piece.get() for piece in pieces]
        for tensor in tensors:
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                raise _refused(name, f"is a {type(tensor).__name__}, expected a plain tensor: turn off fp8 parameters and "
                                     f"FSDP for the experts")
            if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
                raise _refused(name, f"has experts of {_what(tensors[0])} and of {_what(tensor)}")
        if len(tensors) == 1:
            self.rows = self._view(tensors[0], num_slots)
        else:
            self.rows = torch.stack(tensors)
            for piece, row in zip(pieces, self.rows):
                piece.set(row)
            self.rows = self.rows.view(num_slots, -1)
        self._addresses = [piece.get().data_ptr() for piece in pieces]

    def _view(self, tensor: torch.Tensor, num_slots: int) -> torch.Tensor:
        if not tensor.is_contiguous() or tensor.numel() % num_slots:
            raise _refused(self.name, f"has shape {list(tensor.shape)}, strides {list(tensor.stride())}: it is not "
                                      f"{num_slots} experts side by side")
        return tensor.view(num_slots, -1)

    def in_place(self) -> bool:
        """Whether Megatron still computes with this memory."""
        return [piece.get().data_ptr() for piece in self._pieces] == self._addresses

    def expect_in_place(self) -> None:
        """errors: InvalidArgument when the memory was exchanged, for example by load_state_dict of the optimizer."""
        if not self.in_place():
            raise _refused(self.name, "has other memory than was registered: load checkpoints before the first "
                                      "step_boundary, and replace no memory of experts after it")


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


class SlotRouting:
    """Turns a router's output, whose columns are logical experts, into one whose columns are slots, and counts tokens.

    It hooks the router, so that everything inside it (auxiliary losses, z-loss, expert bias) sees logical experts, and the
    dispatcher behind it slots. Its memory stays where it is: a captured CUDA graph sees switches and counts.
    """

    def __init__(self, layer: MoeLayer) -> None:
        self._name, self._num_experts = layer.name, layer.num_experts
        device = next(layer.parameters()).device
        self._experts = torch.arange(layer.num_experts, device=device)  # [slots]
        self.counts = torch.zeros(layer.num_experts, dtype=torch.int64, device=device)  # [experts], since the last step
        layer.module.router.register_forward_hook(self._hook)
        layer.module.eplb_attached = True

    def set_slots(self, experts: np.ndarray) -> None:
        """experts: [slots], the expert in each slot."""
        self._experts.copy_(torch.from_numpy(experts.astype(np.int64)))

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
        return probs.index_select(1, self._experts), routing_map.index_select(1, self._experts)


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


def _what(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)}"


def _refused(name: str, why: str) -> eplb.InvalidArgument:
    return eplb.InvalidArgument(f"tensor \"{name}\": {why}")
