"""State of experts in flat partitions of an optimizer: who updates which elements, and how they follow a switch."""

import functools
import itertools
import unittest

import eplb
import numpy as np
import ranks
import torch
import torch.distributed as dist
from torch import nn

from eplb.torch import carry, groups, layers, scattered, state

STATIC, SWAPPED = np.array([[0, 1]]), np.array([[1, 0]])


class Partitioned:
    """Two experts whose parameters are in one flat tensor of 16 elements, of which this rank updates [begin, end)."""

    def __init__(self, begin, end):
        self.model = nn.Module()
        self.model.experts = nn.ModuleList(nn.Linear(3, 2) for _ in range(2))
        self.model.gate = nn.Linear(3, 2)
        whole = torch.arange(16.0)
        self.begin, self.flat = begin, nn.Parameter(whole[begin:end].clone())
        self.optimizer = torch.optim.AdamW([self.flat])
        self.optimizer.state[self.flat] = {"step": torch.tensor(3.0), "exp_avg": 100 + whole[begin:end]}
        self.parts, offset = {}, 0
        for parameter in self.model.experts.parameters():
            low, high = max(begin, offset), min(end, offset + parameter.numel())
            self.parts[id(parameter)] = scattered.Part(self.flat, low - begin, low - offset, high - low) if low < high \
                else scattered.Part(self.flat)
            offset += parameter.numel()
        self.layer = layers.find_layers([self.model], "experts", "gate")[0]
        self.layer.index = 0

    def state(self):
        return state.OptimizerState([self.optimizer], lambda parameter: self.parts.get(id(parameter)))

    def scattered(self, edp_group=None):
        return scattered.Scattered([self.layer], self.state(), edp_group)


def alone(*partition, size=1):
    together = groups.InEplbOrder(lambda data: [data], 0, 1)
    Partitioned(*partition).scattered().expect_covered(together, size)


def swap(rank, directory, cut):
    """Two expert-data ranks, whose partitions meet at `cut`. returns: what this rank's hold after their experts changed slots."""
    dist.init_process_group("gloo", f"file://{directory}/{cut}", rank=rank, world_size=2)
    ours = Partitioned(*((0, cut), (cut, 16))[rank])
    moved = ours.scattered(dist.group.WORLD)
    moved.expect_covered(groups.InEplbOrder(ranks.store_all_gather(directory, rank, 2, name=f"store-{cut}"), rank, 2), 2)
    moved.carry(functools.partial(carry.carry, gpu=0, group=None), STATIC, STATIC)
    moved.carry(functools.partial(carry.carry, gpu=0, group=None), STATIC, SWAPPED)
    return ours.flat.tolist(), ours.optimizer.state[ours.flat]["exp_avg"].tolist()


class ScatteredTest(ranks.RankTest):
    def test_every_element_has_one_rank(self):
        alone(0, 16)
        for partition, size, message in (
                ((0, 7), 1, "tensor \"layers.0.weight\": each of its 12 elements .* those from 6 on are updated on none or on several"),
                ((0, 16), 2, "^edp_group: the optimizer divides the state of layers.0.weight over 2 expert-data ranks")):
            with self.subTest(message), self.assertRaisesRegex(eplb.InvalidArgument, message):
                alone(*partition, size=size)

    def test_state_that_is_not_of_each_element_is_refused(self):
        ours = Partitioned(0, 16)
        ours.optimizer.state[ours.flat]["row"] = torch.zeros(4)
        with self.assertRaisesRegex(eplb.InvalidArgument, '^tensor "layers.0.weight.row": has 4 elements, the parameter 16: '):
            ours.state().tensors(ours.layer)

    def test_partitions_follow_experts_wherever_they_end(self):
        whole = [*range(8, 16), *range(8)]
        for cut in (3, 7, 8, 13):
            found = self.succeed(2, swap, self.directory, cut)
            self.assertEqual(list(itertools.chain(*(flat for flat, _ in found))), whole, cut)
            self.assertEqual(list(itertools.chain(*(moments for _, moments in found))), [100 + each for each in whole], cut)


if __name__ == "__main__":
    unittest.main()
