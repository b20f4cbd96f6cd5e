"""A balancer that moves experts to random slots, for what the training must not notice."""

import numpy as np
import torch

from balancer import Boundary
from placement import Placement


class RandomMigrator:
    """Every `every` steps each layer gets a random placement; its rows come from the expert's old primary.

    It gathers whole stacked tensors in rank order, also for what keeps replicas one expert: no code of EPLB takes part.
    The number of slots is a multiple of the ranks. forget: the tensors whose names end so do not move.
    """

    def __init__(self, every, seed, forget=""):
        self._every, self._random, self._forget = every, np.random.RandomState(seed), forget
        self._tensors = []

    def connect(self, shape, ranks):
        self._shape, self._ranks = shape, ranks
        self._placement = Placement.static(shape.layers, shape.experts, shape.slots, ranks.world_size)
        return self._placement

    def register(self, tensors):
        self._tensors = [each for each in tensors if not (self._forget and each.name.endswith(self._forget))]

    def attach(self, model, optimizer):
        return None

    def record(self, layer, counts):
        assert counts.shape == (self._shape.experts,) and counts.dtype == np.int64

    def reduce_gradients(self, rows):
        self._fill(rows, lambda everywhere, slots: sum(everywhere[slots[1:]], everywhere[slots[0]]),
                   self._shape.state_in_every_replica)

    def broadcast_weights(self, rows):
        self._fill(rows, lambda everywhere, slots: everywhere[slots[0]], True)

    def step_boundary(self, step):
        if (step + 1) % self._every:
            return Boundary()
        old, self._placement = self._placement, self._draw()
        mine = self._placement.local_slots(self._ranks.rank)
        for each in self._tensors:
            everywhere = torch.cat(self._ranks.gather(each.tensor))
            for local_slot, slot in enumerate(mine):
                expert = self._placement.physical_to_logical_map[each.layer, slot]
                each.tensor[local_slot] = everywhere[old.replicas(each.layer, expert)[0]]
        return Boundary(self._placement, "a test")

    def close(self, reason):
        pass

    def _fill(self, rows, value, replicas_too):
        """value: (rows of all slots, an expert's slots) -> its row."""
        for layer, given in rows.items():
            for tensor in given if isinstance(given, list) else [given]:
                everywhere = torch.cat(self._ranks.gather(tensor))
                for local_slot, slot in enumerate(self._placement.local_slots(self._ranks.rank)):
                    expert = self._placement.physical_to_logical_map[layer, slot]
                    slots = self._placement.replicas(layer, expert)
                    if replicas_too or slots[0] == slot:
                        tensor[local_slot] = value(everywhere, slots)

    def _draw(self):
        """Equal on all ranks. Replicas of an expert may share a rank, and any of them may be its primary."""
        shape = self._shape
        slots, order = [], np.full((shape.layers, shape.experts, shape.slots), -1)
        for layer in range(shape.layers):
            spare = self._random.randint(shape.experts, size=shape.slots - shape.experts)
            slots.append(self._random.permutation(np.concatenate([np.arange(shape.experts), spare])))
            for expert in range(shape.experts):
                held = self._random.permutation(np.flatnonzero(slots[-1] == expert))
                order[layer, expert, :len(held)] = held
        return Placement(np.array(slots), shape.experts, self._ranks.world_size, order, self._placement.version + 1)
