"""A slow GPU in a real job: the daemon names it, an operator lets decisions use its speed, and steps get shorter."""

import json
import unittest

import job as harness

WORLD = 4
SLOW = 2
FACTOR = 1.6


def step_time(load, slots):
    """Returns the load of the slowest GPUs of all layers, in tokens of a GPU that is not slow."""
    return sum(max(one * (FACTOR if gpu == SLOW else 1) for gpu, one in enumerate(gpus))
               for gpus in harness.gpu_loads(load, slots, WORLD))


class GpuSpeedsTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon(20, "eplbd", "[report]\nevery_steps = 10\n")
        self.job = self.started_job(self.daemon.endpoint, world=WORLD, steps=20000, step_ms=4,
                                    extra=("--report-every", "10", "--slow-rank", f"{SLOW}:{FACTOR}", "--stop-file",
                                           self.directory / "stop"))

    def eplbctl(self, *arguments, code=0):
        done = harness.eplbctl(*arguments, "--endpoint", self.daemon.endpoint)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done.stdout + done.stderr

    def ask(self, *arguments):
        return json.loads(self.eplbctl(*arguments, "-o", "json"))

    def events(self, name):
        return [event for event in self.ask("get", "events", "--limit", "1000")["events"] if event["name"] == name]

    def wait_for_plan(self, words):
        """The newest committed plan whose reason has these words."""
        found = []

        def look():
            plans = self.ask("get", "plans", "--limit", "1000")["plans"]
            found[:] = [plan for plan in plans if words in plan["reason"] and plan["result"] == "committed"]
            return found

        harness.wait_for(look, 60, f"a committed plan with \"{words}\"")
        return found[0]

    def test_a_slow_gpu_is_named_observed_and_then_planned_for(self):
        harness.wait_for(lambda: self.job.last_step() > 0 and self.events("gpu_slow"), 60, "the slow GPU is named")
        named = self.events("gpu_slow")
        self.assertEqual(len(named), 1)
        self.assertRegex(named[0]["reason"], rf"^GPU {SLOW} runs at 0\.6[0-9] of the median GPU: in the median of 8 windows its "
                                             r"step took .* are expected for its tokens.*gpu_speeds is observe")
        shown = self.ask("get", "jobs")["jobs"][0]["gpu_speeds"]
        self.assertEqual([(one["gpu"], one["source"], one["in_use"]) for one in shown], [(SLOW, "measured", 1)])
        self.assertIn(f"GPU {SLOW} runs at", self.eplbctl("status"))
        self.assertIn(f"GPU {SLOW} runs at", self.eplbctl("explain"))
        self.assertFalse([plan for plan in self.ask("get", "plans", "--limit", "1000")["plans"] if "speed" in plan["reason"]])
        self.assertIn("avoid_gpus names GPU 9, the job has GPUs 0..3", self.eplbctl("set", "policy", "avoid_gpus=9", code=2))
        observed = self.ask("get", "jobs")["jobs"][0]["version"]
        self.eplbctl("set", "policy", "gpu_speeds=apply")
        applied = self.wait_for_plan(f"GPU {SLOW} 0.6")
        self.eplbctl("set", "policy", "avoid_gpus=3", "gpu_speeds=off")
        avoided = self.wait_for_plan("(avoided)")
        (self.directory / "stop").touch()
        self.assertEqual(self.job.wait(120), [0] * WORLD, [path.read_text() for path in self.job.errors])
        self.check_logs(observed, applied, avoided)

    def check_logs(self, observed, applied, avoided):
        slots = {line["version"]: line["placement"]["physical_to_logical_map"]
                 for line in harness.read_lines(self.directory / "placements.jsonl")}
        loads = {line["last_step"]: line["load"] for line in harness.read_lines(self.directory / "loads.jsonl")}
        steps = [loads[step] for step in range(applied["switched_step"] + 1, applied["switched_step"] + 11) if step in loads]
        before = sum(step_time(load, slots[observed]) for load in steps)
        after = sum(step_time(load, slots[applied["last_version"]]) for load in steps)
        self.assertLess(after, 0.95 * before, "steps with the slow GPU are not shorter")
        window = [loads[step] for step in range(avoided["decided_first_step"], avoided["decided_last_step"] + 1)]
        summed = [[sum(cell) for cell in zip(*rows)] for rows in zip(*window)]
        tokens = [sum(gpus) for gpus in zip(*harness.gpu_loads(summed, slots[avoided["last_version"]], WORLD))]
        self.assertLess(tokens[3], 0.75 * sum(tokens[:3]) / 3, "the avoided GPU does not get less than the others")
        self.assertLess(tokens[3], min(tokens[:3]))
        report = harness.eplbctl("report", self.directory)
        self.assertEqual(report.returncode, 0, report.stdout + report.stderr)


if __name__ == "__main__":
    unittest.main()
