"""eplb.vllm: the contract of vLLM's policy interface as published, and registration beside modules that stand for vLLM's."""

import abc
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import torch

import engine_stand_ins
import eplb
import eplb.vllm
from eplb import _library, profiles
from engines import CASES, check_maps, check_nodes, check_slots, peaks, reference_peaks, weight_of


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
                ((load, 4.0, None, 1, 2), "^num_replicas: 4.0, expected an integer$"),
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
                               ({"effort": "much"}, "^effort: 'much'"),
                               ({"max_moves_per_gpu": -2}, "^max_moves_per_gpu is -2, expected -1, or at least 0 with policy"),
                               ({"policy": "balanced", "max_moves_per_gpu": 1}, "^max_moves_per_gpu is 1, expected -1, or at"),
                               ({"returns": "all"}, "^returns: 'all'")):
            with self.assertRaisesRegex(eplb.InvalidArgument, message):
                eplb.vllm.make_policy(**given)


LOAD = torch.tensor([[90, 80, 10, 20, 30, 40, 5, 6]]) * 1000
START = torch.arange(12)[None] % 8


class RegisterTest(unittest.TestCase):
    def setUp(self):
        self.policies = engine_stand_ins.vllm()
        self.addCleanup(engine_stand_ins.remove)

    def replace(self, function):
        """The installed policy has this function."""
        self.policies["default"] = type("Policy", (), {"rebalance_experts": staticmethod(function)})

    def test_the_policy_of_a_name_is_replaced_and_gives_what_this_vllm_expects(self):
        def maps(weight, num_replicas, num_groups, num_nodes, num_ranks) -> tuple:
            raise AssertionError("not called")

        for function, returns in ((None, "map"), (maps, "maps")):
            if function:
                self.replace(function)
            chosen = eplb.vllm.register(effort="fast")
            self.assertIs(chosen, self.policies["default"])
            for _ in range(2):
                again = eplb.vllm.register()
                self.assertIs(again, self.policies["default"])
                self.assertEqual((again.returns, again.policy, again.effort), (returns, "incremental", "default"))
            self.assertIs(again.rebalance_experts.own, chosen.rebalance_experts.own)
        self.assertEqual(eplb.vllm.register(returns="map").returns, "map")

    def test_none_and_zero_groups_are_one_group(self):
        policy = eplb.vllm.register(policy="balanced")
        expected = policy.rebalance_experts(LOAD, 12, 1, 1, 4, START)
        self.assertFalse(torch.equal(expected, START))
        for groups in (None, 0):
            self.assertTrue(torch.equal(policy.rebalance_experts(LOAD, 12, groups, 1, 4, START), expected))

    def test_an_idle_window_moves_nothing(self):
        policy = eplb.vllm.register(policy="balanced")
        self.assertTrue(torch.equal(policy.rebalance_experts(0 * LOAD, 12, 1, 1, 4, START), START))

    def test_a_layer_moves_only_if_its_largest_gpu_load_falls(self):
        load, even = torch.cat([LOAD, 0 * LOAD, LOAD]), torch.full((1, 8), 1000)
        start = torch.arange(8).repeat(3, 1)
        for name in ("balanced", "incremental", "deepseek"):
            with self.subTest(name):
                policy = eplb.vllm.register(policy=name)
                moved = (policy.rebalance_experts(load, 8, 1, 1, 4, start) != start).any(dim=1)
                self.assertEqual(moved.tolist(), [True, False, True])
                # The order of experts in GPUs is of no use, nor is another one that is as even.
                turned = torch.tensor([[1, 0, 7, 2, 5, 4, 3, 6]])
                self.assertTrue(torch.equal(policy.rebalance_experts(even, 8, 1, 1, 4, turned), turned))

    def test_a_layer_whose_groups_are_on_several_nodes_moves_although_it_is_even(self):
        scattered = torch.tensor([[0, 4, 1, 5, 2, 6, 3, 7]])
        slots = eplb.vllm.register().rebalance_experts(torch.full((1, 8), 1000), 8, 2, 2, 4, scattered)
        check_nodes(self, slots, 8, 2, 2)

    def test_a_gpu_receives_no_more_experts_than_the_limit(self):
        load, start = torch.arange(1, 65).flip(0)[None] ** 3, torch.arange(80)[None] % 64
        for limit in (0, 1, 2):
            policy = eplb.vllm.register(max_moves_per_gpu=limit)
            slots = policy.rebalance_experts(load, 80, 1, 1, 8, start)
            received = [len(set(after) - set(before)) for after, before in zip(slots.view(8, 10).tolist(), start.view(8, 10).tolist())]
            self.assertEqual(max(received), limit)

    def test_profiles_decide_whether_a_layer_moves(self):
        """The profile alone counts. The current placement is even for the measured load, and uneven for the profile."""
        measured = torch.tensor([[90, 10, 80, 20, 70, 30, 60, 40]])
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/profiles.json"
            profiles.write(path, [profiles.Profile("chat", [[90, 80, 70, 60, 40, 30, 20, 10]])], measured_weight=0)
            policy = eplb.vllm.register(policy="balanced", profiles=path)
            start = torch.arange(8)[None]
            moved = policy.rebalance_experts(measured, 8, 1, 1, 4, start)
            self.assertFalse(torch.equal(moved, start))
            self.assertTrue(torch.equal(policy.rebalance_experts(measured, 8, 1, 1, 4, moved), moved))

    def test_an_incumbent_that_is_not_passed_is_the_last_answer(self):
        policy = eplb.vllm.register()
        first = policy.rebalance_experts(LOAD, 12, 1, 1, 4)
        handed = first.clone()
        first.zero_()  # the map is the engine's
        for load in (0 * LOAD, LOAD, -LOAD):
            self.assertTrue(torch.equal(policy.rebalance_experts(load, 12, 1, 1, 4), handed))
        check_slots(self, policy.rebalance_experts(LOAD.repeat(2, 1), 12, 1, 1, 4), 2, 8, 12)
        self.assertTrue(torch.equal(policy.rebalance_experts(0 * LOAD, 12, 1, 1, 4), handed))  # each model has its own

    def test_what_cannot_be_planned_keeps_the_incumbent_and_is_logged_once(self):
        policy = eplb.vllm.register()
        good = (LOAD, 12, 1, 1, 4, START)
        for given, named, message in ((((LOAD / 0 * 0), *good[1:]), {}, "weight: layer 0 expert 0 is nan, expected tokens"),
                                      ((-LOAD, *good[1:]), {}, "weight: layer 0 expert 0 is -90000, expected tokens"),
                                      ((LOAD[0], *good[1:]), {}, r"weight has shape \[8\], expected \[layers, experts\]"),
                                      (("load", *good[1:]), {}, "weight: .*expected numbers"),
                                      ((LOAD, 12, 1, 0, 4, START), {}, "num_nodes is 0, expected at least 1"),
                                      ((LOAD, 12, 1, 1, 5, START), {}, "12 physical experts on 5 ranks: expected as many"),
                                      (good, {"speeds": 1}, "TypeError: _request.. got an unexpected keyword argument 'speeds'"),
                                      ((*good, 7), {}, "TypeError: _request.. got an unexpected keyword argument '.'")):
            with self.subTest(message), self.assertLogs("eplb") as log:
                for _ in range(3):
                    self.assertTrue(torch.equal(policy.rebalance_experts(*given, **named), START))
                self.assertEqual(len(log.output), 1)
                self.assertRegex(log.output[0], f"eplb.vllm: the placement stays as it is: {message}")
            policy.rebalance_experts(*good)  # the next failure is logged again

    def test_failures_that_alternate_are_logged_once_each(self):
        policy = eplb.vllm.register()
        nan = LOAD.double()
        with self.assertLogs("eplb") as log:
            for expert in range(8):
                nan[0, expert] = float("nan")
                nan[0, :expert] = 1
                policy.rebalance_experts(nan, 12, 1, 1, 4, START)
                policy.rebalance_experts(LOAD, 12, 1, 0, 4, START)
        self.assertEqual(len(log.output), 2)

    def test_without_an_incumbent_to_keep_vllms_own_policy_answers(self):
        policy = eplb.vllm.register()
        own = engine_stand_ins.own_map(1, 8, 12)
        for incumbent in (None, START - 1, START[:, :8], START.float()):
            self.assertTrue(torch.equal(policy.rebalance_experts(0 * LOAD, 12, 1, 1, 4, incumbent), own))
        # The current placement is now that answer. The own policy fails for these groups.
        self.assertTrue(torch.equal(policy.rebalance_experts(0 * LOAD, 12, None, 1, 4), own))
        self.assertTrue(torch.equal(eplb.vllm.register().rebalance_experts(0 * LOAD, 12, None, 1, 4), START))

    def test_a_missing_library_is_told_at_once_and_the_incumbent_kept(self):
        with unittest.mock.patch.object(_library, "load", side_effect=eplb.LibraryNotFound("EPLB_LIBRARY is /none")):
            with self.assertLogs("eplb") as log:
                policy = eplb.vllm.register()
            self.assertRegex(log.output[0], "this rank cannot plan: EPLB_LIBRARY is /none")
            with self.assertLogs("eplb"):
                self.assertTrue(torch.equal(policy.rebalance_experts(LOAD, 12, 1, 1, 4, START), START))

    def test_a_function_with_other_parameters_is_refused_and_stays(self):
        def renamed(load, num_replicas, num_groups, num_nodes, num_ranks, old_global_expert_indices=None):
            raise AssertionError("not called")

        def more(weight, num_replicas, num_groups, num_nodes, num_ranks, old_global_expert_indices=None, speeds=None):
            raise AssertionError("not called")

        def swapped(weight, num_groups, num_replicas, num_nodes, num_ranks, old_global_expert_indices=None):
            raise AssertionError("not called")

        for function, difference in ((renamed, "unknown load; missing weight"), (more, "unknown speeds=None"),
                                     (swapped, "another order"), (lambda *given: None, "unknown given; missing weight, .*")):
            self.replace(function)
            with self.assertRaisesRegex(eplb.Unimplemented, "^vLLM's rebalance_experts has other parameters than in vLLM 0.33.0: "
                                        rf"{difference} \(docs/serving-engines.md lists the known versions\)$"):
                eplb.vllm.register()
            self.assertIs(self.policies["default"].rebalance_experts, function)

    def test_without_policies_the_function_is_replaced(self):
        def rebalance_experts(weight, num_replicas, num_groups, num_nodes, num_gpus):
            raise AssertionError("not called")

        engine_stand_ins.remove()
        modules = [engine_stand_ins.module(f"vllm.distributed.eplb.{name}", rebalance_experts=rebalance_experts)
                   for name in ("rebalance_algo", "eplb_state")]
        eplb.vllm.register()
        for module in modules:
            check_maps(self, module.rebalance_experts(torch.tensor([[1, 2, 3, 4]]), 6, 1, 1, num_gpus=2), 1, 4, 6)

    def test_what_cannot_be_replaced_is_named(self):
        with self.assertRaisesRegex(eplb.FailedPrecondition, "^vLLM has no policy 'eplb', it has default$"):
            eplb.vllm.register(name="eplb")
        for setting, message in (({"policy": "auto"}, "^policy: 'auto'"), ({"timeout": 0}, "^timeout is 0, expected seconds"),
                                 ({"timeout": "1 s"}, "^timeout: '1 s', expected a number")):
            with self.assertRaisesRegex(eplb.InvalidArgument, message):
                eplb.vllm.register(**setting)
        for asks, message in ((("plan_rebalance",), "asks for plan_rebalance: only rebalance_experts is known"),
                              (("rebalance_experts", "warm_up"), "asks for rebalance_experts, warm_up")):
            body = {name: abc.abstractmethod(lambda cls: None) for name in asks}
            engine_stand_ins.module("vllm.distributed.eplb.policy", AbstractEplbPolicy=abc.ABCMeta("Abstract", (), body))
            with self.assertRaisesRegex(eplb.Unimplemented, message):
                eplb.vllm.register()

    def test_without_vllm_it_says_so_and_the_package_needs_neither_torch_nor_vllm(self):
        engine_stand_ins.remove()
        with self.assertRaisesRegex(eplb.FailedPrecondition, "^no vLLM with a load balancer here: No module named 'vllm'"):
            eplb.vllm.register()
        code = ("import sys, eplb; assert 'eplb.vllm' not in sys.modules; eplb.vllm, eplb.sglang; "
                "assert not {'torch', 'vllm', 'sglang'} & set(sys.modules)")
        subprocess.run([sys.executable, "-B", "-c", code], check=True, timeout=60)


if __name__ == "__main__":
    unittest.main()
