"""Routers in slot order: the experts of a layer's slots on the device, and the tokens that each expert got."""

from __future__ import annotations

import numpy as np
import torch


class SlotColumns:
    """The expert of each slot of one layer, and counts, both on `device`.

    Its memory stays where it is: a captured CUDA graph sees switches and counts.
    counts: int64 [experts], tokens since the last step.
    """

    def __init__(self, name: str, num_experts: int, device: torch.device) -> None:
        self._name, self._num_experts = name, num_experts
        self._experts = torch.arange(num_experts, device=device)  # [slots]
        self.counts = torch.zeros(num_experts, dtype=torch.int64, device=device)

    def set_slots(self, experts: np.ndarray) -> None:
        """experts: [slots], the expert in each slot."""
        self._experts.copy_(torch.from_numpy(experts.astype(np.int64)))

    def in_slot_order(self, columns: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """columns: a tensor whose dimension `dim` is the logical experts. returns: the same by slots, differentiable."""
        return columns.index_select(dim, self._experts)
