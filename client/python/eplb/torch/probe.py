"""Calls single experts with equal inputs, to compare what they compute."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import nn

from eplb._rows import dtype_of
from eplb.errors import FailedPrecondition
from eplb.torch.layers import ExpertLayer


class SeenInputs:
    """Shapes and types of the first call of an expert in each layer that has a module for each. Threads: the training thread."""

    def __init__(self, layers: Sequence[ExpertLayer]) -> None:
        self._layers = {layer.index: layer for layer in layers}
        self._seen: Dict[int, List[Tuple[List[int], str]]] = {}
        self._handles: Dict[int, List[Any]] = {}
        for layer in layers:
            self._handles[layer.index] = [
                single.register_forward_pre_hook(lambda _module, inputs, index=layer.index: self._note(index, inputs))
                for single in layer.singles.values()]

    def remove(self) -> None:
        for index in list(self._handles):
            self._take_off(index)

    def agree(self, all_gather: Any) -> None:
        """Takes the shapes of a layer from the first rank that has them, because other ranks had other numbers of tokens.
        Collective. all_gather: groups.InEplbOrder."""
        for found in reversed(all_gather.objects([[index, seen] for index, seen in self._seen.items()])):
            self._seen.update((index, seen) for index, seen in found if index in self._layers)

    def expect_seen(self) -> None:
        """errors: FailedPrecondition when a layer's experts are no modules, or none was called with tensors."""
        for index, layer in self._layers.items():
            if index not in self._seen:
                why = "no expert was called with tensors yet" if layer.singles else "its experts are no modules of their own"
                raise FailedPrecondition(f"{layer.name}: {why}: give check_experts a probe, (layer, local slot) -> what the "
                                         f"expert there makes of a fixed input")

    @torch.no_grad()
    def probe(self, index: int, slot: int) -> torch.Tensor:
        """Returns the output of the expert in a local slot for random numbers, equal for all. REQUIRES: expect_seen."""
        layer = self._layers[index]
        single: nn.Module = list(layer.singles.values())[slot]
        device = next(single.parameters()).device
        generator = torch.Generator().manual_seed(index)
        inputs = [torch.randn(shape, generator=generator).to(device, getattr(torch, dtype)) for shape, dtype in self._seen[index]]
        was_training = single.training
        single.eval()
        try:
            output = single(*inputs)
        finally:
            single.train(was_training)
        return output[0] if isinstance(output, (tuple, list)) else output

    def _note(self, index: int, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if index not in self._seen and inputs and all(torch.is_tensor(each) and each.numel() and each.is_floating_point()
                                                      for each in inputs):
            self._seen[index] = [(list(each.shape), dtype_of(each)) for each in inputs]
        if index in self._seen:
            self._take_off(index)

    def _take_off(self, index: int) -> None:
        for handle in self._handles.pop(index, ()):
            handle.remove()
