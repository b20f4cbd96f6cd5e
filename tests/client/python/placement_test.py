"""eplb.placement: DeepSeek's rebalance_experts bit for bit, and EPLB's policies."""

import dataclasses
import json
import os
import pathlib
import unittest
import warnings

import numpy as np
import torch

import eplb
from eplb import placement
from engines import peaks

# One case of each type of number; the first has another answer in each order of ties.
NAMES = ("dsv3_16nodes_384", "float32_weights", "float64_weights", "int32_weights")
CASES = [case for case in json.loads((pathlib.Path(os.environ["EPLB_DATA"]) / "deepseek_eplb.json").read_text())["cases"]
         if case["name"] in NAMES]


def arguments_of(case):
    return case["slots"], case["groups"], case["nodes"], case["gpus"]


def padded(rows, width):
    return [[slots + [-1] * (width - len(slots)) for slots in layer] for layer in rows]


class RebalanceExpertsTest(unittest.TestCase):
    def check(self, case, maps, prefix=""):
        slots, replicas, counts = (each.tolist() for each in maps)
        self.assertEqual(slots, case.get(prefix + "phy2log", case["phy2log"]))
        self.assertEqual(replicas, padded(case.get(prefix + "log2phy", case["log2phy"]), case["log2phy_width"]))
        self.assertEqual(counts, case["logcnt"])

    def test_recorded_cases_in_torch_and_numpy_with_both_orders_of_ties(self):
        self.assertEqual(len(CASES), len(NAMES))
        for case in CASES:
            for kind, weight in ((torch.Tensor, torch.tensor(case["weight"], dtype=getattr(torch, case["weight_dtype"]))),
                                 (np.ndarray, np.array(case["weight"], dtype=case["weight_dtype"]))):
                with self.subTest(case["name"], kind=kind):
                    maps = placement.rebalance_experts(weight, *arguments_of(case))
                    self.assertEqual([type(each) for each in maps], [kind] * 3)
                    self.assertEqual({str(each.dtype).removeprefix("torch.") for each in maps}, {"int64"})
                    self.check(case, maps)
                    self.check(case, placement.rebalance_experts(weight, *arguments_of(case), tie_break="stable"), "stable_")

    def test_what_is_no_matrix_is_refused(self):
        with self.assertRaisesRegex(eplb.InvalidArgument, r"weight has shape \[3\]"):
            placement.rebalance_experts([1, 2, 3], 4, 1, 1, 1)
        with self.assertRaisesRegex(eplb.InvalidArgument, "tie_break: 'any', expected one of stable, compat"):
            placement.rebalance_experts([[1, 2, 3]], 4, 1, 1, 1, tie_break="any")
        for weight in ([["many"]], [[1], [1, 2]], [[1j, 2]]):
            with self.assertRaisesRegex(eplb.InvalidArgument, "^weight: .*expected numbers"):
                placement.rebalance_experts(weight, 4, 1, 1, 1)

    def test_a_load_above_float32_is_refused_without_a_warning(self):
        for make in (np.array, torch.tensor):
            weight = make([[1.0, 1e300]], dtype=torch.float64 if make is torch.tensor else np.float64)
            with warnings.catch_warnings(), self.assertRaisesRegex(
                    eplb.InvalidArgument, "^weight: layer 0 expert 1 is inf, expected tokens: finite in float32 and at least 0$"):
                warnings.simplefilter("error")
                placement.rebalance_experts(weight, 4, 1, 1, 2)

    def test_what_is_no_integer_is_named(self):
        good = {"num_replicas": 4, "num_groups": 1, "num_nodes": 1, "num_gpus": 2}
        placement.rebalance_experts([[1, 2, 3]], **good)
        for name in good:
            for value, message in ((good[name] + (1 << 32), "does not fit into 32 bits"), (4.0, "4.0, expected an integer"),
                                   (None, "None, expected an integer")):
                with self.subTest(name), self.assertRaisesRegex(eplb.InvalidArgument, f"^{name}: .*{message}"):
                    placement.rebalance_experts([[1, 2, 3]], **{**good, name: value})


class PlanTest(unittest.TestCase):
    COUNTS = [[90, 80, 10, 20], [90, 80, 10, 20]]

    def test_balanced_evens_out_counts_and_estimates(self):
        for load in (self.COUNTS, np.array(self.COUNTS, float), torch.tensor(self.COUNTS)):
            plan = placement.plan(load, num_slots=4, num_gpus=2)
            self.assertEqual(plan.max_gpu_load.tolist(), [100, 100])
            self.assertEqual(plan.balancedness.tolist(), [1, 1])
            self.assertEqual(plan.logical_replica_count.tolist(), [[1] * 4] * 2)
            for layer in range(2):
                self.assertEqual(sorted(plan.physical_to_logical_map[layer].tolist()), [0, 1, 2, 3])
                self.assertEqual(plan.physical_to_logical_map[layer, plan.logical_to_physical_map[layer, :, 0]].tolist(),
                                 [0, 1, 2, 3])

    def test_a_layer_without_load_has_no_balancedness(self):
        load = [self.COUNTS[0], [0] * 4]
        plan = placement.plan(load, num_slots=4, num_gpus=2)
        self.assertEqual(plan.balancedness[0], 1)
        self.assertTrue(np.isnan(plan.balancedness[1]))
        self.assertEqual(plan, placement.plan(load, num_slots=4, num_gpus=2))
        self.assertIn("balancedness 1.0000 (worst layer 0: 1.0000)", repr(plan))
        self.assertIn("in 4 slots, no load>", repr(placement.plan([[0] * 4], num_slots=4, num_gpus=2)))

    def test_plans_and_options_are_equal_by_their_values(self):
        first = placement.plan(self.COUNTS, num_slots=4, num_gpus=2)
        self.assertEqual(first, placement.plan(self.COUNTS, num_slots=4, num_gpus=2))
        self.assertNotEqual(first, placement.plan(self.COUNTS, num_slots=6, num_gpus=2))
        self.assertNotEqual(first, None)
        options = [placement.PlanOptions(num_slots=4, num_gpus=2, gpu_speeds=np.array(speeds), previous=first)
                   for speeds in ([1., 1.], [1., 1.], [1., .5])]
        self.assertEqual(options[0], options[1])
        self.assertNotEqual(options[0], options[2])
        for record in (first, options[0]):
            with self.assertRaises(TypeError):
                hash(record)

    def test_incremental_keeps_what_is_even(self):
        first = placement.plan(self.COUNTS, num_slots=6, num_gpus=2)
        options = placement.PlanOptions(num_slots=6, num_gpus=2, policy="incremental", previous=first)
        second = placement.plan_with(self.COUNTS, options)
        self.assertEqual(second.physical_to_logical_map.tolist(), first.physical_to_logical_map.tolist())
        self.assertEqual(second.logical_to_physical_map.tolist(), first.logical_to_physical_map.tolist())
        again = placement.plan(self.COUNTS, num_slots=6, num_gpus=2, policy="incremental",
                               previous=first.physical_to_logical_map.tolist())
        self.assertEqual(again.physical_to_logical_map.tolist(), first.physical_to_logical_map.tolist())

    def test_flow_starts_from_the_static_layout(self):
        static = [[0, 1, 2, 3, 0, 1]] * 2
        self.assertEqual(placement.plan(self.COUNTS, num_slots=6, num_gpus=2, policy="flow"),
                         placement.plan(self.COUNTS, num_slots=6, num_gpus=2, policy="incremental", previous=static))

    def test_what_cannot_be_planned_is_named(self):
        for options, message in (
                ({"num_slots": 3, "num_gpus": 1}, "num_slots is 3"),
                ({"num_slots": 4}, "option num_gpus: missing"),
                ({"num_slots": 4, "num_gpus": 2, "polcy": "x"}, "^option polcy: there is none of this name, perhaps policy$"),
                ({"num_slots": 4, "num_gpus": 2, "world": 1},
                 "^option world: there is none of this name; eplb.placement.PlanOptions has the names$"),
                ({"num_slots": 4, "num_gpus": 2, "effort": np.array(["fast", "x"])}, r"^effort: <U4 \[2\], expected one of"),
                ({"num_slots": 4, "num_gpus": 2, "allow_duplicates": np.array([1, 2])},
                 r"^allow_duplicates: int64 \[2\], expected True or False$"),
                ({"num_slots": 4, "num_gpus": 2, "effort": "much"}, "effort: 'much'"),
                ({"num_slots": 4, "num_gpus": 2, "gpu_speeds": [1]}, r"gpu_speeds has shape \[1\], expected \[2\]"),
                ({"num_slots": 4, "num_gpus": 2, "previous": [[0, 1]]}, r"previous has shape \[1, 2\], expected \[2, 4\]"),
                ({"num_slots": 4, "num_gpus": 2, "previous": [[0.5, 1, 2, 3]] * 2},
                 r"previous: float64 \[2, 4\], expected integers \[layers, slots\]"),
                ({"num_slots": (1 << 32) + 4, "num_gpus": 2}, "num_slots: 4294967300 does not fit into 32 bits"),
                ({"num_slots": 4.0, "num_gpus": 2}, "num_slots: 4.0, expected an integer"),
                ({"num_slots": 4, "num_gpus": "2"}, "num_gpus: '2', expected an integer"),
                ({"num_slots": 4, "num_gpus": 2, "policy": None}, "policy: None, expected text"),
                ({"num_slots": 4, "num_gpus": 2, "policy": "balanced\0"}, "policy: .* has a zero in it"),
                ({"num_slots": 4, "num_gpus": 2, "gpu_speeds": ["a", "b"]}, r"gpu_speeds: <U1 \[2\], expected numbers"),
                ({"num_slots": 4, "num_gpus": 2, "allow_duplicates": "no"}, "allow_duplicates: 'no', expected True or False")):
            with self.subTest(options), self.assertRaisesRegex(eplb.InvalidArgument, message):
                placement.plan(self.COUNTS, **options)

    def test_what_is_no_load_is_named(self):
        for load, message in ((torch.ones(1, 4, dtype=torch.bfloat16), r"load: torch.bfloat16 \[1, 4\], expected numbers"),
                              ([[1], [1, 2]], "load: list, expected numbers"), ([["a"]], "load: <U1"), (None, "load: object"),
                              (np.full((1, 4), 2**64 - 1, np.uint64), "^load: 18446744073709551615 does not fit into 64 bits$"),
                              (np.ones((1, 4), bool), r"^load: bool \[1, 4\], expected numbers$"),
                              (torch.ones(1, 4, dtype=torch.bool), r"^load: bool \[1, 4\], expected numbers$"),
                              (7, r"^load: 7, expected integers \[layers, experts\]$")):
            with self.assertRaisesRegex(eplb.InvalidArgument, message):
                placement.plan(load, num_slots=4, num_gpus=2)

    def test_loads_that_no_router_counts_are_refused_with_their_place(self):
        good = [[1.0, 2, 3, 4], [5, 6, 7, 8]]
        for value in (float("nan"), float("inf"), float("-inf"), -1.0):
            load = [list(row) for row in good]
            load[1][2] = value
            for cells in (load, np.array(load, np.float32), torch.tensor(load)):
                with self.subTest(value), self.assertRaisesRegex(eplb.InvalidArgument,
                                                                 f"^load: layer 1 expert 2 is {value}, expected tokens"):
                    placement.plan(cells, num_slots=4, num_gpus=2)
                with self.subTest(value), self.assertRaisesRegex(eplb.InvalidArgument,
                                                                 f"^weight: layer 1 expert 2 is {value}, expected tokens"):
                    placement.rebalance_experts(cells, 4, 1, 1, 2)
        with self.assertRaisesRegex(eplb.InvalidArgument, "load: layer 0 expert 1 is -3"):
            placement.plan([[1, -3, 1, 1]], num_slots=4, num_gpus=2)

    # Two loads that are each uneven where the other is even.
    SCENARIOS = ([[90, 80, 10, 20]], [[90, 10, 80, 20]])

    def test_one_placement_serves_several_loads(self):
        for loads in (self.SCENARIOS, np.array(self.SCENARIOS, np.float32), torch.tensor(self.SCENARIOS)):
            for objective in ("mean", "worst"):
                plan = placement.plan(loads=loads, objective=objective, num_slots=4, num_gpus=2)
                mean = placement.plan(np.mean(self.SCENARIOS, axis=0), num_slots=4, num_gpus=2)
                np.testing.assert_allclose(plan.scenarios, [[100 / 110]] * 2)
                np.testing.assert_allclose(plan.max_gpu_load, [110 / 200])
                self.assertIn("balancedness 0.9091 under the worst of 2 loads", repr(plan))
                self.assertIsNone(mean.scenarios)
        for heavy in (0, 1):
            plan = placement.plan(loads=self.SCENARIOS, weights=[1000 - 999 * heavy, 1 + 999 * heavy], num_slots=4, num_gpus=2)
            self.assertEqual(plan.scenarios[heavy].tolist(), [1])

    def test_any_mixture_is_at_least_as_balanced_as_the_worst_load(self):
        random = np.random.default_rng(7)
        loads = random.pareto(1.5, (3, 2, 16)) + .1
        plan = placement.plan(loads=loads, num_slots=20, num_gpus=4)
        shares = loads / loads.sum(axis=2, keepdims=True)
        for mixture in random.dirichlet(np.ones(3), 50):
            under = np.tensordot(mixture, shares, 1)
            seen = 1 / 4 / peaks(under, plan.physical_to_logical_map, 4)
            self.assertTrue((seen >= plan.scenarios.min(axis=0) - 1e-12).all(), seen)

    def test_one_of_several_loads_is_planned_as_it_is_alone(self):
        one = placement.plan(loads=[np.array(self.COUNTS)], num_slots=6, num_gpus=2)
        alone = placement.plan(np.array(self.COUNTS, float), num_slots=6, num_gpus=2)
        self.assertEqual(one.scenarios.tolist(), [alone.balancedness.tolist()])
        self.assertEqual(one, dataclasses.replace(alone, scenarios=one.scenarios))

    def test_what_is_no_set_of_loads_is_named(self):
        first, second = self.SCENARIOS
        for given, message in (({"load": first, "loads": [second]}, "^load and loads are given, expected one of them$"),
                               ({"load": first, "weights": [1]}, "^weights: given without loads$"),
                               ({"loads": []}, r"^loads: none, expected 1..64$"),
                               ({"loads": 7}, r"^loads: int, expected loads \[layers, experts\]$"),
                               ({"loads": [first] * 65}, "^num_loads is 65, expected 1..64$"),
                               ({"loads": [first, [[1, 2, 3]]]}, r"^loads\[1\] has shape \[1, 3\], expected \[1, 4\]$"),
                               ({"loads": [first, [[1, -2, 3, 4]]]}, r"^loads\[1\]: layer 0 expert 1 is -2.0, expected tokens"),
                               ({"loads": [first, [["a"]]]}, r"^loads\[1\]: <U1 \[1, 1\], expected numbers$"),
                               ({"loads": [first, [[0] * 4]]}, "^scenario 1 has no tokens$"),
                               ({"loads": [first, second], "weights": [1]}, r"^weights has shape \[1\], expected \[2\]$"),
                               ({"loads": [first, second], "weights": [1, 0]}, "^scenario 1 has the weight 0, expected"),
                               ({"loads": [first, second], "weights": [float("nan"), 1]}, "^scenario 0 has the weight nan"),
                               ({"loads": [first, second], "objective": "best"}, "^objective: 'best', expected one of mean, worst"),
                               ({"loads": [first, second], "policy": "deepseek"}, "^policy deepseek plans for one load, not for 2$")):
            with self.subTest(message), self.assertRaisesRegex(eplb.InvalidArgument, message):
                placement.plan(**given, num_slots=4, num_gpus=2)

    def test_a_plan_shows_itself_in_a_line(self):
        plan = placement.plan(self.COUNTS, num_slots=6, num_gpus=2)
        self.assertRegex(repr(plan), r"\A<eplb\.placement\.Plan: 2 layers of 4 experts in 6 slots, balancedness [01]\.\d{4} "
                                     r"\(worst layer \d: [01]\.\d{4}\)>\Z")
        self.assertEqual(str(plan), repr(plan))
        self.assertRegex(repr(placement.plan([[5]], num_slots=1, num_gpus=1)), "Plan: 1 layer of 1 expert in 1 slot, ")


if __name__ == "__main__":
    unittest.main()
