"""Registration of an attached trainer's tensors with its client, once optimizers have state of all experts on all ranks."""

from __future__ import annotations

from typing import Any, List, Sequence

from torch import nn

from eplb.client import Client
from eplb.torch.alike import expect_alike
from eplb.torch.buffered import BufferedWeights
from eplb.torch.layers import ExpertLayer
from eplb.torch.layout import expect_one_model
from eplb.torch.state import OptimizerState


class Registration:
    """weights: of this rank's experts. is_done: whether everything is registered. registered: what is. waiting: which rank waits
    for the state of what, or "". Threads: the training thread."""

    def __init__(self, client: Client, layers: Sequence[ExpertLayer], state: OptimizerState, weights: Sequence[Any],
                 all_gather: Any) -> None:
        self._client, self._layers, self._state, self._weights, self._all_gather = client, layers, state, weights, all_gather
        self.registered: List[Any] = []
        self.is_done, self.waiting = False, ""

    def tensors(self) -> List[Any]:
        """Returns what is registered; before, the weights and whatever state there is now, which is collective."""
        return self.registered or [*self._weights, *self._all_gather.together(self._stack_state)]

    def complete(self, chunks: Sequence[nn.Module]) -> bool:
        """Registers, unless some rank's optimizers lack state. Collective. chunks: in which a second model with the same experts is
        looked for; empty: not yet, because it takes longer than the rest of attach. returns: is_done. errors: FailedPrecondition
        when ranks differ; InvalidArgument naming state that would not move."""
        found = enumerate(self._all_gather.objects_of(self._missing))
        self.waiting = next((f"rank {rank} waits for the optimizer's state of {each}" for rank, each in found if each), "")
        if self.waiting:
            return False

        def stack() -> List[Any]:
            if chunks:
                expect_one_model(chunks, self._layers)
            return self._stack_state()

        tensors = [*self._weights, *self._all_gather.together(stack)]
        for tensor in tensors:
            self._client.register(tensor.rows, name=tensor.name, layer=tensor.layer, role=tensor.role)
            if isinstance(tensor, BufferedWeights):
                self._client.register_derived(tensor.spread, name=f"{tensor.name}.in_buffer", layer=tensor.layer)
        self._client.finish_registration()
        self.registered, self.is_done = tensors, True
        return True

    def _missing(self) -> str:
        self._state.expect_understood(self._layers)
        return self._state.missing(self._layers)

    def _stack_state(self) -> List[Any]:
        self._state.expect_updated(self._layers)
        expect_alike(self._layers, self._state)
        return [tensor for layer in self._layers for tensor in self._state.tensors(layer)]
