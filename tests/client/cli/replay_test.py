"""eplbctl replay: constant loads, no peeking, costs, malformed input, tables."""

import json
import math
import unittest

import command

TRACE = command.DATA / "moe64_aux.jsonl"
ROW = {"window", "balancedness_without_eplb", "balancedness_static", "balancedness", "rebalanced", "reason", "transfers",
       "bytes", "migration_seconds"}
SUMMARY = {"balancedness_without_eplb_mean", "balancedness_static_mean", "balancedness_mean", "transfers", "bytes",
           "seconds_without_eplb", "seconds_saved", "seconds_spent"}


def lines(loads, steps=10):
    return "".join(json.dumps({"first_step": t * steps, "last_step": t * steps + steps - 1, "load": load}) + "\n"
                   for t, load in enumerate(loads))


def assert_finite(case, value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            assert_finite(case, item)
    elif isinstance(value, float):
        case.assertTrue(math.isfinite(value))


BALANCED = ("--policy", "balanced")


class ReplayTest(command.CommandTest):
    def replay(self, trace, *arguments):
        policy = () if "--policy" in arguments else BALANCED
        result = command.run("replay", trace, *policy, *arguments, "-o", "json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        replayed = json.loads(result.stdout)
        assert_finite(self, replayed)
        return replayed

    def recorded(self, count):
        return TRACE.read_text().splitlines(keepends=True)[:count]

    def test_with_exact_splits_flow_is_ahead_and_no_window_is_below_equal_shares(self):
        trace = self.write("trace.jsonl", "".join(self.recorded(96)))
        shape = ("--gpus", 8, "--slots", 72, "--every", 8, "--history", 6, "--min-gain", 0)
        flow, incremental = (self.replay(trace, *shape, "--policy", policy, "--split", "batch")
                             for policy in ("flow", "incremental"))
        self.assertGreater(flow["summary"]["balancedness_mean"], incremental["summary"]["balancedness_mean"] + .02)
        self.assertIn("balancedness with exact splits measured", flow["windows"][8]["reason"])
        held = self.replay(trace, *shape, "--policy", "flow", "--split", "batch", "--expert-bytes", 1 << 40)
        self.assertEqual(held["summary"]["transfers"], 0)
        self.assertIn("back-test", held["windows"][8]["reason"])

    def test_window_0_runs_the_static_layout(self):
        load = [[6, 0, 0, 0, 2, 0]]
        trace = self.write("trace.jsonl", lines([load] * 2))
        first = self.replay(trace, "--gpus", 3, "--slots", 6)["windows"][0]
        # GPU loads 6, 0, 2.
        self.assertAlmostEqual(first["balancedness_static"], 8 / 3 / 6)
        self.assertEqual((first["balancedness"], first["rebalanced"]), (first["balancedness_static"], False))
        spare = self.replay(trace, "--gpus", 1, "--slots", 9)["windows"][0]
        self.assertEqual(spare["balancedness"], 1)

    def test_keys_and_sums(self):
        trace = self.write("trace.jsonl", "".join(self.recorded(60)))
        for more in ([], ["--training", "--every", 4, "--history", 2, "--horizon-windows", 30],
                     ["--window", "ema:0.5", "--min-gain", 0.1], ["--window", "last"]):
            replayed = self.replay(trace, "--gpus", 8, "--slots", 72, "--expert-bytes", 100000, *more)
            rows, summary = replayed["windows"], replayed["summary"]
            self.assertEqual([row["window"] for row in rows], list(range(60)))
            for row in rows:
                self.assertLessEqual(ROW, set(row))
                self.assertEqual(row["bytes"], row["transfers"] * 100000)
                self.assertTrue(row["reason"])
                self.assertEqual(row["rebalanced"], row["migration_seconds"] > 0)
            self.assertLessEqual(SUMMARY, set(summary))
            self.assertEqual(summary["transfers"], sum(row["transfers"] for row in rows))
            self.assertAlmostEqual(summary["balancedness_mean"], sum(row["balancedness"] for row in rows) / 60)

    def test_the_share_saved_is_coherent_over_slot_counts(self):
        summaries = {slots: self.replay(TRACE, "--gpus", 8, "--slots", slots)["summary"] for slots in (64, 80, 96)}
        without = {(summary["seconds_without_eplb"], summary["balancedness_without_eplb_mean"])
                   for summary in summaries.values()}
        self.assertEqual(len(without), 1, "the layout without EPLB has nothing to do with --slots")
        self.assertEqual(summaries[64]["balancedness_static_mean"], summaries[64]["balancedness_without_eplb_mean"])
        self.assertEqual(summaries[64]["seconds_static"], summaries[64]["seconds_without_eplb"])
        # The replay's own times are within 6 % of each other, so that what they saved is, too.
        whole = summaries[64]["seconds_without_eplb"]
        own = [whole - summary["seconds_saved"] for summary in summaries.values()]
        self.assertLess(max(own) / min(own), 1.06)
        saved = [summary["seconds_saved"] / whole for summary in summaries.values()]
        self.assertLess(max(saved) - min(saved), 0.05)
        self.assertGreater(min(saved), 0.15)
        text = command.run("replay", "--trace", TRACE, "--gpus", 8, "--slots", 80, *BALANCED).stdout
        self.assertRegex(text, r"\n +without EPLB +replay\n")
        self.assertRegex(" ".join(text.split()), f"saved, {100 * saved[1]:.2f} % of the time without EPLB\\.")

    def test_idle_windows_are_in_no_mean(self):
        busy = [[[6, 0, 0, 0, 2, 0]], [[1, 5, 0, 2, 2, 0]], [[6, 0, 1, 0, 2, 0]]]
        idle = [[[0] * 6]] * 3
        shape = ("--gpus", 3, "--slots", 6, *BALANCED)
        alone = self.replay(self.write("busy.jsonl", lines(busy)), *shape)["summary"]
        result = command.run("replay", "--trace", self.write("both.jsonl", lines(busy + idle)), *shape, "-o", "json")
        self.assertEqual((result.returncode, result.stderr),
                         (0, "eplbctl: note: 3 of 6 windows have no tokens and are in no mean\n"))
        both = json.loads(result.stdout)
        for key in ("balancedness_mean", "balancedness_static_mean", "balancedness_without_eplb_mean", "seconds_saved"):
            self.assertEqual(both["summary"][key], alone[key], key)
        last = both["windows"][-1]
        self.assertEqual([last[key] for key in ("balancedness", "balancedness_static", "balancedness_without_eplb")], [None] * 3)
        self.assertEqual(both["summary"]["windows_without_tokens"], 3)
        nothing = self.write("idle.jsonl", lines(idle))
        none = json.loads(command.run("replay", "--trace", nothing, *shape, "-o", "json").stdout)["summary"]
        self.assertEqual([none[key] for key in ("seconds_without_eplb", "seconds_static", "seconds_saved")], [None] * 3)
        text = command.run("replay", "--trace", nothing, *shape).stdout
        self.assertIn("No window has tokens: there is nothing to compare.", text)
        self.assertNotIn("Net:", text)

    def test_a_decision_is_in_force_as_votes_and_staging_allow(self):
        trace = self.write("trace.jsonl", "".join(self.recorded(40)))  # windows of 5 steps
        shape = ("--gpus", 8, "--slots", 72, "--every", 4)
        usual = self.replay(trace, *shape)
        self.assertEqual(usual, self.replay(trace, *shape, "--vote-every", 8, "--staging", 4, "--max-pause", "200ms"))
        first = usual["windows"][4]
        self.assertEqual((first["rebalanced"], first["chunks"], first["switched_step"]), (True, 2, 22), "each of the first steps votes")
        slow = self.replay(trace, *shape, "--staging", 1)
        self.assertEqual((slow["windows"][4]["chunks"], slow["windows"][4]["switched_step"]), (8, 28))
        fast = self.replay(trace, *shape, "--vote-every", 1)
        self.assertEqual(fast["windows"][4]["switched_step"], 22)
        means = [replayed["summary"]["balancedness_mean"] for replayed in (slow, usual, fast)]
        self.assertEqual(means, sorted(means))
        self.assertIsNone(usual["windows"][0]["switched_step"])

    def test_unusable_input_is_exit_2(self):
        trace = self.write("trace.jsonl", lines([[[1, 2, 3, 4]]] * 3))
        good = ["--trace", trace, "--gpus", 2, "--slots", 4]
        for more, word in ((["--every", 0], "--every is 0"), (["--history", -1], "--history is -1"),
                           (["--horizon-windows", 0], "--horizon-windows"), (["--min-gain", "nan"], "--min-gain"),
                           (["--expert-bytes", -1], "--expert-bytes"), (["--expert-bytes", 10 ** 18], "2^50"),
                           (["--link-gbps", "450"], "INTRA,INTER"), (["--link-gbps", "0,50"], "--link-gbps"),
                           (["--link-gbps", "a,b"], "--link-gbps"), (["--token-ns", "inf"], "--token-ns"),
                           (["--token-ns", 0], "--token-ns"), (["--window", "mean"], "window rule"),
                           (["--policy", "magic"], "unknown policy"), (["--weight-bytes", 5], "--training"),
                           (["--policy", "deepseek", "--hierarchy", "soft"], "soft"),
                           (["--hierarchy", "strict", "--nodes", 2, "--groups", 3], "--nodes 2"),
                           (["--nodes", 3], "3"), (["--effort", "much"], "--effort"),
                           (["--vote-every", 0], "--vote-every is 0"), (["--staging", 0], "--staging is 0"),
                           (["--max-pause", "0s"], "--max-pause")):
            with self.subTest(more=more):
                self.assert_fails(command.run("replay", *good, *more), 2, word)
        self.assert_fails(command.run("replay", *good, "--like", "job", "--endpoint", "127.0.0.1:1"), 3, "cannot reach")
        self.assert_fails(command.run("replay", "--trace", trace, "--gpus", 2, "--slots", 3), 2, "3")
        self.assert_fails(command.run("replay", "--gpus", 2), 2, "--trace is required")
        self.assert_fails(command.run("replay", trace, "--gpus", 2 ** 31 - 1), 2, "--gpus is 2147483647")
        self.assert_fails(command.run("replay", "--trace", self.directory / "no", "--gpus", 2, "--slots", 4), 2, "no")
        torn = self.write("torn.jsonl", lines([[[1, 2]]] * 2)[:-9])
        self.assert_fails(command.run("replay", "--trace", torn, "--gpus", 2, "--slots", 2), 2, "torn.jsonl", "line 2")

    def test_links_take_units_and_say_how_they_were_read(self):
        trace = self.write("trace.jsonl", "".join(self.recorded(20)))
        good = ["--trace", trace, "--gpus", 8, "--slots", 64, "--expert-bytes", 1000000]
        bare = self.replay(*good[1:], "--link-gbps", "450,50")
        self.assertEqual(self.replay(*good[1:], "--link-gbps", "450 GB/s,400Gb/s"), bare)
        self.assertNotEqual(self.replay(*good[1:], "--link-gbps", "450,400Gb/s", "--nodes", 2),
                            self.replay(*good[1:], "--link-gbps", "450,400 GB/s", "--nodes", 2))
        table = command.run("replay", *good, "--link-gbps", "450,400Gb/s", environment={"COLUMNS": "160"})
        self.assertIn("links of 450 GB/s inside a node and 50 GB/s between nodes", table.stdout)
        self.assertEqual(table.stderr, "")
        doubtful = command.run("replay", *good, "--link-gbps", "450,400")
        self.assertEqual(doubtful.returncode, 0)
        self.assertEqual(doubtful.stderr, "eplbctl: note: --link-gbps: INTER is read as 400 GB/s; did you mean 400Gb/s = "
                                          "50 GB/s?\n")
        self.assert_fails(command.run("replay", *good, "--link-gbps", "450,50 gb/s"), 2, "400Gb/s", "--link-gbps")

    def test_auto_says_what_it_decides_on_and_that_a_history_has_no_effect(self):
        trace = self.write("trace.jsonl", "".join(self.recorded(20)))
        arguments = ["replay", "--trace", trace, "--gpus", 8, "--slots", 64, "--policy", "auto"]
        note = ("eplbctl: note: auto measures prices in the daemon; give --expert-bytes, --token-ns and --link-gbps to "
                "price moves\n")
        result = command.run(*arguments, environment={"COLUMNS": "160"})
        self.assertEqual((result.returncode, result.stderr), (0, note))
        self.assertIn("decided every window on what its back-test chose\n", result.stdout)
        priced = command.run(*arguments, "--expert-bytes", 1000)
        self.assertEqual((priced.returncode, priced.stderr), (0, ""))
        for flag, value in (("--history", 4), ("--window", "sum")):
            noted = command.run(*arguments, "--expert-bytes", 1000, flag, value)
            self.assertEqual(noted.returncode, 0)
            self.assertIn(f"note: {flag} has no effect on policy auto: its back-test", noted.stderr)
            self.assertEqual(noted.stdout, priced.stdout)
        other = command.run(*arguments[:-1], "flow", environment={"COLUMNS": "160"})
        self.assertEqual(other.stderr, "eplbctl: note: policy flow needs --split batch; without it this is incremental\n")
        self.assertIn("decided every window on the last 4 windows (sum)", other.stdout)

    def test_its_defaults_are_the_daemons(self):
        trace = self.write("trace.jsonl", "".join(self.recorded(12)))
        given = ("--trace", trace, "--gpus", 6, "--slots", 66, "--policy", "auto", "--min-gain", 0.01)
        self.assertEqual(command.run("replay", trace, "--gpus", 6).stdout, command.run("replay", *given).stdout)

    def test_one_window_is_said_to_decide_nothing(self):
        result = command.run("replay", "--trace", self.write("one.json", "[[3,1,1,1]]"), "--gpus", 2, "--slots", 4)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, "^eplbctl: note: .*one.json has 1 window, .*nothing was decided\n$")

    def test_windows_without_step_numbers_count_as_50_steps(self):
        loads = [[[9, 9, 1, 1]]] * 3
        result = command.run("replay", self.write("steps.json", json.dumps(loads)), "--gpus", 2, *BALANCED, "-o", "json")
        self.assertRegex(result.stderr, "^eplbctl: note: .*steps.json has no step numbers: each window counts as 50 steps\n$")
        rows = json.loads(result.stdout)["windows"]
        self.assertEqual(rows, self.replay(self.write("trace.jsonl", lines(loads, 50)), "--gpus", 2)["windows"])

    def test_the_table_explains_every_flat_stretch(self):
        trace = self.write("trace.jsonl", "".join(self.recorded(100)))
        arguments = ["--trace", trace, "--gpus", 8, "--slots", 64, "--expert-bytes", 44040192, *BALANCED]
        rows = json.loads(command.run("replay", *arguments, "-o", "json").stdout)["windows"]
        self.assertEqual(rows[0]["decided_by"], "nothing_due")
        rules = {row["decided_by"] for row in rows[1:]}
        self.assertLessEqual(rules, {"no_change", "min_gain", "backtest", "cost", "pays", "return", "nothing_due"})
        self.assertIn("pays", rules)
        why = command.run("replay", *arguments, environment={"COLUMNS": "200"}).stdout.split("\nWhy\n")[1]
        longest = max((len(run), run) for run in self.stretches(rows))[1]
        self.assertIn(f"windows {longest[0]}..{longest[-1]}, the last: {rows[longest[-1]]['reason'][:60]}", why)
        self.assertIn("see: eplbctl help costs", " ".join(why.split()))
        still = command.run("replay", "--trace", trace, "--gpus", 8, "--slots", 64, *BALANCED, "--min-gain", 1,
                            environment={"COLUMNS": "200"}).stdout
        self.assertIn("\nRebalances\nnone\n\nWhy\nwindows 1..99, the last: steps ", still)

    @staticmethod
    def stretches(rows):
        """Windows whose decisions came down to the same rule."""
        runs, before = [], None
        for row in rows[1:]:
            if row["rebalanced"] or row["decided_by"] != before:
                runs.append([])
            runs[-1].append(row["window"])
            before = None if row["rebalanced"] else row["decided_by"]
        return [run for run in runs if not rows[run[0]]["rebalanced"]]

    def test_a_refused_shape_names_policy_and_window(self):
        trace = self.write("trace.jsonl", lines([[[1, 2, 3, 4]]] * 3))
        self.assert_fails(command.run("replay", "--trace", trace, "--gpus", 2, "--slots", 5, "--policy", "deepseek"), 2,
                          trace, "window 1", "deepseek")

    def test_tables_fit_their_width(self):
        trace = self.write("trace.jsonl", "".join(self.recorded(60)))
        for columns in (80, 160):
            for more in ([], ["--expert-bytes", 100000, "--training"], ["--min-gain", 1]):
                for locale in ("C", "C.UTF-8"):
                    result = command.run("replay", trace, "--gpus", 8, "--slots", 72, *BALANCED, *more,
                                         environment={"COLUMNS": str(columns), "LANG": locale})
                    self.assertEqual((result.returncode, result.stderr), (0, ""))
                    self.assertEqual(result.stdout.isascii(), locale == "C")
                    self.assertLessEqual(max(map(len, result.stdout.splitlines())), columns)
                    self.assertIn("balancedness", result.stdout)


if __name__ == "__main__":
    unittest.main()
