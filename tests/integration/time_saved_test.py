"""Every view of one run reports the same time saved against one slot per expert."""

import json
import re
import unittest

import job as harness

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
        self.assertAlmostEqual(job["saved_seconds"], (without - peaks) * TOKEN_NS * 1e-9, delta=1e-6)
        self.assertAlmostEqual(float(re.search(r'^eplb_saved_seconds{.*} (\S+)$', metrics, re.M)[1]), job["saved_seconds"], delta=1e-9)
        page = self.directory / "report.html"
        report = self.eplbctl("report", self.directory, "--window-steps", WINDOW, "--html", page, "-o", "json")
        self.assertAlmostEqual(report["time_saved"], saved, delta=1e-12)
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
