"""The number that EPLB knows each rank of Megatron by, and the numbers of its MoE layers."""

import types
import unittest

import training  # noqa: F401  finds the adapter's and the tests' modules

import torch
import torch.distributed as dist
from eplb.torch.groups import Coordinates, InEplbOrder, agreed_experts
from eplb_megatron_layers import find_layers
from eplb_megatron_ranks import connect_options, coordinates_of, number_layers
from training import eplb


def default_order(rank, etp, ep, edp, pp):
    """Coordinates of a rank in Megatron's default order: tp-ep-dp-pp for what is expert."""
    return Coordinates(rank % etp, rank // etp % ep, rank // (etp * ep) % edp, rank // (etp * ep * edp), etp, ep, edp, pp)


def pipeline_inside(rank, etp, ep, edp, pp):
    """With --use-tp-pp-dp-mapping: the pipeline inside data parallelism."""
    return Coordinates(rank % etp, rank // etp % ep, rank // (etp * ep * pp), rank // (etp * ep) % pp, etp, ep, edp, pp)


class CoordinatesTest(unittest.TestCase):
    def test_in_megatrons_default_order_ranks_keep_their_numbers(self):
        for sizes in ((1, 4, 2, 1), (1, 4, 2, 3), (2, 4, 2, 2), (1, 1, 1, 1)):
            world = sizes[0] * sizes[1] * sizes[2] * sizes[3]
            self.assertEqual([default_order(rank, *sizes).rank for rank in range(world)], list(range(world)))

    def test_the_gpu_of_a_lane_is_the_ep_rank(self):
        for rank in range(24):
            place = pipeline_inside(rank, 1, 4, 2, 3)
            self.assertEqual(place.rank % 4, place.expert_model)
            self.assertEqual(place.rank // 8, place.pipeline)

    def test_ranks_with_the_pipeline_inside_data_parallelism(self):
        self.assertEqual([pipeline_inside(rank, 1, 2, 2, 2).rank for rank in range(8)], [0, 1, 4, 5, 2, 3, 6, 7])

    def test_groups_that_do_not_make_up_the_job_are_refused(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        state = types.SimpleNamespace(
            get_expert_data_parallel_group=lambda: None, get_expert_tensor_parallel_rank=lambda: 0,
            get_expert_model_parallel_rank=lambda: 1, get_pipeline_model_parallel_rank=lambda: 0,
            get_expert_tensor_parallel_world_size=lambda: 2, get_expert_model_parallel_world_size=lambda: 4,
            get_pipeline_model_parallel_world_size=lambda: 1)
        self.assertEqual(coordinates_of(state, 8).rank, 2)
        with self.assertRaisesRegex(eplb.FailedPrecondition, "2 expert-tensor x 4 expert-model x 1 expert-data x 1 pipeline = 8 "
                                                             "ranks, the job has 12"):
            coordinates_of(state, 12)

    def test_answers_come_in_the_order_of_eplbs_ranks(self):
        answers = [[b"0", b"2", b"1", b"3"], [b"a", b"b", b"c", b"d"]]  # of each all_gather, in the order of torch's ranks
        all_gather = InEplbOrder(lambda data: answers.pop(0), rank=2, world_size=4)
        self.assertEqual(all_gather(b"b"), [b"a", b"c", b"b", b"d"])
        with self.assertRaisesRegex(eplb.FailedPrecondition, r"are \[0, 1, 1, 3\]: expected each of 0..3 once"):
            InEplbOrder(lambda data: [b"0", b"1", b"1", b"3"], rank=1, world_size=4)


class OptionsTest(unittest.TestCase):
    def test_pipeline_and_expert_tensor_sizes_are_passed_where_they_are_above_one(self):
        given = {"job": "pretrain"}
        self.assertEqual(connect_options(default_order(5, 1, 4, 2, 1), 3, 8, given),
                         {"job": "pretrain", "rank": 5, "world_size": 8, "num_layers": 3, "num_experts": 8, "num_slots": 8,
                          "num_gpus": 4})
        found = connect_options(default_order(13, 2, 2, 2, 2), 3, 8, given)
        self.assertEqual((found["pipeline_parallel_size"], found["expert_tensor_parallel"], found["num_gpus"], found["world_size"]),
                         (2, 2, 2, 16))


class LayersTest(unittest.TestCase):
    def test_layers_are_numbered_over_pipeline_stages_and_multi_token_prediction_comes_last(self):
        first, last = [(False, 2, 0), (False, 4, 0)], [(False, 5, 0), (True, 1, 0), (True, 1, 1)]
        for mine, numbers in ((first, [0, 1]), (last, [2, 3, 4])):
            all_gather = types.SimpleNamespace(objects=lambda _: [[list(key) for key in keys] for keys in (first, last, last)])
            self.assertEqual(number_layers(all_gather, mine), (numbers, 5))

    def test_layers_have_equal_numbers_of_experts(self):
        for everywhere, said in (([[8, 8], [8], []], None), ([[8], [4]], r"\[4, 8\] experts"), ([[8, 16]], r"\[8, 16\] experts")):
            all_gather = types.SimpleNamespace(objects=lambda _, found=everywhere: found)
            if said is None:
                self.assertEqual(agreed_experts(all_gather, [8]), 8)
                continue
            with self.assertRaisesRegex(eplb.InvalidArgument, said):
                agreed_experts(all_gather, [8])

    def test_layers_are_found_in_wrapped_chunks(self):
        config = types.SimpleNamespace(num_moe_experts=4)

        def layer(number):
            module = torch.nn.Module()
            module.router, module.token_dispatcher, module.experts = torch.nn.Linear(2, 4), object(), torch.nn.Module()
            module.experts.weight1 = torch.nn.Parameter(torch.zeros(2, 12))
            module.layer_number, module.num_local_experts, module.config = number, 4, config
            return module

        model = torch.nn.Module()
        model.decoder, model.mtp = torch.nn.Sequential(layer(1), torch.nn.Linear(1, 1), layer(3)), torch.nn.Sequential(layer(1))
        found = find_layers([torch.nn.Sequential(model), torch.nn.Sequential(layer(7))])
        self.assertEqual([(each.name, each.key) for each in found],
                         [("chunk 0: 0.decoder.0", (False, 1, 0)), ("chunk 0: 0.decoder.2", (False, 3, 0)),
                          ("chunk 0: 0.mtp.0", (True, 1, 0)), ("chunk 1: 0", (False, 7, 0))])
        # HybridModel: a prediction layer has layers of its own, which are numbered as the decoder's are.
        hybrid, prediction = torch.nn.Module(), torch.nn.Module()
        block = torch.nn.Module()
        block.layers = torch.nn.ModuleList([torch.nn.Linear(1, 1), layer(2)])
        prediction.mtp_model_layer = block
        hybrid.decoder, hybrid.mtp = torch.nn.Sequential(layer(2)), torch.nn.Module()
        hybrid.mtp.layers = torch.nn.ModuleList([prediction, layer(2)])
        self.assertEqual([(each.name, each.key) for each in find_layers([hybrid])],
                         [("decoder.0", (False, 2, 0)), ("mtp.layers.0.mtp_model_layer.layers.1", (True, 2, 0)),
                          ("mtp.layers.1", (True, 2, 1))])
        model.decoder[0].experts.gate = torch.nn.Parameter(torch.zeros(1))
        with self.assertRaisesRegex(eplb.InvalidArgument, r"^decoder\.0\.experts \(Module\) has the parameter gate, which is "):
            find_layers([model])


if __name__ == "__main__":
    unittest.main()
