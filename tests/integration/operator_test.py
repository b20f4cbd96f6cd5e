"""An operator beside a running job: every command that asks or changes, against real processes."""

import json
import unittest

import job as harness


class OperatorTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon(40, "eplbd", "[report]\nevery_steps = 20\n")
        self.job = self.started_job(self.daemon.endpoint, world=3, steps=3000, step_ms=5, slots=66,
                                    extra=("--report-every", "20", "--stop-file", self.directory / "stop"))

    def ask(self, *arguments, code=0):
        """Returns eplbctl's answer as JSON; as text if it must fail."""
        done = harness.eplbctl(*arguments, "--endpoint", self.daemon.endpoint, "-o", "json")
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return json.loads(done.stdout) if done.stdout else done.stderr

    def status(self):
        return self.ask("get", "jobs")["jobs"][0]

    def plans(self):
        return self.ask("get", "plans", "--limit", 100)["plans"]

    def wait_until_idle(self):
        harness.wait_for(lambda: self.status()["state"] == "IDLE", 60, "IDLE")

    def test_an_operator_sees_and_changes_a_running_job(self):
        self.job.await_commit()
        self.look()
        self.pause_and_refusals()
        self.assertIn("ranks connected", self.ask("forget", self.status()["job"], code=6))
        self.roll_back()
        self.observe_then_force()
        (self.directory / "stop").touch()
        self.assertEqual(self.job.wait(120), [0, 0, 0], [path.read_text() for path in self.job.errors])
        doctor = harness.eplbctl("doctor", "--run", self.directory)
        self.assertEqual(doctor.returncode, 0, doctor.stdout)
        actors = {event["name"]: event["actor"] for event in self.ask("get", "events", "--limit", 1000)["events"]}
        for verb in ("pause", "resume", "rollback", "set_policy", "rebalance", "refused"):
            self.assertRegex(actors.get(verb, ""), r"^[^@]+@[^@]+ \(claimed\)$", verb)
        self.both_sides_say_the_same()
        self.the_report_tells_operators_from_the_balancer()
        self.forget()

    def forget(self):
        ended = self.status()
        self.assertEqual((ended["state"], ended["ending"], ended["waiting_for"]), ("FINISHED", "finished", ""))
        self.daemon.stop()
        self.daemon.start()
        again = self.status()
        for key in ("state", "ending", "end_reason", "waiting_for", "world_size", "step", "run_id"):
            self.assertEqual(again[key], ended[key], key)
        job = ended["job"]
        self.assertIn("no job is named", self.ask("forget", code=2))
        self.assertIn("forgotten by ", self.ask("forget", job, "--comment", "done with it")["outcome"])
        self.ask("forget", "--job", job, code=5)
        self.assertEqual(self.ask("get", "jobs")["jobs"], [])
        self.assertEqual(self.ask("get", "events", "--job", job)["events"][0]["name"], "forget")

    def both_sides_say_the_same(self):
        """eplbctl and /api/v1 write the same objects: equal keys, equal values. The job has ended, so only ages differ."""
        def fetch(path):
            return json.loads(self.daemon.get(f"api/v1/jobs{path}"))

        def without_ages(jobs):
            for one in jobs["jobs"]:
                del one["state_seconds"]
                for rank in one["ranks"]:
                    del rank["away_seconds"]
            return jobs

        self.maxDiff = None
        self.assertEqual(without_ages(self.ask("get", "jobs", "--ranks")), without_ages(fetch("")))
        job = self.status()["job"]
        plans = self.ask("get", "plans", "--limit", 1000)
        self.assertGreater(len(plans["plans"]), 1)
        self.assertEqual(plans, fetch(f"/{job}/plans?limit=1000"))
        events = self.ask("get", "events", "--limit", 1000)
        self.assertGreater(len(events["events"]), 5)
        self.assertEqual(events, fetch(f"/{job}/events?limit=1000"))
        self.assertEqual(self.ask("get", "ranks")["ranks"][0].keys(), fetch(f"/{job}")["ranks"][0].keys())
        self.assertEqual(self.ask("get", "placement"), fetch(f"/{job}/placement"))

    def the_report_tells_operators_from_the_balancer(self):
        """A rollback is a decision of its own, and what was paused or observed is left out of the comparison."""
        (self.directory / "events.json").write_text(json.dumps(self.ask("get", "events", "--limit", 1000)))
        done = harness.eplbctl("report", self.directory, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual({action["name"] for action in report["operators"]["actions"]},
                         {"pause", "resume", "rollback", "set_policy", "rebalance"})
        self.assertEqual({stretch["why"] for stretch in report["operators"]["held_back"]}, {"paused", "observed only"})
        self.assertLess(report["comparison"]["steps"], report["steps"] - report["first_switch_step"])
        numbers = [decision["decision"] for decision in report["decisions"]]
        self.assertEqual(numbers, sorted(set(numbers)))
        back = [decision for decision in report["decisions"] if decision["policy"] == "rollback"]
        self.assertEqual(len(back), 1)
        self.assertNotEqual(back[0]["asked_by"], "")
        self.assertEqual(report["rebalances"], len(numbers) - 1)

    def look(self):
        harness.wait_for(lambda: self.ask("explain")["switched"], 60, "a plan with a committed chunk")
        plan = self.ask("explain")["switched"]
        self.assertIn("peak", plan["reason"])
        # Not its prediction, which comes from earlier windows and may lie below what this one measured.
        self.assertGreater(plan["peak_fall"], 0)
        layer = self.ask("explain", "--layer", 0, "--expert", 3)
        self.assertEqual(len(layer["gpu_loads"]), 3)
        self.assertEqual(len(self.ask("get", "ranks")["ranks"]), 3)
        self.assertGreater(self.ask("diff", f"v{plan['base_version']}", "now", code=8)["transfers"], 0)
        self.assertTrue(self.ask("doctor")["healthy"])
        self.assertIn("gpu_loads", self.ask("explain", "--layer", 1))
        self.assertEqual(self.ask("top")["job"], self.status()["job"])

    def pause_and_refusals(self):
        self.ask("pause", "--request-id", "p-1", "--comment", "night")
        self.wait_until_idle()
        self.assertTrue(self.status()["paused"])
        self.assertIn("night", self.status()["pause_reason"])
        self.assertIn("p-1", self.ask("pause", "--request-id", "p-1", code=6))
        self.assertIn("version", self.ask("resume", "--expect-version", 999, code=6))
        plans = len(self.plans())
        self.job.await_steps(100)
        self.assertEqual(len(self.plans()), plans)

    def roll_back(self):
        before = self.ask("explain")["switched"]["base_version"]
        version = self.status()["version"]
        self.ask("rollback", "--to", before)
        self.job.await_commit(above=version)
        self.wait_until_idle()
        self.ask("diff", f"v{before}", "now", code=0)
        self.assertTrue(self.status()["paused"])
        self.ask("rollback", "--to", 987654, code=5)

    def observe_then_force(self):
        self.ask("set", "policy", "mode=observe", "every_steps=20")
        self.assertEqual(self.status()["policy"]["mode"], "observe")
        self.ask("resume")
        commits = len(self.job.commits())
        harness.wait_for(lambda: self.plans()[0]["result"] == "observed", 60, "an observed plan")
        self.assertIn("would", self.plans()[0]["reason"])
        self.assertEqual(len(self.job.commits()), commits)
        version = self.status()["version"]
        self.ask("set", "policy", "mode=apply", "every_steps=100000")
        self.wait_until_idle()
        self.ask("rebalance", "--force")
        self.job.await_commit(above=version)
        self.assertIn("expected", self.ask("set", "policy", "min_gain=7", code=2))


if __name__ == "__main__":
    unittest.main()
