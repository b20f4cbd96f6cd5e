"""eplb.vllm: the contract of vLLM's policy interface as published, and registration beside modules that stand for vLLM's."""

import abc
import subprocess
import sys
import types
import unittest

import numpy as np
import torch

import eplb
import eplb.vllm
from engines import CASES, check_maps, check_nodes, check_slots, peaks, reference_peaks, weight_of
from eplb import placement


def ask(policy, case, *more):
    return policy.rebalance_experts(weight_of(case), case["slots"], case["groups"], case["nodes"], case["gpus"], *more)


class ContractTest(unittest.TestCase):
    def test_every_recorded_load_is_placed_and_never_worse_than_the_reference(self):
        better = 0
        for case in CASES:
            with self.subTest(case["name"]):
                maps = ask(eplb.vllm.EplbPolicy, case)
                check_maps(self, maps, case["layers"], case["experts"], case["slots"])
                if case["groups"] % case["nodes"] == 0:
                    check_nodes(self, maps[0], case["experts"], case["groups"], case["nodes"])
                ours, theirs = peaks(case["weight"], maps[0], case["gpus"]), reference_peaks(case)
                self.assertTrue((ours <= theirs * (1 + 1e-9)).all(), f"{ours} beside {theirs}")
                better += int((ours < theirs * (1 - 1e-4)).any())
        self.assertGreater(better, len(CASES) // 2)

    def test_the_reference_is_there_bit_for_bit(self):
        policy = eplb.vllm.make_policy("deepseek")
        for case in CASES:
            with self.subTest(case["name"]):
                slots, _, counts = ask(policy, case)
                self.assertEqual(counts.tolist(), case["logcnt"])
                ties = "stable_phy2log" in case
                self.assertEqual(peaks(case["weight"], slots, case["gpus"]).tolist(), reference_peaks(case).tolist())
                if not ties:
                    self.assertEqual(slots.tolist(), case["phy2log"])

    def test_one_map_is_on_the_cpu(self):
        case = CASES[0]
        slots = ask(eplb.vllm.make_policy(returns="map"), case)
        check_slots(self, slots, case["layers"], case["experts"], case["slots"])

    def test_equal_input_gives_equal_maps_and_any_number_type_is_a_load(self):
        load = torch.tensor([[90, 80, 10, 20], [1, 0, 0, 0], [0, 0, 0, 0]])
        first = eplb.vllm.EplbPolicy.rebalance_experts(load, 6, 1, 1, 2)
        for kind in (torch.int32, torch.int64, torch.float32, torch.float64, torch.float16, torch.bfloat16):
            maps = eplb.vllm.EplbPolicy.rebalance_experts(load.to(kind), 6, 1, 1, 2)
            self.assertTrue(all(torch.equal(*pair) for pair in zip(first, maps)), kind)

    def test_groups_that_nodes_do_not_divide_are_placed_without_nodes(self):
        maps = eplb.vllm.EplbPolicy.rebalance_experts(torch.arange(1, 9)[None], 12, 3, 2, 4)
        check_maps(self, maps, 1, 8, 12)


class IncumbentTest(unittest.TestCase):
    LOAD = torch.tensor([[90, 80, 10, 20, 30, 40, 5, 6]])

    def moved(self, policy, incumbent, load):
        slots = policy.rebalance_experts(load, incumbent.shape[1], 1, 1, 4, incumbent)[0]
        return int((slots != incumbent).sum()), slots

    def test_what_runs_is_kept_where_it_is_even(self):
        for name in ("balanced", "incremental"):
            policy = eplb.vllm.make_policy(name)
            first = policy.rebalance_experts(self.LOAD, 12, 1, 1, 4)[0]
            # Slots of a GPU in another order are the same placement; both ways around nothing has to move.
            turned = first.reshape(1, 4, 3).flip(2).reshape(1, 12)
            for incumbent in (first, turned):
                moved, _ = self.moved(policy, incumbent, self.LOAD)
                self.assertEqual(moved, 0, name)

    def test_incremental_moves_less_than_a_new_placement(self):
        rng = np.random.default_rng(3)
        load = torch.from_numpy(rng.zipf(1.5, (4, 64)).clip(0, 10000))
        first = eplb.vllm.EplbPolicy.rebalance_experts(load, 72, 1, 1, 8)[0]
        drifted = (load * torch.from_numpy(rng.uniform(0.7, 1.4, load.shape))).long()
        counts = {}
        for name in ("incremental", "balanced"):
            slots = eplb.vllm.make_policy(name).rebalance_experts(drifted, 72, 1, 1, 8, first)[0]
            counts[name] = int((slots != first).sum())
            self.assertLessEqual(peaks(drifted, slots, 8).sum(), peaks(drifted, first, 8).sum())
        self.assertLess(counts["incremental"], counts["balanced"])

    def test_an_incumbent_that_cannot_be_followed_is_left_aside(self):
        plain = eplb.vllm.EplbPolicy.rebalance_experts(self.LOAD, 12, 1, 1, 4)[0]
        for incumbent in (torch.zeros(1, 12, dtype=torch.int64), torch.arange(16)[None] % 8, torch.full((1, 12), -1),
                          torch.arange(12)[None]):
            slots = eplb.vllm.EplbPolicy.rebalance_experts(self.LOAD, 12, 1, 1, 4, incumbent)[0]
            self.assertTrue(torch.equal(slots, plain))
        check_slots(self, eplb.vllm.make_policy("incremental").rebalance_experts(self.LOAD, 12, 1, 1, 4)[0], 1, 8, 12)


class MistakesTest(unittest.TestCase):
    def test_bad_input_gets_one_line(self):
        load = torch.tensor([[1, 2, 3, 4]])
        for given, message in (
                ((torch.ones(4), 4, 1, 1, 2), r"^weight has shape \[4\], expected \[layers, experts\]$"),
                ((torch.ones(0, 4), 4, 1, 1, 2), r"^weight has shape \[0, 4\], expected"),
                ((load, 5, 1, 1, 2), "^5 physical experts on 2 ranks: expected as many on every rank$"),
                ((load, 2, 1, 1, 2), "^num_slots is 2"),
                ((load, 4, 1, 0, 2), "^num_nodes is 0, expected at least 1$"),
                ((load, 4.0, 1, 1, 2), "^num_replicas: 4.0, expected an integer$"),
                ((load, 6, 3, 3, 3), "^num_groups is 3, expected a divisor of the 4 experts$"),
                ((torch.tensor([[1.0, float("nan")]]), 2, 1, 1, 1), "^weight: layer 0 expert 1 is nan, expected tokens"),
                ((torch.tensor([[1, -2]]), 2, 1, 1, 1), "^weight: layer 0 expert 1 is -2, expected tokens"),
                ((torch.tensor([[True, False]]), 2, 1, 1, 1), r"^weight: bool \[1, 2\], expected numbers"),
                ((load, 4, 1, 1, 2, torch.ones(1, 4)), "^incumbent placement: .*expected integers"),
                (("load", 4, 1, 1, 2), "^weight: .*expected numbers")):
            with self.subTest(message), self.assertRaisesRegex(eplb.InvalidArgument, message) as caught:
                eplb.vllm.EplbPolicy.rebalance_experts(*given)
            self.assertNotIn("\n", str(caught.exception))

    def test_a_setting_that_there_is_not_is_named(self):
        for given, message in (({"policy": "auto"}, "^policy: 'auto', expected one of balanced, incremental, deepseek$"),
                               ({"effort": "much"}, "^effort: 'much'"), ({"returns": "all"}, "^returns: 'all'")):
            with self.assertRaisesRegex(eplb.InvalidArgument, message):
                eplb.vllm.make_policy(**given)


def abstract_policy(gives, asks=("rebalance_experts",)):
    """An abstract class as vLLM's, whose rebalance_experts is annotated to give `gives`."""
    def rebalance_experts(cls, weight, num_replicas, num_groups, num_nodes, num_ranks, old_global_expert_indices=None):
        raise NotImplementedError

    rebalance_experts.__annotations__["return"] = gives
    body = {name: classmethod(abc.abstractmethod(rebalance_experts)) for name in asks}
    return abc.ABCMeta("AbstractEplbPolicy", (), body)


class RegisterTest(unittest.TestCase):
    def stand_in(self, **modules):
        """Modules of vLLM by their last name, each with attributes; those in front of them are there too."""
        names = {"vllm": {}, "vllm.distributed": {}, "vllm.distributed.eplb": {}}
        names.update({f"vllm.distributed.eplb.{name}": attributes for name, attributes in modules.items()})
        for name, attributes in names.items():
            module = types.ModuleType(name)
            module.__path__ = []
            module.__dict__.update(attributes)
            sys.modules[name] = module
            self.addCleanup(sys.modules.pop, name, None)

    def test_the_policy_of_a_name_is_replaced_and_gives_what_this_vllm_expects(self):
        for gives, returns in ((tuple, "maps"), ("tuple[torch.Tensor, torch.Tensor, torch.Tensor]", "maps"),
                               (torch.Tensor, "map"), ("torch.Tensor", "map")):
            policies = {"default": object()}
            self.stand_in(policy={"EPLB_POLICIES": policies, "AbstractEplbPolicy": abstract_policy(gives)})
            self.assertIs(eplb.vllm.register(effort="fast"), policies["default"])
            again = eplb.vllm.register()
            self.assertIs(again, policies["default"])
            self.assertEqual((again.returns, again.policy, again.effort), (returns, "balanced", "default"))
        self.assertEqual(eplb.vllm.register(returns="maps").returns, "maps")

    def test_without_policies_the_function_is_replaced(self):
        self.stand_in(rebalance_algo={"rebalance_experts": None}, eplb_state={"rebalance_experts": None})
        eplb.vllm.register()
        for name in ("rebalance_algo", "eplb_state"):
            function = sys.modules[f"vllm.distributed.eplb.{name}"].rebalance_experts
            check_maps(self, function(torch.tensor([[1, 2, 3, 4]]), 6, 1, 1, num_gpus=2), 1, 4, 6)

    def test_what_cannot_be_replaced_is_named(self):
        self.stand_in(policy={"EPLB_POLICIES": {"default": 1, "other": 2}, "AbstractEplbPolicy": abstract_policy(tuple)})
        with self.assertRaisesRegex(eplb.FailedPrecondition, "^vLLM has no policy 'eplb', it has default, other$"):
            eplb.vllm.register(name="eplb")
        for asks, message in ((("plan_rebalance",), "asks for plan_rebalance: only rebalance_experts is known"),
                              (("rebalance_experts", "warm_up"), "asks for rebalance_experts, warm_up")):
            self.stand_in(policy={"EPLB_POLICIES": {"default": 1}, "AbstractEplbPolicy": abstract_policy(tuple, asks)})
            with self.assertRaisesRegex(eplb.Unimplemented, message):
                eplb.vllm.register()

        class Context(abc.ABC):
            @abc.abstractmethod
            def rebalance_experts(self, context, state):
                """One object for all arguments."""

        self.stand_in(policy={"EPLB_POLICIES": {"default": 1}, "AbstractEplbPolicy": Context})
        with self.assertRaisesRegex(eplb.Unimplemented, r"rebalance_experts\(self, context, state\): too many"):
            eplb.vllm.register()

    def test_without_vllm_it_says_so_and_the_package_needs_neither_torch_nor_vllm(self):
        with self.assertRaisesRegex(eplb.FailedPrecondition, "^no vLLM with a load balancer here: No module named 'vllm'"):
            eplb.vllm.register()
        code = ("import sys, eplb; assert 'eplb.vllm' not in sys.modules; eplb.vllm, eplb.sglang; "
                "assert not {'torch', 'vllm', 'sglang'} & set(sys.modules)")
        subprocess.run([sys.executable, "-B", "-c", code], check=True, timeout=60)


class FigureTest(unittest.TestCase):
    def test_the_reference_plan_has_the_figures_of_a_plan(self):
        """What _engines makes of the reference's maps is what plan says of the same ones."""
        from eplb import _engines

        load = np.array([[90, 80, 10, 20], [0, 0, 0, 0]])
        given = _engines.plan_for("load", load, _engines.Request(6, 2, 1, 1, True), "deepseek", "default")
        told = placement.plan(load, num_slots=6, num_gpus=2, policy="deepseek", tie_break="compat")
        self.assertEqual(given.max_gpu_load.tolist(), told.max_gpu_load.tolist())
        np.testing.assert_array_equal(given.balancedness, told.balancedness)  # nan for the idle layer in both


if __name__ == "__main__":
    unittest.main()
