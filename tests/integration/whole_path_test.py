"""The whole path between processes: daemon, ranks, placement, migration, commit, and what survives kill -9."""

import collections
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request

import job as harness


def gpu_loads(load, slots, num_gpus):
    """Tokens of each GPU in each layer, computed from the maps alone."""
    layers = []
    for tokens, experts in zip(load, slots):
        replicas = collections.Counter(experts)
        per_gpu = len(experts) // num_gpus
        layers.append([sum(tokens[e] / replicas[e] for e in experts[g * per_gpu:(g + 1) * per_gpu])
                       for g in range(num_gpus)])
    return layers


def balancedness_of(layers):
    """Mean over layers of mean / max GPU load."""
    return sum(sum(gpus) / len(gpus) / max(gpus) for gpus in layers) / len(layers)


def balancedness(load, slots, num_gpus):
    return balancedness_of(gpu_loads(load, slots, num_gpus))


class WholePathTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon()

    def start_job(self, **options):
        return self.started_job(self.daemon.endpoint, **options)

    def api(self, path):
        """The parsed document; None before the job is known."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.http_port}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            self.assertEqual(error.code, 404)
            return None

    def eplbctl(self, *arguments):
        return harness.eplbctl(*arguments)

    def assert_history_is_sound(self):
        """The validator of the invariants reads every rank's log, and recomputes every figure of the run."""
        result = self.eplbctl("report", self.directory)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_ranks_switch_together_and_the_job_is_better_balanced(self):
        job = self.start_job(world=8, steps=480, step_ms=12)
        self.assertEqual(job.wait(180), [0] * 8, [path.read_text() for path in job.errors])
        self.assertEqual(job.report()["transport"], "host")
        self.assertEqual(self.daemon.stop(), 0)
        result = self.eplbctl("report", self.directory, "-o", "json", "--min-rebalances", 3, "--min-gain", 0.06)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr)
        report = json.loads(result.stdout)
        balancedness = report["balancedness"]
        self.assertGreaterEqual(balancedness["run"], balancedness["static"] + 0.08)
        self.assertGreaterEqual(balancedness["run"], balancedness["without_eplb"] + 0.06)
        self.assertGreaterEqual(balancedness["run"], balancedness["deepseek_same_windows"] - 0.01)
        self.assertGreater(balancedness["deepseek_hindsight"], balancedness["run"])
        self.assertGreaterEqual(report["rebalances"], 3)
        self.assertGreater(report["bytes_verified"], 0)
        commits = [[(c["step"], c["version"], c["digest"]) for c in job.commits(rank)] for rank in range(8)]
        self.assertEqual(commits.count(commits[0]), 8)
        # The last message of a rank is its Goodbye: the daemon has read all of them.
        ended = [event for event in self.daemon.events() if event.get("event") == "run_ended"]
        self.assertEqual(len(ended), 1)
        self.assertIn("finished", ended[0]["reason"])

    def test_reported_balancedness_is_that_of_the_logged_placements(self):
        job = self.start_job(world=4, steps=240, step_ms=8)
        self.assertEqual(job.wait(120), [0] * 4, [path.read_text() for path in job.errors])
        placements = harness.read_lines(self.directory / "placements.jsonl")
        loads = harness.read_lines(self.directory / "loads.jsonl")
        steps = job.report()["steps"]
        self.assertEqual(len(loads), 240)
        self.assertGreater(len(placements), 1)
        for load, step in zip(loads, steps):
            placement = [p for p in placements if p["step"] <= step["step"]][-1]
            offline = balancedness(load["load"], placement["placement"]["physical_to_logical_map"], 4)
            self.assertAlmostEqual(step["balancedness"], offline, delta=1e-9)
            self.assertEqual(step["version"], placement["version"])
        recorded = [0] * 64
        for load in loads[:5]:
            recorded = [a + b for a, b in zip(recorded, load["load"][3])]
        trace = json.loads((harness.DATA / "moe64_aux.jsonl").read_text().splitlines()[0])
        self.assertEqual(recorded, trace["load"][3])

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

        def ran_under(step):
            return [p for p in placements if p["step"] <= step][-1]

        after_a_switch = of_two_placements = 0
        for (first, last), views in shown.items():
            sums = None
            for step in range(first, last + 1):
                one = gpu_loads(loads[step], ran_under(step)["placement"]["physical_to_logical_map"], 4)
                sums = one if sums is None else [[a + b for a, b in zip(*pair)] for pair in zip(sums, one)]
            of_two_placements += ran_under(first)["version"] != ran_under(last)["version"]
            for version, view in views.items():
                self.assertAlmostEqual(view["balancedness"], balancedness_of(sums), delta=1e-9, msg=view)
                self.assertEqual(len(view["layer_balancedness"]), len(sums))
                after_a_switch += version > ran_under(last)["version"]
        told = self.eplbctl("get", "jobs", "--endpoint", self.daemon.endpoint, "-o", "json")
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

    def test_training_outlives_a_killed_daemon_and_versions_go_on(self):
        job = self.start_job(world=4, steps=1500, step_ms=8)
        harness.wait_for(lambda: job.commits(), 60, "a first commit")
        self.daemon.kill()
        before = max(line["version"] for line in job.commits())
        steps_when_killed = max(line.get("last_step", 0) for line in job.history(0))
        harness.wait_for(lambda: max(line.get("last_step", 0) for line in job.history(0)) > steps_when_killed + 16, 30,
                         "training goes on without the daemon")
        self.daemon.start()
        harness.wait_for(lambda: any(line["version"] > before for line in job.commits()), 60,
                         "a commit after the daemon came back")
        self.assertEqual(job.wait(120), [0] * 4, [path.read_text() for path in job.errors])
        versions = [line["version"] for line in job.commits()]
        self.assertEqual(versions, sorted(set(versions)))
        self.assert_history_is_sound()

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
        result = self.eplbctl("report", self.directory, "-o", "json", "--min-rebalances", 1)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr)
        report = json.loads(result.stdout)
        for decision in report["decisions"]:
            plan = plans[decision["decision"]]
            self.assertEqual(plan["split"], "batch")
            # The one from the ranks' reports, the other from the counts and placements of each step.
            self.assertAlmostEqual(plan["balancedness_before"], decision["balancedness_before"], delta=1e-9)
        self.assertGreater(report["balancedness"]["run"], report["balancedness"]["equal_shares"] + 0.02)
        explained = self.eplbctl("explain", "--endpoint", self.daemon.endpoint)
        self.assertIn("objective: exact split per batch", explained.stdout)

    def test_a_killed_rank_ends_the_others_with_its_name(self):
        job = self.start_job(world=4, steps=4000, step_ms=10)
        harness.wait_for(lambda: job.commits(), 60, "a first commit")
        job.ranks[2].kill()
        codes = job.wait(60)
        for rank in (0, 1, 3):
            self.assertEqual(codes[rank], 1, job.errors[rank].read_text())
            self.assertRegex(job.errors[rank].read_text(), r"ranks? 2\b")
        harness.wait_for(lambda: any(e.get("event") == "run_ended" for e in self.daemon.events()), 30,
                         "the daemon ends the run")
        ended = [e for e in self.daemon.events() if e.get("event") == "run_ended"]
        self.assertRegex(ended[0]["reason"], r"rank 2\b")

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
        doctor = self.eplbctl("doctor", "--run", self.directory)
        self.assertEqual(doctor.returncode, 0, doctor.stdout + doctor.stderr)

    def test_status_and_placement_answer_while_the_job_runs(self):
        job = self.start_job(world=4, steps=4000, step_ms=10)
        harness.wait_for(lambda: job.commits(), 60, "a first commit")
        status = self.eplbctl("status", "--endpoint", self.daemon.endpoint, "-o", "json")
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertEqual(json.loads(status.stdout)["jobs"][0]["job"], "demo")
        placement = self.eplbctl("get", "placement", "--job", "demo", "--endpoint", self.daemon.endpoint, "-o", "json")
        self.assertEqual(placement.returncode, 0, placement.stderr)
        self.assertEqual(json.loads(placement.stdout)["placement"]["num_slots"], 72)
        unknown = self.eplbctl("get", "placement", "--job", "nobody", "--endpoint", self.daemon.endpoint)
        self.assertEqual((unknown.returncode, unknown.stdout), (5, ""))
        for path, code in (("livez", 200), ("readyz", 200)):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.http_port}/{path}", timeout=10) as answer:
                self.assertEqual(answer.status, code)
        job.kill_all()


class CommandLineTest(unittest.TestCase):
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

    def test_a_broken_config_is_exit_2_naming_the_key(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write("[policy]\nevery_stepz = 5\n")
            config.flush()
            result = self.run_binary("eplbd", "--check-config", "--config", config.name)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("every_stepz", result.stderr)

    def test_an_empty_path_of_the_config_is_exit_2(self):
        result = self.run_binary("eplbd", "--check-config", "--config", "")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(result.stderr, "eplbd: --config has an empty value\n")

    def test_the_daemon_tells_its_keys_and_its_manual_page(self):
        told = self.run_binary("eplbd", "--help-config")
        self.assertEqual((told.returncode, told.stderr), (0, ""))
        self.assertRegex(told.stdout, "\npolicy.min_gain  EPLB_POLICY_MIN_GAIN\n    Least fall (?s:.*?)\\.\n"
                                      "    a number in 0..1; default 0.01\n")
        self.assertIn("--help-config", self.run_binary("eplbd", "--help").stdout)
        page = self.run_binary("eplbd", "--man")
        self.assertEqual(page.returncode, 0)
        self.assertIn("\n.B \\-\\-check\\-config\n", page.stdout)

    def test_an_unknown_variable_is_a_warning_of_the_check_and_the_log(self):
        with unittest.mock.patch.dict(os.environ, EPLB_POLCY_NAME="x", EPLB_TLS_SERVER_NAME="y"):
            result = self.run_binary("eplbd", "--check-config")
            self.assertEqual(result.returncode, 0)
            self.assertRegex(result.stdout, "^no file: ok, .* from variables and flags\n$")
            self.assertIn("eplbd: warning: EPLB_POLCY_NAME: eplbd has no such variable, "
                          "did you mean EPLB_POLICY_NAME?\n", result.stderr)
            self.assertNotIn("SERVER_NAME", result.stderr)
            with tempfile.TemporaryDirectory(prefix="eplb-test-") as directory:
                daemon = harness.Daemon(directory)
                daemon.start()
                daemon.kill()
                told = [event["reason"] for event in daemon.events() if event["event"] == "unknown_variable"]
        self.assertEqual(len([reason for reason in told if reason.startswith("EPLB_POLCY_NAME: ")]), 1, told)

    def test_the_first_line_is_json_whatever_the_address_holds(self):
        with tempfile.TemporaryDirectory(prefix="eplb-test-") as directory:
            address = f'unix:{directory}/u"q/s.sock'
            pathlib.Path(directory, 'u"q').mkdir()
            daemon = subprocess.Popen([harness.BIN / "eplbd", "--listen", address, "--http", "127.0.0.1:0", "--store",
                                       "memory"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            try:
                self.assertEqual(json.loads(daemon.stdout.readline())["grpc"], address)
            finally:
                daemon.kill()
                daemon.communicate()

    def test_a_missing_trace_is_exit_2_naming_the_file(self):
        result = self.run_binary("eplb-trainer", "--rank", 0, "--world", 1, "--trace", "/nonexistent/trace.jsonl",
                                 "--steps", 1, "--rendezvous", f"127.0.0.1:{harness.free_port()}")
        self.assertEqual(result.returncode, 2)
        self.assertIn("/nonexistent/trace.jsonl", result.stderr)

    def test_a_job_without_a_daemon_runs_on_the_static_layout(self):
        with tempfile.TemporaryDirectory(prefix="eplb-test-") as directory:
            rendezvous = f"127.0.0.1:{harness.free_port()}"
            job = harness.Job(directory, f"127.0.0.1:{harness.free_port()}", world=3, steps=30, step_ms=0, slots=66,
                              extra=("--rendezvous", rendezvous))
            try:
                self.assertEqual(job.wait(60), [0, 0, 0], [path.read_text() for path in job.errors])
            finally:
                job.kill_all()
            self.assertEqual(job.report()["summary"]["switches"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
