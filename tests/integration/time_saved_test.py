"""Every view of one run reports the same time saved against one slot per expert."""

import json
import pathlib
import re
import sys
import time
import unittest

import job as harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client/python"))
from eplb import demo  # noqa: E402

TOKEN_NS = 1000
WINDOW = 10
GPUS = 4


def peak_without_eplb(layers):
    """Tokens of the fullest GPU, summed over layers: the experts in order, equally many on each GPU."""
    return sum(max(sum(tokens[first:first + len(tokens) // GPUS]) for first in range(0, len(tokens), len(tokens) // GPUS))
               for tokens in layers)


def added(loads):
    return [[sum(cell) for cell in zip(*layer)] for layer in zip(*loads)]


class TimeSavedTest(harness.DaemonTest):
    def run_job(self, split, mode):
        """Returns the answers of the daemon and /metrics after a run, and its run.json."""
        config = f'mode = "{mode}"\n[cost]\ntoken_ns = {TOKEN_NS}\n'
        daemon = self.started_daemon(config=config)
        job = self.started_job(daemon.endpoint, world=GPUS, steps=200, step_ms=15,
                               extra=("--split", split, "--report-every", str(WINDOW)))
        self.assertEqual(job.wait(120), [0] * GPUS, [path.read_text() for path in job.errors])
        harness.wait_for(lambda: json.loads(daemon.get("api/v1/jobs/demo"))["measured_last_step"] == 199, 30, "the last window is measured")
        self.windows = json.loads(daemon.get("api/v1/jobs/demo/windows?limit=100"))["windows"]
        self.plans = json.loads(daemon.get("api/v1/jobs/demo/plans?limit=100"))["plans"]
        return json.loads(daemon.get("api/v1/jobs/demo")), daemon.get("metrics"), job.report()

    def eplbctl(self, *arguments):
        result = harness.eplbctl(*arguments)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return json.loads(result.stdout)

    def loads(self):
        return [line["load"] for line in harness.read_lines(self.directory / "loads.jsonl")]

    def test_a_run_that_splits_its_batches_and_moves_experts(self):
        job, metrics, run = self.run_job("batch", "apply")
        self.assertGreater(len(run["switches"]), 0)
        peaks = sum(step["peak_tokens"] for step in run["steps"])
        without = sum(step["peak_tokens_without_eplb"] for step in run["steps"])
        self.assertEqual(without, sum(map(peak_without_eplb, self.loads())))
        saved = 1 - peaks / without
        self.assertGreater(saved, 0)
        self.assertAlmostEqual(run["summary"]["time_saved"], saved, delta=1e-12)
        # Each step was one batch, so that the windows of the daemon have the peaks of the steps.
        self.assertAlmostEqual(job["saved_seconds"], (without - peaks) * TOKEN_NS * 1e-9 - job["spent_seconds"], delta=1e-6)
        self.assertAlmostEqual(float(re.search(r'^eplb_saved_seconds{.*} (\S+)$', metrics, re.M)[1]), job["saved_seconds"], delta=1e-9)
        page = self.directory / "report.html"
        report = self.eplbctl("report", self.directory, "--window-steps", WINDOW, "--html", page, "-o", "json")
        self.assertAlmostEqual(report["time_saved"], saved, delta=1e-12)
        plans = {plan["plan"]: plan["pause_seconds"] for plan in self.plans}
        for decision in report["decisions"]:
            self.assertAlmostEqual(decision["pause_seconds"], plans[decision["decision"]], delta=1e-6)
        self.assertAlmostEqual(report["time"]["pause_seconds"], job["spent_seconds"], delta=1e-6)
        documents = json.loads(re.search(r'id="eplb-documents">(.*?)</script>', page.read_text(), re.S)[1])["paths"]
        self.assertAlmostEqual(documents["api/v1/jobs/demo"]["peak_fall"], saved, delta=1e-12)
        reported = {(one["first_step"], one["last_step"]): one for one in documents["api/v1/jobs/demo/windows"]["windows"]}
        # A busy daemon asks for longer windows than those of the page.
        both = [one for one in self.windows if (one["first_step"], one["last_step"]) in reported]
        self.assertGreater(len(both), 0)
        for measured in both:
            shown = reported[measured["first_step"], measured["last_step"]]
            # Ranks split the static layout's shares in whole tokens, the page does not.
            for key, delta in (("balancedness", 1e-9), ("balancedness_without_eplb", 1e-9), ("balancedness_static", 1e-4)):
                self.assertAlmostEqual(shown[key], measured[key], delta=delta, msg=f"{key} of steps {measured['first_step']}..")

    def test_a_run_that_never_leaves_the_static_layout(self):
        """Spare slots in the static layout double the first experts, wherever the load is."""
        job, _, _ = self.run_job("equal", "observe")
        loads = self.loads()
        self.assertEqual([one["first_step"] for one in self.windows], [0, *(one["last_step"] + 1 for one in self.windows[:-1])])
        windows = [added(loads[one["first_step"]:one["last_step"] + 1]) for one in self.windows]
        static = 0
        for load in windows:
            slots = [expert % len(load[0]) for expert in range(72)]
            static += sum(max(sum(tokens[expert] / slots.count(expert) for expert in slots[first:first + 18])
                              for first in range(0, 72, 18)) for tokens in load)
        self.assertAlmostEqual(job["saved_seconds"], (sum(map(peak_without_eplb, windows)) - static) * TOKEN_NS * 1e-9, delta=1e-6)
        trace = self.directory / "trace.jsonl"
        trace.write_text("".join(json.dumps({"first_step": one["first_step"], "last_step": one["last_step"], "load": load}) + "\n"
                                 for one, load in zip(self.windows, windows)))
        replayed = self.eplbctl("replay", "--trace", trace, "--gpus", GPUS, "--slots", 72, "--policy", "incremental",
                                "--min-gain", 1, "--token-ns", TOKEN_NS, "-o", "json")
        self.assertEqual([one["rebalanced"] for one in replayed["windows"]], [False] * len(windows))
        self.assertAlmostEqual(replayed["summary"]["seconds_saved"], job["saved_seconds"], delta=1e-6)
        for measured, one in zip(self.windows, replayed["windows"]):
            for key in ("balancedness", "balancedness_static", "balancedness_without_eplb"):
                self.assertAlmostEqual(one[key], measured[key], delta=1e-9, msg=f"{key} of steps {measured['first_step']}..")

    def test_every_view_has_the_same_number_also_after_kills_of_the_daemon(self):
        """Without cost.token_ns: the step times of the job price its tokens."""
        daemon = self.started_daemon()
        job = self.started_job(daemon.endpoint, world=GPUS, steps=800, step_ms=15,
                               extra=("--split", "batch", "--report-every", str(WINDOW)))
        job.await_commit()
        job.await_steps(200)
        self.assertEqual(harness.eplbctl("pause", "--endpoint", daemon.endpoint).returncode, 0, "an order is written with the account")
        before = json.loads(daemon.get("api/v1/jobs/demo"))
        self.assertIsNotNone(before["saved_seconds"], before["saved_basis"])
        daemon.kill()
        daemon.start()
        seen = [before]
        while any(rank.poll() is None for rank in job.ranks):
            seen.append(json.loads(daemon.get("api/v1/jobs/demo")))
            self.assertIsNotNone(seen[-1]["saved_seconds"], seen[-1]["saved_basis"])
            gross = [one["saved_seconds"] + one["spent_seconds"] for one in seen]
            # New samples from a busy machine move a price that is not certain yet.
            self.assertGreaterEqual(gross[-1], 0.75 * max(gross), (gross, seen[-1]["saved_basis"]))
            time.sleep(0.05)
        self.assertEqual(job.wait(120), [0] * GPUS, [path.read_text() for path in job.errors])
        harness.wait_for(lambda: json.loads(daemon.get("api/v1/jobs/demo"))["state"] == "FINISHED", 30, "the job is FINISHED")
        after = self.views(daemon)
        self.assertGreater(after["saved_seconds"], before["saved_seconds"])
        self.assertIn("fullest GPUs of each batch against one slot per expert", after["saved_basis"])
        # A busy machine can leave the slope of the step times uncertain.
        self.assertRegex(after["saved_basis"], "from the step times of|assumes that experts take half of a step")
        daemon.kill()
        daemon.start()
        self.assertEqual(self.views(daemon), after)

    def views(self, daemon):
        """The figure, which the page's API, metrics, status, report and the demonstration's last screen have alike."""
        job = json.loads(daemon.get("api/v1/jobs/demo"))
        status = json.loads(harness.eplbctl("status", "-o", "json", "--endpoint", daemon.endpoint).stdout)["jobs"][0]
        report = self.eplbctl("report", "--job", "demo", "-o", "json", "--endpoint", daemon.endpoint)
        self.assertEqual({one["saved_seconds"] for one in (job, status, report)}, {job["saved_seconds"]})
        self.assertEqual({one["saved_basis"] for one in (job, status, report)}, {job["saved_basis"]})
        metric = float(re.search(r'^eplb_saved_seconds{.*} (\S+)$', daemon.get("metrics"), re.M)[1])
        self.assertAlmostEqual(metric, job["saved_seconds"], delta=1e-9)
        about = "about " if job["saved_is_assumed"] else ""
        seconds = job["saved_seconds"]
        text = f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
        for words in (("status",), ("report", "--job", "demo")):
            first = harness.eplbctl(*words, "--endpoint", daemon.endpoint).stdout.splitlines()[0]
            self.assertTrue(first.startswith(f"demo: {about}{text} saved, net of pauses of "), first)
        screen = demo._saved(report, 1.0)
        self.assertTrue(screen.startswith(f"saved     {about}{job['saved_seconds']:.1f} s") and screen.endswith(job["saved_basis"]), screen)
        return {key: job[key] for key in ("saved_seconds", "saved_basis", "spent_seconds")}


if __name__ == "__main__":
    unittest.main(verbosity=2)
