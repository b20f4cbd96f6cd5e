"""eplb.placement: DeepSeek's rebalance_experts bit for bit, and EPLB's policies."""

import json
import os
import pathlib
import unittest
import warnings

import numpy as np
import torch

import eplb
from eplb import placement

CASES = json.loads((pathlib.Path(os.environ["EPLB_DATA"]) / "deepseek_eplb.json").read_text())["cases"]


def arguments_of(case):
    return case["slots"], case["groups"], case["nodes"], case["gpus"]


def padded(rows, width):
    return [[slots + [-1] * (width - len(slots)) for slots in layer] for layer in rows]


# The reference plans with loads below 0 too, which no router counts; the package refuses them.
NEGATIVE = ("float_negative",)


class RebalanceExpertsTest(unittest.TestCase):
    def check(self, case, maps, prefix=""):
        slots, replicas, counts = (each.tolist() for each in maps)
        self.assertEqual(slots, case.get(prefix + "phy2log", case["phy2log"]))
        self.assertEqual(replicas, padded(case.get(prefix + "log2phy", case["log2phy"]), case["log2phy_width"]))
        self.assertEqual(counts, case["logcnt"])

    def test_every_recorded_case_in_torch(self):
        refused = 0
        for case in CASES:
            with self.subTest(case["name"]):
                weight = torch.tensor(case["weight"], dtype=getattr(torch, case["weight_dtype"]))
                if "error" in case or case["name"] in NEGATIVE:
                    refused += 1
                    self.assertRaises(eplb.InvalidArgument, placement.rebalance_experts, weight, *arguments_of(case))
                    continue
                maps = placement.rebalance_experts(weight, *arguments_of(case))
                for each in maps:
                    self.assertIsInstance(each, torch.Tensor)
                    self.assertEqual((each.dtype, each.device.type), (torch.int64, "cpu"))
                self.check(case, maps)
        self.assertEqual((len(CASES), refused), (45, 4))

    def test_every_recorded_case_in_numpy_with_both_orders_of_ties(self):
        for case in CASES:
            if "error" in case or case["name"] in NEGATIVE:
                continue
            with self.subTest(case["name"]):
                weight = np.array(case["weight"], dtype=case["weight_dtype"])
                maps = placement.rebalance_experts(weight, *arguments_of(case))
                self.assertTrue(all(type(each) is np.ndarray and each.dtype == np.int64 for each in maps))
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

    def test_loads_above_their_range_are_named(self):
        for call, message in (
                (lambda: placement.plan(np.full((1, 4), 2**64 - 1, np.uint64), num_slots=4, num_gpus=2),
                 "load: 18446744073709551615 does not fit into 64 bits"),
                (lambda: placement.plan(np.ones((1, 4), bool), num_slots=4, num_gpus=2), "load: bool"),
                (lambda: placement.rebalance_experts(np.full((1, 8), 1e300), 16, 1, 1, 4), "weight: layer 0 expert 0 is inf")):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with self.assertRaisesRegex(eplb.InvalidArgument, message):
                    call()

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

    def test_unusable_gpus_hold_nothing(self):
        plan = placement.plan(self.COUNTS, num_slots=8, num_gpus=2, gpu_speeds=[0, 1])
        self.assertEqual(plan.physical_to_logical_map[:, :4].tolist(), [[-1] * 4] * 2)

    def test_what_cannot_be_planned_is_named(self):
        for options, message in (
                ({"num_slots": 3, "num_gpus": 1}, "num_slots is 3"),
                ({"num_slots": 4}, "option num_gpus: missing"),
                ({"num_slots": 4, "num_gpus": 2, "polcy": "x"}, "option polcy"),
                ({"num_slots": 4, "num_gpus": 2, "policy": "best"}, "unknown policy \"best\""),
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
                ({"num_slots": 4, "num_gpus": 2, "policy": "auto"}, "policy: auto chooses by the windows of a running job"),
                ({"num_slots": 4, "num_gpus": 2, "policy": "incremental"}, "which `previous` does not give"),
                ({"num_slots": 4, "num_gpus": 2, "max_moves_per_gpu": -5}, "max_moves_per_gpu: -5, expected at least 0"),
                ({"num_slots": 4, "num_gpus": 2, "allow_duplicates": np.array([1, 2])}, "allow_duplicates: array"),
                ({"num_slots": 4, "num_gpus": 2, "allow_duplicates": "no"}, "allow_duplicates: 'no', expected True or False")):
            with self.subTest(options), self.assertRaisesRegex(eplb.InvalidArgument, message):
                placement.plan(self.COUNTS, **options)

    def test_what_is_no_load_is_named(self):
        for load, message in ((torch.ones(1, 4, dtype=torch.bfloat16), r"load: torch.bfloat16 \[1, 4\], expected numbers"),
                              ([[1], [1, 2]], "load: list, expected numbers"), ([["a"]], "load: <U1"), (None, "load: object")):
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

    def test_a_plan_shows_itself_in_a_line(self):
        plan = placement.plan(self.COUNTS, num_slots=6, num_gpus=2)
        self.assertRegex(repr(plan), r"\A<eplb\.placement\.Plan: 2 layers of 4 experts in 6 slots, balancedness [01]\.\d{4} "
                                     r"\(worst layer \d: [01]\.\d{4}\)>\Z")
        self.assertEqual(str(plan), repr(plan))


if __name__ == "__main__":
    unittest.main()
