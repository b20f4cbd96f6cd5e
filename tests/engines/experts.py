"""Weights that carry the number of their expert, and loads that drift, for a rank of an engine."""

import numpy as np
import torch

LAYERS, EXPERTS, SLOTS = 3, 64, 80
TOKENS = 4000  # mean of an expert; policy incremental takes a difference of a few tokens for noise


class Weights:
    """Two tensors for each layer, with one row for each slot of this rank. threads: one."""

    def __init__(self, layers, local_slots, first_slot, model=0):
        self.layers = [[torch.zeros(local_slots, 3), torch.zeros(local_slots, 2, dtype=torch.float64)] for _ in range(layers)]
        self._here, self._model = slice(first_slot, first_slot + local_slots), model

    def fill(self, slots):
        """slots: [layers, slots], expert of each slot of all ranks."""
        for tensors, rows in zip(self.layers, self._rows(slots)):
            for tensor in tensors:
                tensor.copy_(rows)

    def check(self, slots):
        """errors: AssertionError with the slots whose rows are not those of their experts."""
        for layer, (tensors, rows) in enumerate(zip(self.layers, self._rows(slots))):
            for tensor in tensors:
                wrong = (tensor != rows).any(dim=1).nonzero().flatten().tolist()
                assert not wrong, f"model {self._model} layer {layer}: wrong rows in local slots {wrong}"

    def _rows(self, slots):
        """Yields [local slots, 1] of each layer."""
        for layer, experts in enumerate(slots[:, self._here]):
            yield (1 + experts + 1000 * layer + 100_000 * self._model).double()[:, None]


class Loads:
    """Tokens of each expert [layers, experts], window by window: each expert's change by a factor of about 10 %."""

    def __init__(self, layers, seed):
        self._random = np.random.default_rng(seed)
        self._load = TOKENS * self._random.lognormal(0, 0.8, (layers, EXPERTS))

    def next(self):
        self._load = self._load * np.exp(0.1 * self._random.standard_normal(self._load.shape))
        return self._load.astype(np.int64)


def replicas(slots, num_experts):
    """Returns the number of slots of each expert [layers, experts]."""
    return np.stack([np.bincount(each, minlength=num_experts) for each in slots])


def moved(before, after, gpus):
    """Returns the share of slots that received an expert which their GPU did not hold."""
    old, new = (each.reshape(len(each), gpus, -1) for each in (before, after))
    return 1 - (new[..., None] == old[:, :, None, :]).any(axis=3).mean()


def balancedness(load, slots, gpus):
    """Returns the mean over layers of the mean GPU load / the largest GPU load."""
    of_gpus = np.take_along_axis(load / replicas(slots, load.shape[1]), slots, axis=1).reshape(len(slots), gpus, -1).sum(axis=2)
    return (of_gpus.mean(axis=1) / of_gpus.max(axis=1)).mean()
