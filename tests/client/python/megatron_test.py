"""The parts of the adapter for Megatron-Core that need no Megatron: refusals, the elements that an optimizer updates, and weights in
buffers. tests/frameworks trains the real package."""

import types
import unittest

import eplb
import torch
from eplb import megatron
from eplb.torch import buffered, layers, scattered, state
from torch import nn


class DistributedOptimizer:
    """The parts of Megatron's that the adapter reads. shards: (parameter, what is updated, first element of it)."""

    def __init__(self, shards, **config):
        self.model_float16_groups = [[parameter for parameter, _, _ in shards]]
        self.shard_float16_groups = [[updated for _, updated, _ in shards]]
        self.shard_fp32_from_float16_groups = [[updated for _, updated, _ in shards]]
        self.model_fp32_groups, self.shard_fp32_groups = [], []
        self.optimizer = torch.optim.AdamW([updated for _, updated, _ in shards] or [nn.Parameter(torch.zeros(1))])
        self.config, self._starts = types.SimpleNamespace(**config), {id(parameter): start for parameter, _, start in shards}
        self._sizes = {id(parameter): updated.numel() for parameter, updated, _ in shards}

    def _get_model_param_range_map(self, parameter):
        start = self._starts[id(parameter)]
        return {"param": types.SimpleNamespace(start=start, end=start + self._sizes[id(parameter)])}


class LayerWiseDistributedOptimizer(DistributedOptimizer):
    pass


class RefusedTest(unittest.TestCase):
    def test_options_of_layers_by_name(self):
        for option, value, words in (
                ("moe_expert_capacity_factor", 1.25, "drops before its output"), ("moe_token_dropping", True, "dropless"),
                ("moe_expert_rank_capacity_factor", 2.0, "which experts it has"), ("moe_paged_stash", True, "budget"),
                ("fp4", "e2m1", "order of slots"), ("moe_single_grouped_weight", True, "GroupedTensor"),
                ("transformer_impl", "inference_optimized", "without gradients"), ("fp8", "hybrid", "amax history")):
            moe = nn.Module()
            moe.router, moe.experts, moe.token_dispatcher, moe.layer_number = nn.Linear(2, 2), nn.Module(), object(), 3
            moe.config = types.SimpleNamespace(**{option: value})
            with self.subTest(option), self.assertRaisesRegex(eplb.InvalidArgument, f"^MoE layer 3: .*{words}"):
                megatron._MoeLayers()(moe)
        moe.config = types.SimpleNamespace(fp8="hybrid", fp8_recipe="blockwise", moe_paged_stash=False, fp4=None)
        found = megatron._MoeLayers()
        self.assertEqual([found(moe), found(moe.router), found(moe.experts)], [False, False, True])
        self.assertIs(found.around[moe.experts], moe)

    def test_optimizers_by_name(self):
        fsdp = DistributedOptimizer([])
        fsdp.ddp_config = types.SimpleNamespace(use_megatron_fsdp=True)
        offloaded = DistributedOptimizer([])
        offloaded.optimizer = type("HybridDeviceOptimizer", (), {})()
        other = type("DistributedOptimizer", (), {"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))])})()
        for optimizer, words in (
                (LayerWiseDistributedOptimizer([]), "LayerWiseDistributedOptimizer .*--use-distributed-optimizer"),
                (fsdp, "Megatron-FSDP"), (offloaded, "HybridDeviceOptimizer .*--optimizer-cpu-offload"),
                (DistributedOptimizer([], use_precision_aware_optimizer=True, exp_avg_dtype=torch.uint8), "exp_avg_dtype is "),
                (other, "no DistributedOptimizer.model_float16_groups .*tested with 0.19.2")):
            with self.subTest(words), self.assertRaisesRegex(eplb.InvalidArgument, words):
                megatron._leaves_of(types.SimpleNamespace(chained_optimizers=[DistributedOptimizer([]), optimizer]))
        precise = DistributedOptimizer([], use_precision_aware_optimizer=True, exp_avg_dtype=torch.bfloat16)
        without = types.SimpleNamespace(optimizer=None)
        self.assertEqual(megatron._leaves_of(types.SimpleNamespace(chained_optimizers=[precise, without])), [precise])


class MastersTest(unittest.TestCase):
    def setUp(self):
        buffer = torch.zeros(16, dtype=torch.bfloat16)
        self.here, self.cut, self.elsewhere, self.frozen = (nn.Parameter(buffer[first:first + 4]) for first in range(0, 16, 4))
        self.frozen.requires_grad = False
        self.shards = [(self.here, torch.zeros(4), 0), (self.cut, torch.zeros(3), 1)]

    def test_shards_of_several_ranks_are_parts(self):
        masters = megatron._Masters([DistributedOptimizer(self.shards)], expert_data_size=2)
        part = masters(self.cut)
        self.assertEqual((part.offset, part.start, part.count), (0, 1, 3))
        self.assertIs(part.tensor, self.shards[1][1])
        self.assertEqual((masters(self.elsewhere).count, masters(self.frozen)), (0, None))
        self.assertIs(masters(self.elsewhere).tensor, self.shards[1][1], "kinds of state are those of another expert's")
        self.assertIsNone(masters(nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))), "of another buffer")

    def test_shards_of_one_rank_are_masters(self):
        masters = megatron._Masters([DistributedOptimizer(self.shards[:1])], expert_data_size=1)
        self.assertIs(masters(self.here), self.shards[0][1])

    def test_whole_masters(self):
        leaf = types.SimpleNamespace(float16_groups=[[self.here]], fp32_from_float16_groups=[[self.shards[0][1]]])
        masters = megatron._Masters([leaf], expert_data_size=2)
        self.assertEqual((masters(self.here) is self.shards[0][1], masters(self.cut)), (True, None))


class CoverTest(unittest.TestCase):
    def test_each_element_is_updated_on_one_rank(self):
        scattered._expect_cover("w", 12, [[(0, 5)], [(7, 12), (5, 7)]])
        for ranges, end in (([[(0, 5)], [(6, 12)]], 5), ([[(0, 12)], [(0, 12)]], 12), ([[(0, 5)], [(4, 12)]], 5), ([[], []], 0),
                            ([[(0, 5)], [(5, 11)]], 11)):
            with self.subTest(ranges), self.assertRaisesRegex(eplb.InvalidArgument, f'"w": each of its 12 .* from {end} on'):
                scattered._expect_cover("w", 12, ranges)


class BufferedTest(unittest.TestCase):
    def setUp(self):
        self.buffer = torch.arange(20.0)
        self.experts = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
        self.model = nn.Module()
        self.model.gate, self.model.experts = nn.Linear(2, 3), self.experts
        for place, expert in zip((12, 0, 7), self.experts):
            expert.weight.data = self.buffer[place:place + 4].view(2, 2)

    def weights(self, masters):
        layer, = layers.find_layers([self.model], "experts", "gate")
        layer.index = 0
        return list(buffered.weights_of(layer, state.OptimizerState([], masters)))

    def test_weights_stay_in_the_buffer_and_follow_rows(self):
        found, = self.weights(lambda parameter: torch.zeros(4))
        addresses = [each.weight.data_ptr() for each in self.experts]
        self.buffer += 1
        buffered.collect([found], refresh=lambda: self.buffer.mul_(2))
        self.assertEqual(found.rows.tolist(), [[26.0, 28, 30, 32], [2.0, 4, 6, 8], [16.0, 18, 20, 22]])
        found.rows.copy_(found.rows[[1, 2, 0]].clone())
        found.spread(0, [0, 2])
        self.assertEqual([each.weight[0, 0].item() for each in self.experts], [2.0, 2.0, 26.0])
        buffered.spread([found])
        self.assertEqual([each.weight[0, 0].item() for each in self.experts], [2.0, 16.0, 26.0])
        self.assertEqual([each.weight.data_ptr() for each in self.experts], addresses)
        self.assertFalse(found.adopt())
        self.experts[1].weight.data = torch.ones(2, 2)
        self.assertTrue(found.adopt())
        self.assertEqual(found.addresses[1], self.experts[1].weight.data_ptr())

    def test_a_buffer_of_an_unknown_owner_is_refused(self):
        with self.assertRaisesRegex(eplb.InvalidArgument, "a view of a larger buffer"):
            self.weights(None)


if __name__ == "__main__":
    unittest.main()
