"""eplb.sglang: the contract of SGLang's hook as published, and registration beside modules that stand for SGLang's."""

import unittest

import torch

import engine_stand_ins
import eplb
import eplb.sglang
from engine_stand_ins import EplbAlgorithm
from engines import CASES, check_maps, check_nodes, peaks, reference_peaks, weight_of


def asked(case, load, algorithm):
    return {"tokens_per_expert": load, "num_physical_experts": case["slots"],
            "num_local_physical_experts": case["slots"] // case["gpus"], "num_groups": case["groups"],
            "num_nodes": case["nodes"], "algorithm": algorithm}


class ContractTest(unittest.TestCase):
    def test_every_recorded_load_is_placed_and_never_worse_than_the_reference(self):
        for case in CASES:
            hierarchical = case["groups"] % case["nodes"] == 0
            for algorithm in (EplbAlgorithm.deepseek_hierarchical if hierarchical else EplbAlgorithm.deepseek,
                              "deepseek_vec_hierarchical" if hierarchical else "deepseek_vec"):
                with self.subTest(case["name"]):
                    maps = eplb.sglang.rebalance_experts(**asked(case, weight_of(case)[None], algorithm))
                    check_maps(self, maps, case["layers"], case["experts"], case["slots"])
                    if hierarchical:
                        check_nodes(self, maps[0], case["experts"], case["groups"], case["nodes"])
                    ours = peaks(case["weight"], maps[0], case["gpus"])
                    self.assertTrue((ours <= reference_peaks(case) * (1 + 1e-9)).all())

    def test_steps_are_summed_up(self):
        case = CASES[0]
        load = weight_of(case)
        parts = torch.stack([load // 3, load - load // 3 - 1, torch.ones_like(load)])
        flat = eplb.sglang.rebalance_experts(**asked(case, load, EplbAlgorithm.deepseek))
        for given in (parts, parts.float(), load[None], load):
            maps = eplb.sglang.rebalance_experts(**asked(case, given, EplbAlgorithm.deepseek))
            self.assertTrue(all(torch.equal(*pair) for pair in zip(flat, maps)))

    def test_a_router_without_groups_is_placed_globally(self):
        for groups in (None, 0):
            maps = eplb.sglang.rebalance_experts(torch.arange(1, 9)[None], 12, 3, groups, 2, EplbAlgorithm.deepseek)
            check_maps(self, maps, 1, 8, 12)

    def test_an_incumbent_is_followed_where_it_is_given(self):
        load = torch.tensor([[[90, 80, 10, 20, 30, 40, 5, 6]]])
        first = eplb.sglang.rebalance_experts(load, 12, 3, None, 1, EplbAlgorithm.deepseek)[0]
        hook = eplb.sglang.make_hook("incremental", incumbent=lambda: first.flip(1))
        self.assertTrue(torch.equal(hook(load, 12, 3, None, 1, EplbAlgorithm.deepseek)[0], first.flip(1)))


class MistakesTest(unittest.TestCase):
    def test_bad_input_gets_one_line(self):
        load = torch.tensor([[1, 2, 3, 4]])
        plain = EplbAlgorithm.deepseek
        for given, message in (
                ((torch.ones(4), 4, 2, None, 1, plain), r"^tokens_per_expert has shape \[4\], expected \[layers, experts\]$"),
                ((load, 5, 2, None, 1, plain), "^num_local_physical_experts is 2, expected a divisor of the 5 physical"),
                ((load, 4, 0, None, 1, plain), "^num_local_physical_experts is 0, expected at least 1$"),
                ((load, 4, 2, None, 2, EplbAlgorithm.deepseek_hierarchical),
                 "^algorithm deepseek_hierarchical: 2 nodes do not divide the 1 expert groups$"),
                ((-load, 4, 2, None, 1, plain), "^tokens_per_expert: layer 0 expert 0 is -1, expected tokens"),
                ((load, 4, 2, None, 1, 7), "^algorithm: 7, expected a member of EplbAlgorithm$")):
            with self.subTest(message), self.assertRaisesRegex(eplb.InvalidArgument, message) as caught:
                eplb.sglang.rebalance_experts(*given)
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaisesRegex(eplb.InvalidArgument, "^policy: 'flow', expected one of"):
            eplb.sglang.make_hook("flow")


class RegisterTest(unittest.TestCase):
    START = torch.arange(12)[None] % 8

    def setUp(self):
        self.algorithms, self.location = engine_stand_ins.sglang()
        self.location.metadata = engine_stand_ins.sglang_metadata(self.START)
        self.addCleanup(engine_stand_ins.remove)

    def ask(self, algorithm=EplbAlgorithm.deepseek, load=(90000, 80000, 10000, 20000, 30000, 40000, 5000, 6000), **changed):
        return self.algorithms.rebalance_experts(**{
            "tokens_per_expert": torch.tensor(load).reshape(1, 1, 8), "num_physical_experts": 12,
            "num_local_physical_experts": 3, "num_groups": None, "num_nodes": 1, "algorithm": algorithm, **changed})

    def test_the_function_is_replaced_and_algorithms_that_avoid_dead_ranks_stay_theirs(self):
        for package in ("sglang.srt.eplb", "sglang.srt.managers"):
            engine_stand_ins.remove()
            self.algorithms, self.location = engine_stand_ins.sglang(package)
            for _ in range(2):
                self.assertIs(eplb.sglang.register("balanced"), self.algorithms.rebalance_experts)
                check_maps(self, self.ask(), 1, 8, 12)
                for algorithm in (EplbAlgorithm.elasticity_aware, EplbAlgorithm.elasticity_aware_hierarchical):
                    self.assertIs(self.ask(algorithm)[1], algorithm)  # the stand-in's own

    def test_the_default_follows_the_metadata_of_sglang(self):
        eplb.sglang.register()
        moved = int((self.ask()[0] != self.START).sum())
        eplb.sglang.register("balanced")
        self.assertLess(moved, int((self.ask()[0] != self.START).sum()))
        for incumbent in (self.START, self.START.flip(1)):
            eplb.sglang.register(incumbent=lambda: incumbent)
            maps = self.ask(load=[0] * 8)  # a window without tokens moves nothing
            check_maps(self, maps, 1, 8, 12)
            self.assertTrue(torch.equal(maps[0], incumbent))

    def test_what_cannot_be_planned_keeps_the_placement_and_is_logged_once(self):
        eplb.sglang.register()
        for changed, message in (({"tokens_per_expert": torch.full((1, 1, 8), -1)}, "layer 0 expert 0 is -1, expected tokens"),
                                 ({"num_local_physical_experts": 5}, "num_local_physical_experts is 5, expected a divisor"),
                                 ({"algorithm": "deepseek_hierarchical", "num_nodes": 2}, "2 nodes do not divide the 1 expert"),
                                 ({"algorithm": 7}, "algorithm: 7, expected a member of EplbAlgorithm"),
                                 ({"speeds": 1}, "unexpected keyword argument 'speeds'")):
            with self.subTest(message), self.assertLogs("eplb") as log:
                for _ in range(2):
                    self.assertTrue(torch.equal(self.ask(**changed)[0], self.START))
                self.assertEqual(len(log.output), 1)
                self.assertIn(message, log.output[0])
            self.ask()

    def test_without_metadata_the_incumbent_is_the_last_answer(self):
        self.location.metadata = None
        eplb.sglang.register()
        first = self.ask()[0]
        for changed in ({}, {"load": [0] * 8}, {"num_nodes": 0}):
            self.assertTrue(torch.equal(self.ask(**changed)[0], first))

    def test_a_function_with_other_parameters_is_refused_and_stays(self):
        own = self.algorithms.rebalance_experts = lambda tokens_per_expert, num_physical_experts, algorithm: None
        with self.assertRaisesRegex(eplb.Unimplemented, "^SGLang's rebalance_experts has other parameters than in SGLang 0.5.23: "
                                    "missing num_local_physical_experts, num_groups, num_nodes "):
            eplb.sglang.register()
        self.assertIs(self.algorithms.rebalance_experts, own)

    def test_without_sglang_it_says_so(self):
        engine_stand_ins.remove()
        with self.assertRaisesRegex(eplb.FailedPrecondition, "^no SGLang with a load balancer here: No module named 'sglang'"):
            eplb.sglang.register()


if __name__ == "__main__":
    unittest.main()
