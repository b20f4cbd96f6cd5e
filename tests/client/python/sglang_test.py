"""eplb.sglang: the contract of SGLang's hook as published, and registration beside modules that stand for SGLang's."""

import enum
import sys
import types
import unittest

import torch

import eplb
import eplb.sglang
from engines import CASES, check_maps, check_nodes, peaks, reference_peaks, weight_of


class EplbAlgorithm(enum.Enum):
    deepseek = enum.auto()
    deepseek_hierarchical = enum.auto()
    deepseek_vec = enum.auto()
    deepseek_vec_hierarchical = enum.auto()
    elasticity_aware = enum.auto()


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
        maps = eplb.sglang.rebalance_experts(torch.arange(1, 9)[None], 12, 3, None, 2, EplbAlgorithm.deepseek)
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
        with self.assertRaisesRegex(eplb.InvalidArgument, "^policy incremental needs `incumbent`"):
            eplb.sglang.make_hook("incremental")
        with self.assertRaisesRegex(eplb.InvalidArgument, "^policy: 'flow', expected one of"):
            eplb.sglang.make_hook("flow")


class RegisterTest(unittest.TestCase):
    def stand_in(self, *path):
        """The module at a path, and those in front of it."""
        for end in range(1, len(path) + 1):
            name = ".".join(path[:end])
            module = types.ModuleType(name)
            module.__path__ = []
            sys.modules[name] = module
            self.addCleanup(sys.modules.pop, name, None)
        self.calls = []
        module.rebalance_experts = lambda **given: self.calls.append(given) or "theirs"
        return module

    def test_the_function_is_replaced_and_what_asks_for_live_ranks_stays_theirs(self):
        for path in (("sglang", "srt", "eplb", "eplb_algorithms"), ("sglang", "srt", "managers", "eplb_algorithms")):
            for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
                del sys.modules[name]
            module = self.stand_in(*path)
            given = {"tokens_per_expert": torch.ones(1, 2, 4), "num_physical_experts": 6, "num_local_physical_experts": 3,
                     "num_groups": None, "num_nodes": 1}
            for _ in range(2):
                self.assertIs(eplb.sglang.register(), module.rebalance_experts)
                check_maps(self, module.rebalance_experts(**given, algorithm=EplbAlgorithm.deepseek), 2, 4, 6)
                self.assertEqual(self.calls, [])
                self.assertEqual(module.rebalance_experts(**given, algorithm=EplbAlgorithm.elasticity_aware), "theirs")
                self.assertEqual(self.calls.pop()["algorithm"], EplbAlgorithm.elasticity_aware)

    def test_without_sglang_it_says_so(self):
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            del sys.modules[name]
        with self.assertRaisesRegex(eplb.FailedPrecondition, "^no SGLang with a load balancer here: No module named 'sglang'"):
            eplb.sglang.register()


if __name__ == "__main__":
    unittest.main()
