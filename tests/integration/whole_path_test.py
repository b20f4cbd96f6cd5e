"""The whole path between processes: daemon, ranks, placement, migration, commit, and what survives kill -9."""

import collections
import json
import os
import subprocess
import time
import unittest
import unittest.mock
import urllib.error

import job as harness


def balancedness_of(layers):
    """Mean over layers of mean / max GPU load."""
    return sum(sum(gpus) / len(gpus) / max(gpus) for gpus in layers) / len(layers)


class WholePathTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon(policy="auto", policy_every=0)

    def start_job(self, **options):
        return self.started_job(self.daemon.endpoint, **options)

    def api(self, path):
        """The parsed document; None before the job is known."""
        try:
            return json.loads(self.daemon.get(f"api/v1/{path}"))
        except urllib.error.HTTPError as error:
            self.assertEqual(error.code, 404)
            return None

    def assert_history_is_sound(self):
        """The validator of the invariants reads every rank's log, and recomputes every figure of the run."""
        result = harness.eplbctl("report", self.directory)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_ranks_switch_together_and_the_job_is_better_balanced(self):
        job = self.start_job(world=8, steps=480, step_ms=24)
        self.assertEqual(job.wait(180), [0] * 8, [path.read_text() for path in job.errors])
        self.assertEqual(job.report()["transport"], "host")
        offered = harness.eplbctl("completion", "bash", f"eplbctl explain --endpoint {self.daemon.endpoint} --job ")
        self.assertEqual(offered.stdout.split(), ["demo"])
        self.assertEqual(self.daemon.stop(), 0)
        result = harness.eplbctl("report", self.directory, "-o", "json", "--min-rebalances", 3, "--min-gain", 0.04)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr)
        report = json.loads(result.stdout)
        balancedness = report["balancedness"]
        self.assertGreaterEqual(balancedness["run"], balancedness["static"] + 0.06)
        self.assertGreaterEqual(balancedness["run"], balancedness["without_eplb"] + 0.04)
        self.assertGreaterEqual(balancedness["run"], balancedness["deepseek_same_windows"] - 0.03)
        self.assertGreater(balancedness["deepseek_hindsight"], balancedness["run"])
        self.assertGreaterEqual(report["rebalances"], 3)
        self.assertGreater(report["bytes_verified"], 0)
        commits = [[(c["step"], c["version"], c["digest"]) for c in job.commits(rank)] for rank in range(8)]
        self.assertEqual(commits.count(commits[0]), 8)
        # The last message of a rank is its Goodbye: the daemon has read all of them.
        ended = self.daemon.logged("run_ended")
        self.assertEqual(len(ended), 1)
        self.assertIn("finished", ended[0]["reason"])

    def test_what_is_shown_as_measured_is_what_the_logs_of_the_run_give(self):
        """Whatever the current placement is by now: each step counts under the one that it ran under."""
        job = self.start_job(world=4, steps=400, step_ms=12)
        shown = {}  # by steps: the job's views
        while not all(rank.poll() is not None for rank in job.ranks):
            view = self.api("jobs/demo")
            if view and view["measured_last_step"] > 0:
                steps = (view["measured_first_step"], view["measured_last_step"])
                shown.setdefault(steps, {})[view["version"]] = view
            time.sleep(0.01)
        self.assertEqual(job.wait(120), [0] * 4, [path.read_text() for path in job.errors])
        placements = harness.read_lines(self.directory / "placements.jsonl")
        loads = {line["last_step"]: line["load"] for line in harness.read_lines(self.directory / "loads.jsonl")}
        trace = json.loads((harness.DATA / "moe64_aux.jsonl").read_text().splitlines()[0])
        self.assertEqual([sum(cell) for cell in zip(*(loads[step][3] for step in range(5)))], trace["load"][3])

        def ran_under(step):
            return [p for p in placements if p["step"] <= step][-1]

        after_a_switch = of_two_placements = 0
        for (first, last), views in shown.items():
            sums = None
            for step in range(first, last + 1):
                one = harness.gpu_loads(loads[step], ran_under(step)["placement"]["physical_to_logical_map"], 4)
                sums = one if sums is None else [[a + b for a, b in zip(*pair)] for pair in zip(sums, one)]
            of_two_placements += ran_under(first)["version"] != ran_under(last)["version"]
            for version, view in views.items():
                self.assertAlmostEqual(view["balancedness"], balancedness_of(sums), delta=1e-9, msg=view)
                self.assertEqual(len(view["layer_balancedness"]), len(sums))
                after_a_switch += version > ran_under(last)["version"]
        told = harness.eplbctl("get", "jobs", "--endpoint", self.daemon.endpoint, "-o", "json")
        self.assertEqual(told.returncode, 0, told.stderr)
        job_of_command, job_of_api = json.loads(told.stdout)["jobs"][0], self.api("jobs/demo")
        for key in ("balancedness", "balancedness_static", "balancedness_predicted", "balancedness_seen",
                    "measured_first_step", "measured_last_step"):
            self.assertEqual(job_of_command[key], job_of_api[key], key)
        self.assertGreater(after_a_switch, 0, "no view was taken between a switch and the next window")
        self.assertGreater(of_two_placements, 0, "no window had a switch in it")
        for plan in self.api("jobs/demo/plans")["plans"]:
            if plan["balancedness_seen"] is None:
                continue
            steps = (plan["seen_first_step"], plan["seen_last_step"])
            self.assertEqual({ran_under(step)["version"] for step in range(steps[0], steps[1] + 1)},
                             {plan["last_version"]})
            if steps in shown:
                self.assertIn(plan["balancedness_seen"], [view["balancedness"] for view in shown[steps].values()])

    def test_a_job_that_adds_its_counts_up_reports_from_one_rank(self):
        job = self.start_job(world=3, steps=400, step_ms=5, slots=66, extra=("--reduce", "root"))
        self.assertEqual(job.wait(120), [0] * 3, [path.read_text() for path in job.errors])
        self.assertGreater(len(job.commits()), 0)
        self.assert_history_is_sound()

    def test_a_job_that_splits_each_batch_is_shown_what_its_splits_gave(self):
        job = self.start_job(world=4, steps=240, step_ms=8, extra=("--split", "batch"))
        self.assertEqual(job.wait(120), [0] * 4, [path.read_text() for path in job.errors])
        shown = self.api("jobs/demo")
        self.assertEqual((shown["split"], shown["measured_split"]), ("batch", "batch"))
        plans = {plan["plan"]: plan for plan in self.api("jobs/demo/plans")["plans"]}
        result = harness.eplbctl("report", self.directory, "-o", "json", "--min-rebalances", 1)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr)
        report = json.loads(result.stdout)
        listed = harness.eplbctl("get", "windows", "--endpoint", self.daemon.endpoint, "--limit", 1000, "-o", "json")
        windows = {(window["first_step"], window["last_step"]) for window in json.loads(listed.stdout)["windows"]}
        compared = 0
        for decision in report["decisions"]:
            plan = plans[decision["decision"]]
            self.assertEqual(plan["split"], "batch")
            # The daemon has the mean of windows, which differ in length, where a decision covers several.
            if (plan["decided_first_step"], plan["decided_last_step"]) not in windows:
                continue
            compared += 1
            # The one from the ranks' reports, the other from the counts and placements of each step.
            self.assertAlmostEqual(plan["balancedness_before"], decision["balancedness_before"], delta=1e-9)
        self.assertGreater(compared, 0, "no decision covers one window")
        self.assertGreater(report["balancedness"]["run"], report["balancedness"]["equal_shares"] + 0.02)
        explained = harness.eplbctl("explain", "--endpoint", self.daemon.endpoint)
        self.assertIn("objective: exact split per batch", explained.stdout)

    def test_frozen_experts_move_beside_the_steps(self):
        """The daemon is killed and started again meanwhile: rows that move do not wait for it."""
        job = self.start_job(world=4, steps=400, step_ms=10, extra=("--frozen",))
        harness.wait_for(lambda: job.commits(), 60, "the first commit")
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(job.wait(120), [0] * 4, [path.read_text() for path in job.errors])
        self.assert_history_is_sound()
        lines = [line for line in job.history(0) if line["event"] == "boundary" and line["outcome"] != "not agreed"]
        outcomes = collections.Counter(line["outcome"] for line in lines)
        self.assertEqual(outcomes["committed"], len(job.commits()))
        self.assertLessEqual(outcomes["begun"] - outcomes["committed"], 1, "the run may end between two votes")
        self.assertEqual(set(outcomes), {"begun", "committed"}, outcomes)
        for begun, committed in zip(lines[::2], lines[1::2]):
            self.assertEqual((begun["outcome"], committed["outcome"]), ("begun", "committed"))
            self.assertEqual((begun["step"] + 8, begun["version"]), (committed["step"], committed["version"]))
            self.assertEqual([span["name"] for span in committed["spans"]], ["transfer", "check", "second vote", "commit"])

    def test_a_rank_that_is_killed_while_rows_move_beside_the_steps(self):
        job = self.start_job(world=4, steps=4000, step_ms=10, extra=("--frozen",))
        harness.wait_for(lambda: any(line.get("outcome") == "begun" for line in job.history(1)), 60, "rows that move")
        job.ranks[2].kill()
        codes = job.wait(60)
        self.assertEqual(codes[2], -9)
        for rank in (0, 1, 3):
            self.assertEqual(codes[rank], 1, job.errors[rank].read_text())
        doctor = harness.eplbctl("doctor", "--run", self.directory)
        self.assertEqual(doctor.returncode, 0, doctor.stdout + doctor.stderr)


class CommandLineTest(harness.DaemonTest):
    def run_binary(self, *command):
        return subprocess.run([harness.BIN / command[0], *map(str, command[1:])], capture_output=True, text=True,
                              timeout=60 * harness.PATIENCE)

    def test_an_unreachable_daemon_is_exit_3_with_one_line(self):
        result = self.run_binary("eplbctl", "status", "--endpoint", f"127.0.0.1:{harness.free_port()}")
        self.assertEqual((result.returncode, result.stdout), (3, ""))
        self.assertEqual(result.stderr.count("\n"), 1)

    def test_experts_on_a_gpu_that_is_not_there_are_exit_1_with_one_line(self):
        for asked, what, without in (
                (("--transport", "peer"), "--transport peer implies --expert-memory gpu, but", "--transport host"),
                (("--expert-memory", "gpu"), "--expert-memory gpu, but", "--expert-memory host")):
            with unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
                result = self.run_binary("eplb-trainer", "--rank", 0, "--world", 1, "--steps", 1, "--rendezvous",
                                         "127.0.0.1:1", "--trace", harness.DATA / "moe64_aux.jsonl", *asked)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertRegex(result.stderr, f"^eplb-trainer: rank 0: {what} there is no GPU to put the experts on: "
                                            f".*; {without} needs none\n$")

    def test_binaries_tell_their_version(self):
        for name in ("eplbctl", "eplb-trainer", "eplbd"):
            result = self.run_binary(name, "--version")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertRegex(result.stdout, rf"^{name} \d+\.\d+\.\d+.*\n$")

    def test_a_missing_trace_is_exit_2_naming_the_file(self):
        result = self.run_binary("eplb-trainer", "--rank", 0, "--world", 1, "--trace", "/nonexistent/trace.jsonl",
                                 "--steps", 1, "--rendezvous", f"127.0.0.1:{harness.free_port()}")
        self.assertEqual(result.returncode, 2)
        self.assertIn("/nonexistent/trace.jsonl", result.stderr)

    def test_a_job_without_a_daemon_runs_on_the_static_layout(self):
        job = self.started_job(f"127.0.0.1:{harness.free_port()}", world=3, steps=30, step_ms=0, slots=66,
                               extra=("--rendezvous", f"127.0.0.1:{harness.free_port()}"))
        self.assertEqual(job.wait(60), [0, 0, 0], [path.read_text() for path in job.errors])
        self.assertEqual(job.report()["summary"]["switches"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
