"""eplbctl sweep: rows, prices of replicas, malformed ranges, tables."""

import json
import math
import unittest

import command

TRACE = command.DATA / "moe64_aux.jsonl"
ROW = {"slots", "balancedness_mean", "balancedness_min", "bound_gap_mean", "extra_slots_per_gpu"}


class SweepTest(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.load = self.write("load.json", "[[90,5,3,2,50,1,1,8],[1,2,3,4,5,6,7,8]]")

    def sweep(self, *arguments):
        result = command.run("sweep", "--load", self.load, "--gpus", 4, *arguments, "-o", "json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)["rows"]

    def test_a_trace_is_scored_out_of_sample(self):
        swept = json.loads(command.run("sweep", "--load", TRACE, "--gpus", 8, "--slots", "64:80:8", "-o", "json").stdout)
        self.assertEqual((swept["scored_on"], swept["planned_windows"], swept["scored_windows"]),
                         ("later_windows", 120, 120))
        for row in swept["rows"]:
            self.assertLess(row["balancedness_mean"], .9)
            self.assertGreater(row["balancedness_mean"], .6)
        # The figures are those of the earlier half's plan under each later window.
        lines = TRACE.read_text().splitlines(keepends=True)
        plan = json.loads(command.run("plan", "--load", self.write("earlier.jsonl", "".join(lines[:120])), "--gpus", 8, "--slots",
                                      72, "-o", "json").stdout)["placement"]["physical_to_logical_map"]
        peaks, means = [0] * len(plan), [0] * len(plan)
        for line in lines[120:]:
            for layer, (slots, load) in enumerate(zip(plan, json.loads(line)["load"])):
                gpus = [sum(load[expert] / slots.count(expert) for expert in slots[9 * g:9 * g + 9]) for g in range(8)]
                peaks[layer] += max(gpus)
                means[layer] += sum(gpus) / 8
        ratios = [mean / peak for mean, peak in zip(means, peaks)]
        self.assertAlmostEqual(swept["rows"][1]["balancedness_mean"], sum(ratios) / len(ratios))
        self.assertAlmostEqual(swept["rows"][1]["balancedness_min"], min(ratios))
        text = command.run("sweep", "--load", TRACE, "--gpus", 8, "--slots", "64").stdout
        self.assertIn("\nPlanned on windows 0..119, scored on windows 120..239.\n", text)

    def test_a_load_without_tokens_has_no_figures(self):
        self.load.write_text("[[0,0,0,0]]")
        arguments = ("sweep", "--load", self.load, "--gpus", 2, "--slots", "4:6:2", "--training")
        result = command.run(*arguments, "-o", "json")
        self.assertEqual((result.returncode, result.stderr),
                         (0, "eplbctl: note: what is scored has no tokens, so that there are no figures\n"))
        for row in json.loads(result.stdout)["rows"]:
            self.assertEqual([row[key] for key in ("balancedness_mean", "balancedness_min", "bound_gap_mean")], [None] * 3)
        self.assertNotIn("1.0000", command.run(*arguments).stdout)

    def test_each_window_is_split_for_itself_as_plan_does(self):
        windows = self.write("windows.jsonl", "".join(
            json.dumps({"first_step": step, "last_step": step, "load": [counts]}) + "\n"
            for step, counts in enumerate([[800, 100, 100, 0], [0, 100, 100, 800]] * 2)))
        shape = ("--load", windows, "--gpus", 2, "--slots", 4, "--split", "batch", "-o", "json")
        for window in ("sum", "ema:0.5"):
            swept = command.run("sweep", *shape, "--window", window, "--training")
            planned = command.run("plan", *shape, "--window", window)
            self.assertEqual((swept.returncode, planned.returncode), (0, 0), swept.stderr + planned.stderr)
            row = json.loads(swept.stdout)["rows"][0]
            # Both halves are alike.
            expected = json.loads(planned.stdout)["batch_balancedness"]
            self.assertLess(expected, .9)
            self.assertAlmostEqual(row["balancedness_mean"], expected)
            self.assertAlmostEqual(json.loads(planned.stdout)["later_windows"]["balancedness_mean"], expected)
            self.assertAlmostEqual(row["token_seconds_per_step"], 500 / expected * 528e-9)

    def test_a_window_with_more_tokens_than_a_batch_can_have_is_named(self):
        windows = self.write("windows.jsonl", "".join(
            json.dumps({"first_step": step, "last_step": step, "load": [[1, count]]}) + "\n"
            for step, count in enumerate([5, 2**36])))
        for name, flag, options in (("sweep", "--load", ()), ("plan", "--load", ()), ("replay", "--trace", ("--every", 9))):
            for policy in ("balanced", "flow"):
                self.assert_fails(command.run(name, flag, windows, "--gpus", 2, "--slots", 2, "--policy", policy, "--split", "batch",
                                              *options), 2, windows, "line 2: layer 0 has 68719476737 tokens")

    def test_a_row_for_each_slot_count(self):
        rows = self.sweep("--slots", "8:20:4")
        self.assertEqual([row["slots"] for row in rows], [8, 12, 16, 20])
        self.assertEqual([row["extra_slots_per_gpu"] for row in rows], [0, 1, 2, 3])
        for row in rows:
            self.assertLessEqual(ROW, set(row))
            self.assertTrue(all(math.isfinite(row[key]) for key in ROW))
            self.assertLessEqual(row["balancedness_min"], row["balancedness_mean"])
            self.assertGreaterEqual(row["bound_gap_mean"], 0)
        self.assertGreater(rows[-1]["balancedness_mean"], rows[0]["balancedness_mean"])
        self.assertEqual([row["slots"] for row in self.sweep("--slots", "8:15:4")], [8, 12])
        self.assertEqual([row["slots"] for row in self.sweep("--slots", "12")], [12])

    def test_rows_are_those_of_plan(self):
        for row in self.sweep("--slots", "8:16:4"):
            plan = json.loads(command.run("plan", "--load", self.load, "--gpus", 4, "--slots", row["slots"], "-o",
                                          "json").stdout)
            self.assertEqual(row["balancedness_mean"], plan["balancedness"]["mean"])
            self.assertEqual(row["balancedness_min"], plan["balancedness"]["min"])
            self.assertAlmostEqual(row["bound_gap_mean"], plan["bound"]["gap_mean"])

    def test_a_limit_of_moves_is_noted_to_have_no_effect(self):
        result = command.run("sweep", "--load", self.load, "--gpus", 4, "--slots", 8, "--max-moves-per-gpu", 1)
        self.assertEqual(result.returncode, 0)
        self.assertIn("note: --max-moves-per-gpu has no effect", result.stderr)

    def test_a_policy_that_is_another_here_is_named(self):
        shape = ("sweep", "--load", self.load, "--gpus", 4, "--slots", 8)
        self.assertIn("note: policy auto chooses by a history of windows, which a sweep does not have: this is balanced",
                      command.run(*shape, "--policy", "auto").stderr)
        self.assertIn("note: policy flow needs --split batch; without it this is incremental",
                      command.run(*shape, "--policy", "flow").stderr)
        self.assertEqual(command.run(*shape, "--policy", "flow", "--split", "batch").stderr, "")

    def test_training_prices_replicas(self):
        rows = self.sweep("--slots", "8:12:4", "--training", "--link-gbps", "50,50")
        self.assertEqual(rows[0]["replica_seconds_per_step"], 0)
        self.assertGreater(rows[1]["replica_seconds_per_step"], 0)
        self.assertGreater(rows[1]["seconds_per_step"], rows[0]["seconds_per_step"])
        slow = self.sweep("--slots", "12", "--training", "--link-gbps", "25,25")
        self.assertAlmostEqual(slow[0]["replica_seconds_per_step"], 2 * rows[1]["replica_seconds_per_step"])
        light = self.sweep("--slots", "12", "--training", "--weight-bytes", 0, "--gradient-bytes", 0)
        self.assertEqual(light[0]["replica_seconds_per_step"], 0)
        # A window of ten steps is ten steps' tokens.
        text = '{"first_step":0,"last_step":%d,"load":[[90,5,3,2,50,1,1,8]]}'
        self.load = self.write("one.jsonl", text % 0)
        one = self.sweep("--slots", "8", "--training")[0]["token_seconds_per_step"]
        self.load = self.write("ten.jsonl", text % 9)
        self.assertAlmostEqual(self.sweep("--slots", "8", "--training")[0]["token_seconds_per_step"], one / 10)

    def test_unusable_ranges_are_exit_2(self):
        for slots in ("", "8:", "8:16:0", "16:8:4", "a:b:c", "8:16:4:1", "-8:16:4", "0:16:4", "8:99999999:1",
                      "8.5:16:4"):
            with self.subTest(slots=slots):
                result = command.run("sweep", "--load", self.load, "--gpus", 4, "--slots=" + slots)
                self.assert_fails(result, 2, "--slots")
        self.assert_fails(command.run("sweep", "--load", self.load, "--gpus", 4, "--slots", "1:200000:1"), 2, "rows")
        self.assert_fails(command.run("sweep", "--load", self.load, "--gpus", 4, "--slots", "4:8:4"), 2, "4")
        self.assert_fails(command.run("sweep", "--load", self.load, "--gpus", 4, "--slots", "8:9:1", "--policy",
                                      "deepseek"), 2, "deepseek", "9 slots")
        self.assert_fails(command.run("sweep", "--load", self.directory / "no", "--gpus", 4, "--slots", "8"), 2, "no")

    def test_tables_fit_their_width(self):
        for columns in (80, 160):
            for more in ([], ["--training"]):
                for locale in ("C", "C.UTF-8"):
                    result = command.run("sweep", "--load", TRACE, "--gpus", 8, "--slots", "64:96:8", *more,
                                         environment={"COLUMNS": str(columns), "LANG": locale})
                    self.assertEqual((result.returncode, result.stderr), (0, ""))
                    self.assertTrue(result.stdout.isascii() or locale != "C")
                    self.assertLessEqual(max(map(len, result.stdout.splitlines())), columns)


if __name__ == "__main__":
    unittest.main()
