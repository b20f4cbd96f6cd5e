"""eplbctl plan: what each policy and flag does to the plan, its bound and its moves."""

import json
import math
import unittest

import command


def finite(value):
    """Every number of a JSON value is finite."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def gpus_of(placement):
    """The slots of each GPU as ranges."""
    slots, gpus = placement["num_slots"], placement["num_gpus"]
    sizes = placement.get("slots_per_gpu", [slots // gpus] * gpus)
    firsts = [sum(sizes[:g]) for g in range(gpus)]
    return [range(first, first + size) for first, size in zip(firsts, sizes)]


def gpu_loads(load, placement, speeds=None):
    """[L][G] tokens / speed from the maps alone; None for a GPU that holds nothing."""
    result = []
    shares = placement.get("replica_share")
    for layer, experts in enumerate(placement["physical_to_logical_map"]):
        row = []
        for gpu, slots in enumerate(gpus_of(placement)):
            held = [s for s in slots if experts[s] >= 0]
            tokens = sum(load[layer][experts[s]] *
                         (shares[layer][s] if shares else 1 / placement["logical_replica_count"][layer][experts[s]])
                         for s in held)
            row.append(tokens / (speeds[gpu] if speeds else 1) if held else None)
        result.append(row)
    return result


class PlanCase(command.CommandTest):
    """Plans of one load; every plan is checked for what all plans keep."""

    def setUp(self):
        super().setUp()
        self.rows = command.draw(3, 16)
        self.load = self.write("load.json", json.dumps(self.rows))

    def plan(self, *flags, speeds=None):
        out = self.directory / "out.json"
        arguments = ["plan", "--load", self.load, *flags, "--out", out, "-o", "json"]
        result = command.run(*arguments)
        self.assertEqual((result.returncode, command.without_notes(result.stderr)), (0, ""), flags)
        plan = json.loads(result.stdout, parse_constant=self.fail)
        self.assertTrue(finite(plan))
        self.assertEqual(json.loads(out.read_text()), plan["placement"])
        again = json.loads(command.run(*arguments).stdout)
        self.assertEqual({**again, "solve_seconds": 0}, {**plan, "solve_seconds": 0}, "the same input, another plan")
        lint = command.run("lint", "--placement", out, "--load", self.load)
        self.assertEqual(lint.returncode, 0, lint.stdout)
        peaks, bounds = plan["max_gpu_load_per_layer"], plan["bound"]["max_gpu_load_per_layer"]
        for layer, row in enumerate(gpu_loads(json.loads(self.load.read_text()), plan["placement"], speeds)):
            used = [tokens for tokens in row if tokens is not None]
            self.assertAlmostEqual(peaks[layer], max(used), delta=1e-9 * max(used))
            self.assertAlmostEqual(plan["balancedness"]["per_layer"][layer], sum(used) / len(used) / max(used), places=9)
            self.assertAlmostEqual(plan["bound"]["gap_per_layer"][layer], peaks[layer] / bounds[layer] - 1, places=9)
            self.assertGreaterEqual(plan["bound"]["gap_per_layer"][layer], 0)
            self.assertGreaterEqual(bounds[layer], sum(t * (speeds or [1] * 99)[g] for g, t in enumerate(row) if t) /
                                    sum((speeds or [1] * 99)[g] for g, t in enumerate(row) if t is not None) * (1 - 1e-9))
        return plan


class PolicyTest(PlanCase):
    def test_balanced_is_the_default_and_not_worse_than_deepseek(self):
        for shape in (("--gpus", 4, "--slots", 20), ("--gpus", 4, "--nodes", 2, "--groups", 4, "--slots", 24)):
            default = self.plan(*shape)
            self.assertEqual(default["policy"], "balanced")
            self.assertEqual(default["duplicates"], 0)
            deepseek = self.plan(*shape, "--policy", "deepseek")
            for ours, theirs in zip(default["max_gpu_load_per_layer"], deepseek["max_gpu_load_per_layer"]):
                self.assertLessEqual(ours, theirs * (1 + 1e-9))

    def test_slots_that_gpus_do_not_divide(self):
        plan = self.plan("--gpus", 3, "--slots", 17)
        self.assertEqual(plan["placement"]["slots_per_gpu"], [6, 6, 5])

    def test_the_default_hierarchy_is_strict_where_groups_fit(self):
        shape = ("--gpus", 4, "--nodes", 2, "--groups", 4, "--slots", 20)
        strict, default, none = (self.plan(*shape, *more) for more in
                                 (("--hierarchy", "strict"), (), ("--hierarchy", "none")))
        self.assertEqual(default["placement"], strict["placement"])
        for layer in strict["placement"]["physical_to_logical_map"]:
            for group in range(4):
                nodes = {slot // 10 for slot, expert in enumerate(layer) if expert // 4 == group}
                self.assertEqual(len(nodes), 1)
        for strict_bound, flat_bound in zip(*(plan["bound"]["max_gpu_load_per_layer"] for plan in (strict, none))):
            self.assertGreaterEqual(strict_bound, flat_bound * (1 - 1e-9))
        self.assertNotIn("crossing", strict)

    def test_soft_says_what_crosses(self):
        self.load.write_text(json.dumps([[5000 if e < 4 else 10 for e in range(16)], [7] * 16, [0] * 15 + [1]]))
        shape = ("--gpus", 4, "--nodes", 2, "--groups", 4, "--slots", 24)
        soft, strict = (self.plan(*shape, "--hierarchy", name) for name in ("soft", "strict"))
        crossing = soft["crossing"]
        self.assertEqual(list(crossing), ["share_mean", "share_max"])
        self.assertGreater(crossing["share_max"], 0.2)
        self.assertTrue(0 < crossing["share_mean"] <= crossing["share_max"] <= 1)
        self.assertLess(soft["max_gpu_load_per_layer"][0], strict["max_gpu_load_per_layer"][0])
        alone = self.plan("--gpus", 4, "--slots", 24, "--hierarchy", "soft")
        self.assertEqual(alone["crossing"], {"share_mean": 0, "share_max": 0})


class SpeedTest(PlanCase):
    def test_loads_are_tokens_by_speed(self):
        speeds = [1, 0.5, 1, 2]
        plan = self.plan("--gpus", 4, "--slots", 24, "--gpu-speed", "1,0.5,1,2", speeds=speeds)
        alike = self.plan("--gpus", 4, "--slots", 24)["placement"]
        blind = [max(row) for row in gpu_loads(self.rows, alike, speeds)]
        for ours, theirs in zip(plan["max_gpu_load_per_layer"], blind):
            self.assertLess(ours, theirs)
        self.assertLess(plan["bound"]["gap_max"], 0.2)

    def test_unusable_gpus_hold_nothing_and_count_nowhere(self):
        for policy in (["balanced"], ["incremental", "--previous", self.directory / "static.json"]):
            command.run("plan", "--load", self.load, "--gpus", 5, "--slots", 30, "--policy", "deepseek", "--out",
                        self.directory / "static.json")
            plan = self.plan("--gpus", 5, "--slots", 30, "--unusable-gpus", "4,1", "--policy", *policy,
                             *([] if policy == ["balanced"] else ["--max-moves-per-gpu", 6]))
            for layer in plan["placement"]["physical_to_logical_map"]:
                self.assertEqual([slot for slot, expert in enumerate(layer) if expert == -1],
                                 [*range(6, 12), *range(24, 30)])

    def test_loads_beyond_a_double_are_refused(self):
        load = self.write("huge.json", json.dumps([[1e308, 1e307, 0, 0]] * 9))
        arguments = ["plan", "--load", load, "--gpus", 2, "--slots", 4]
        for more in (("-o", "json"), ()):
            result = command.run(*arguments, *more)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertNotRegex(result.stdout, r"(?i)\b(nan|inf)")
            self.assert_fails(command.run(*arguments, *more, "--gpu-speed", "0.001,0.001"), 2, "layer 0")

    def test_a_node_without_usable_gpus_is_refused_under_strict(self):
        result = command.run("plan", "--load", self.load, "--gpus", 4, "--nodes", 2, "--groups", 2, "--slots", 32,
                             "--unusable-gpus", "2,3")
        self.assert_fails(result, 2, "policy balanced", "node 1")


class PreviousTest(PlanCase):
    def setUp(self):
        super().setUp()
        self.previous = self.directory / "previous.json"
        self.shape = ("--gpus", 4, "--slots", 20)
        command.run("plan", "--load", self.load, *self.shape, "--out", self.previous)
        self.before = json.loads(self.previous.read_text())
        self.rows = command.draw(3, 16, seed=4)
        self.load.write_text(json.dumps(self.rows))

    def test_mending_what_constraints_forbid_is_said(self):
        result = command.run("plan", "--load", self.load, *self.shape, "--previous", self.previous, "--unusable-gpus", 3,
                             "--max-moves-per-gpu", 0)
        self.assert_fails(result, 2, "15 slots for 16 experts")
        roomy = ("--gpus", 4, "--slots", 24)
        command.run("plan", "--load", self.load, *roomy, "--out", self.previous)
        result = command.run("plan", "--load", self.load, *roomy, "--previous", self.previous, "--unusable-gpus", 3,
                             "--max-moves-per-gpu", 0)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("more than --max-moves-per-gpu 0", result.stderr)

    def test_a_load_that_says_nothing_moves_nothing_and_that_is_said(self):
        few = [[6 if expert == 0 else 1 for expert in range(16)]] * 3
        self.load.write_text(json.dumps(few))
        result = command.run("plan", "--load", self.load, *self.shape, "--policy", "incremental",
                             "--previous", self.previous, "-o", "json")
        self.assertEqual((result.returncode, json.loads(result.stdout)["moves"]["transfers"]), (0, 0))
        self.assertIn("note: every expert stays where it is", result.stderr)
        estimates = [[0.25 * tokens for tokens in row] for row in few]
        self.load.write_text(json.dumps(estimates))
        plan = self.plan(*self.shape, "--policy", "incremental", "--previous", self.previous)
        self.assertGreater(plan["moves"]["transfers"], 0)

    def test_previous_must_be_of_the_same_shape(self):
        for policy in ("balanced", "incremental"):
            self.assert_fails(command.run("plan", "--load", self.load, "--gpus", 2, "--slots", 20, "--policy", policy,
                                          "--previous", self.previous), 2, self.previous, "4 GPUs")


class SplitTest(PlanCase):
    def test_the_even_placement_is_at_the_mean(self):
        for shape in (("--gpus", 4, "--slots", 20), ("--gpus", 4, "--slots", 21), ("--gpus", 4, "--slots", 23),
                      ("--gpus", 4, "--slots", 20, "--allow-duplicates"),
                      ("--gpus", 5, "--slots", 25, "--unusable-gpus", 4),
                      ("--gpus", 4, "--nodes", 2, "--groups", 4, "--slots", 24),
                      ("--gpus", 4, "--nodes", 2, "--groups", 4, "--slots", 25)):
            with self.subTest(shape=shape):
                plan = self.plan(*shape, "--split", "optimal")
                self.assertLess(plan["bound"]["gap_max"], 1e-9)
                self.assertEqual(plan["duplicates"], 0)
                equal = self.plan(*shape)
                self.assertNotIn("replica_share", equal["placement"])
                for split, whole in zip(plan["max_gpu_load_per_layer"], equal["max_gpu_load_per_layer"]):
                    self.assertLessEqual(split, whole * (1 + 1e-9))

    def test_a_plan_for_batches_says_what_exact_splits_of_the_windows_reach(self):
        trace = command.DATA / "moe64_aux.jsonl"
        shape = ("--load", trace, "--gpus", 8, "--slots", 72, "--policy", "flow", "-o", "json")
        plan = json.loads(command.run("plan", *shape, "--window", "last", "--split", "batch").stdout)
        self.assertGreater(plan["batch_balancedness"], .99)
        self.assertAlmostEqual(plan["batch_balancedness"], plan["balancedness"]["mean"], 3)  # one window
        for shares, slots in zip(plan["placement"]["replica_share"], plan["placement"]["physical_to_logical_map"]):
            of_expert = [0] * 64
            for share, expert in zip(shares, slots):
                of_expert[expert] += share
            for whole in of_expert:
                self.assertAlmostEqual(whole, 1, 9)
        whole = json.loads(command.run("plan", *shape, "--split", "batch").stdout)
        self.assertLess(whole["batch_balancedness"], whole["balancedness"]["mean"])  # 240 windows, not their sum
        equal = command.run("plan", *shape)
        self.assertNotIn("batch_balancedness", equal.stdout)
        self.assertEqual(equal.stderr, "eplbctl: note: policy flow needs --split batch; without it this is incremental\n")
        tables = [command.run("plan", *shape[:-2], "--split", "batch", environment={"COLUMNS": columns}).stdout
                  for columns in ("80", "160")]
        for table in tables:
            row = next(line for line in table.splitlines() if line.startswith("balancedness by batch, mean"))
            static, planned = row.split()[-2:]
            self.assertEqual(planned, f"{whole['batch_balancedness']:.4f}")
            self.assertLess(float(static), float(planned))
            self.assertIn("balancedness of the load, mean", table)
            self.assertIn("balancedness by batch   load of the fullest GPU", table)
        self.assertLessEqual(max(map(len, tables[0].splitlines())), 80)

    def test_shares_need_no_whole_tokens(self):
        # ceil(mean) would be 4, above the 3.5 that equal shares reach.
        self.load.write_text("[[7,0]]")
        plan = self.plan("--gpus", 2, "--slots", 4, "--split", "optimal")
        self.assertAlmostEqual(plan["max_gpu_load_per_layer"][0], 3.5, 9)

    def test_an_idle_layer_has_equal_shares(self):
        self.load.write_text(json.dumps([[0] * 16, *self.rows]))
        out = self.directory / "out.json"
        result = command.run("plan", "--load", self.load, "--gpus", 4, "--slots", 24, "--split", "optimal", "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        placement = json.loads(out.read_text())
        counts = placement["logical_replica_count"][0]
        self.assertLessEqual(max(counts) - min(counts), 1)
        for slot, expert in enumerate(placement["physical_to_logical_map"][0]):
            self.assertAlmostEqual(placement["replica_share"][0][slot], 1 / counts[expert])


if __name__ == "__main__":
    unittest.main()
