"""eplbctl plan for several loads: figures under each, the objective and its bound, windows chosen from a trace, wrong input."""

import json
import random
import unittest

import command

SHAPE = ("--gpus", 4, "--slots", 20)


def peaks(load, placement):
    """[(largest, mean) GPU load per layer] with equal shares."""
    slots, gpus = placement["num_slots"], placement["num_gpus"]
    result = []
    for row, held in zip(load, placement["physical_to_logical_map"]):
        tokens = [row[expert] / held.count(expert) for expert in held]
        loads = [sum(tokens[gpu * slots // gpus:(gpu + 1) * slots // gpus]) for gpu in range(gpus)]
        result.append((max(loads), sum(loads) / gpus))
    return result


def balancedness(load, placement):
    return [mean / largest for largest, mean in peaks(load, placement)]


class ScenariosTest(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.loads = {name: command.draw(3, 16, seed) for seed, name in enumerate(("chat", "code", "maths"))}
        self.paths = {name: self.write(f"{name}.json", json.dumps(load)) for name, load in self.loads.items()}
        self.flags = [word for path in self.paths.values() for word in ("--load", path)]

    def plan(self, *more):
        result = command.run("plan", *more, "-o", "json")
        self.assertEqual((result.returncode, command.without_notes(result.stderr)), (0, ""))
        return json.loads(result.stdout, parse_constant=self.fail)

    def test_each_load_has_its_figures_and_the_objective_its_bound(self):
        for name in ("mean", "worst"):
            plan = self.plan(*self.flags, *SHAPE, "--weights", "2,1,0.5", "--objective", name)
            weights = dict(zip(self.loads, (2, 1, 0.5)))
            self.assertEqual([(row["load"], row["weight"]) for row in plan["scenarios"]], list(weights.items()))
            ratios = {}
            for row in plan["scenarios"]:
                load = self.loads[row["load"]]
                expected = balancedness(load, plan["placement"])
                ratios[row["load"]] = [1 / one for one in expected]
                for seen, largest, figure, bound, (peak, _) in zip(
                        expected, row["max_gpu_load_per_layer"], row["balancedness"]["per_layer"],
                        row["bound"]["max_gpu_load_per_layer"], peaks(load, plan["placement"])):
                    self.assertAlmostEqual(figure, seen)
                    self.assertAlmostEqual(largest, peak)
                    self.assertLessEqual(bound, peak * (1 + 1e-9))
                self.assertAlmostEqual(row["balancedness"]["mean"], sum(expected) / 3)
                self.assertAlmostEqual(row["balancedness"]["min"], min(expected))
            objective = plan["objective"]
            self.assertEqual(objective["name"], name)
            for layer in range(3):
                one = {load: ratios[load][layer] for load in ratios}
                expected = max(one.values()) if name == "worst" else sum(weights[k] * one[k] for k in one) / 3.5
                self.assertAlmostEqual(objective["per_layer"][layer], expected)
                self.assertLessEqual(objective["bound_per_layer"][layer], expected * (1 + 1e-9))
                self.assertGreaterEqual(objective["bound_per_layer"][layer], 1)
            self.assertAlmostEqual(objective["mean"], sum(objective["per_layer"]) / 3)

    def test_a_mixture_is_no_less_balanced_than_the_worst_load(self):
        plan = self.plan(*self.flags, *SHAPE)
        worst = [min(row["balancedness"]["per_layer"][layer] for row in plan["scenarios"]) for layer in range(3)]
        source = random.Random(1)
        for _ in range(50):
            parts = [source.expovariate(1) for _ in self.loads]
            mixture = [[sum(part * load[layer][e] for part, load in zip(parts, self.loads.values())) for e in range(16)]
                       for layer in range(3)]
            for figure, least in zip(balancedness(mixture, plan["placement"]), worst):
                self.assertGreaterEqual(figure, least - 1e-9)
        self.assertAlmostEqual(plan["objective"]["mixtures_at_least"], sum(worst) / 3)

    def test_serves_the_loads_better_than_a_plan_for_one_or_for_their_sum(self):
        def least(placement):
            return min(sum(balancedness(load, placement)) / 3 for load in self.loads.values())

        together = least(self.plan(*self.flags, *SHAPE)["placement"])
        total = [[sum(load[layer][e] for load in self.loads.values()) for e in range(16)] for layer in range(3)]
        for path in (*self.paths.values(), self.write("sum.json", json.dumps(total))):
            self.assertGreater(together, least(self.plan("--load", path, *SHAPE)["placement"]), path)

    def test_a_job_that_splits_by_batch_splits_each_load_exactly(self):
        equal = self.plan(*self.flags, *SHAPE)
        batch = self.plan(*self.flags, *SHAPE, "--policy", "flow", "--split", "batch")
        for row in batch["scenarios"]:
            whole = [largest == round(largest) for largest in row["max_gpu_load_per_layer"]]
            self.assertEqual(whole, [True] * 3)
            for exact, (largest, _) in zip(row["max_gpu_load_per_layer"],
                                           peaks(self.loads[row["load"]], batch["placement"])):
                self.assertLessEqual(exact, largest + 1)
        self.assertLess(batch["objective"]["mean"], equal["objective"]["mean"])

    def test_moves_stay_within_the_limit(self):
        previous = self.directory / "previous.json"
        self.plan("--load", self.paths["chat"], *SHAPE, "--out", previous)
        for policy in ("incremental", "balanced"):
            plan = self.plan(*self.flags, *SHAPE, "--policy", policy, "--previous", previous, "--max-moves-per-gpu", 1)
            self.assertEqual(plan["moves"]["max_per_gpu"], 1)

    def test_one_load_has_no_keys_of_several(self):
        self.assertFalse({"scenarios", "objective", "scenario_choice"} & set(self.plan("--load", self.paths["chat"], *SHAPE)))

    def test_the_table_has_a_row_for_each_load(self):
        def table(*more, columns=80):
            result = command.run("plan", *more, environment={"COLUMNS": str(columns)})
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), columns)
            return result.stdout

        for columns in (80, 160):
            text = table(*self.flags, *SHAPE, "--weights", "2,1,1", columns=columns)
            for name, weight in (("chat", 2), ("code", 1), ("maths", 1)):
                self.assertRegex(text, rf"\n{name} +{weight}( +0\.\d{{4}}){{3}}( +[\d.]+ %){{2}}\n")
            words = " ".join(text.split())
            self.assertRegex(words, r"Objective mean: .* is 1\.\d{4} on average over layers \(static 1\.\d{4}\)\. Above the "
                                    r"proved bound: [\d.]+ % on average")
            self.assertRegex(words, r"Under any mixture of these loads, each layer is at least as balanced as under the worst of "
                                    r"them\. The mean over layers of a mixture is at least 0\.\d{4}\.")

    def test_the_names_of_loads_are_different(self):
        def names(*paths):
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(self.loads["chat"]))
            return [row["load"] for row in self.plan(*(word for path in paths for word in ("--load", path)), *SHAPE)["scenarios"]]

        here = self.directory
        self.assertEqual(names(here / "day/load.json", here / "night/load.json"), ["day/load", "night/load"])
        self.assertEqual(names(here / "day/1/load.json", here / "night/1/load.json"), ["day/1/load", "night/1/load"])
        paths = [here / "day/load.json", here / "day/load.txt"]
        self.assertEqual(names(*paths), [str(path) for path in paths])

    def test_lint_and_diff_leave_out_a_gpu_without_experts_as_the_plan_does(self):
        out = self.directory / "out.json"
        plan = self.plan(*self.flags, "--gpus", 4, "--slots", 24, "--unusable-gpus", 1, "--out", out)
        linted = command.run("lint", "--placement", out, *self.flags).stderr
        for row in plan["scenarios"]:
            figure, path = row["balancedness"]["mean"], self.paths[row["load"]]
            self.assertIn(f"balancedness {figure:.4f} under {path}", linted)
            diff = json.loads(command.run("diff", out, out, "--load", path, "-o", "json").stdout)
            for side in ("balancedness_from", "balancedness_to"):
                self.assertAlmostEqual(diff[side], figure)

    def test_wrong_flags_and_loads_are_exit_2(self):
        odd = self.write("odd.json", "[[1,2,3]]")
        idle = self.write("idle.json", json.dumps([[0] * 16] * 3))
        faint = self.write("faint.json", json.dumps([[1] * 16, [1] * 16, [1e-300] * 16]))
        one = ("--load", self.paths["chat"])
        two = (*one, "--load", self.paths["code"])
        for words, message in (((*one, "--load", odd), f"{odd}: load has 1 layers x 3 experts, {self.paths['chat']} has 3 x 16"),
                               ((*one, "--load", idle), f"{idle}: the load has no tokens"),
                               ((*one, "--load", faint), f"{faint}: layer 2 has less than 1e-290 tokens"),
                               ((*one, "--load", self.directory / "no.json"), "no.json"),
                               ((*two, "--weights", "1"), "--weights has 1 number for 2 loads"),
                               ((*two, "--weights", "1,2,3"), "--weights has 3 numbers for 2 loads"),
                               ((*two, "--weights", "1,0"), f"the weight of {self.paths['code']} is 0"),
                               ((*two, "--weights", "-1,1"), f"the weight of {self.paths['chat']} is -1"),
                               ((*two, "--weights", "1,nan"), '--weights is "1,nan"'),
                               ((*one, "--weights", "1"), "--weights needs several loads"),
                               ((*one, "--objective", "worst"), "--objective needs several loads"),
                               ((*two, "--objective", "best"), "--objective"),
                               ((*two, "--scenarios", 2), "--scenarios chooses windows of one load"),
                               ((*one, "--scenarios", 2), f"{self.paths['chat']}: has one window"),
                               ((*two, "--split", "optimal"), "--split optimal takes one load"),
                               ((*two, "--policy", "deepseek"), "policy deepseek takes one load"),
                               (one * 65, "--load is given 65 times, expected at most 64"),
                               ((*one, self.paths["code"]), "unexpected argument")):
            with self.subTest(flags=words[:6]):
                self.assert_fails(command.run("plan", *words, *SHAPE), 2, message)


class ChosenWindowsTest(command.CommandTest):
    """A trace that alternates between two regimes, with tokens of each window drawn anew."""

    def setUp(self):
        super().setUp()
        source = random.Random(5)
        regimes = [command.draw(2, 16, seed) for seed in (1, 2)]
        self.windows = [[[int(cell * source.uniform(0.95, 1.05)) for cell in row] for row in regimes[i % 3 == 2]]
                        for i in range(24)]
        self.path = self.trace("trace.jsonl", self.windows)

    def trace(self, name, windows):
        return self.write(name, "".join(json.dumps({"first_step": i, "last_step": i, "load": load}) + "\n"
                                        for i, load in enumerate(windows)))

    def plan(self, *more):
        result = command.run("plan", "--load", self.path, *SHAPE, *more, "-o", "json")
        self.assertEqual((result.returncode, command.without_notes(result.stderr)), (0, ""))
        return json.loads(result.stdout, parse_constant=self.fail)

    def test_the_regimes_are_found_and_served(self):
        plan = self.plan("--scenarios", 2)
        chosen = plan["scenario_choice"]["windows"]
        self.assertEqual([row["load"] for row in plan["scenarios"]], [f"window {i}" for i in chosen])
        self.assertEqual({i % 3 == 2: row["weight"] for i, row in zip(chosen, plan["scenarios"])}, {False: 16, True: 8})
        self.assertLess(plan["scenario_choice"]["distance_max"], 0.05)
        self.assertLess(plan["scenario_choice"]["distance_mean"], plan["scenario_choice"]["distance_max"])
        for row, i in zip(plan["scenarios"], chosen):
            for figure, seen in zip(row["balancedness"]["per_layer"], balancedness(self.windows[i], plan["placement"])):
                self.assertAlmostEqual(figure, seen)
        # The score on the later half is that of the regimes of the earlier one.
        self.assertEqual((plan["later_windows"]["planned_windows"], plan["later_windows"]["scored_windows"]), (12, 12))
        self.assertGreater(plan["later_windows"]["balancedness_mean"], self.plan()["later_windows"]["balancedness_mean"])

    def test_as_many_as_there_are_and_one(self):
        everything = self.plan("--scenarios", 64)
        self.assertEqual(everything["scenario_choice"]["windows"], list(range(24)))
        self.assertEqual(everything["scenario_choice"]["distance_max"], 0)
        self.assertEqual([row["weight"] for row in self.plan("--scenarios", 1)["scenarios"]], [24])

    def test_the_table_describes_what_is_left_out(self):
        result = command.run("plan", "--load", self.path, *SHAPE, "--scenarios", 2)
        words = " ".join(result.stdout.split())
        self.assertRegex(words, r"[\d.]+ % of tokens change their expert on average, [\d.]+ % at most, in window \d+\.")
        self.assertRegex(words, r"Planned on windows 0\.\.11, scored on windows 12\.\.23: balancedness 0\.\d{4}")

    def test_wrong_flags_and_idle_windows(self):
        for words, message in ((("--scenarios", 0), "--scenarios is 0, expected 1..64"),
                               (("--scenarios", 65), "--scenarios is 65, expected 1..64"),
                               (("--scenarios", 2, "--window", "last"), "--window"),
                               (("--scenarios", 2, "--weights", "1,2"), "--weights excludes --scenarios")):
            self.assert_fails(command.run("plan", "--load", self.path, *SHAPE, *words), 2, message)
        idle = [[0] * 16] * 2
        self.path = self.trace("idle.jsonl", [idle] * 3)
        self.assert_fails(command.run("plan", "--load", self.path, *SHAPE, "--scenarios", 2), 2, self.path,
                          "no window has tokens")
        self.path = self.trace("faint.jsonl", [*self.windows[:2], [[1] * 16, [1e-300] * 16]])
        self.assert_fails(command.run("plan", "--load", self.path, *SHAPE, "--scenarios", 3), 2,
                          f"{self.path}: window 2: layer 1 has less than 1e-290 tokens")
        self.path = self.trace("half.jsonl", [idle] * 3 + self.windows[:3])
        plan = self.plan("--scenarios", 6)
        self.assertEqual((plan["scenario_choice"]["windows"], plan["later_windows"]), ([3, 4, 5], None))


if __name__ == "__main__":
    unittest.main()
