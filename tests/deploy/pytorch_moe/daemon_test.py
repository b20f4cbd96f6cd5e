"""The example beside a real daemon: the same bits of loss, and the daemon's figures of balancedness rise."""

import json
import os
import re
import subprocess
import time
import unittest

import example  # finds the example's modules and the harness

import job as harness
import numpy as np

from placement import balancedness

STEPS = 300
# 16 experts on 4 ranks leave a permutation a choice. The router's skew is its own: nothing here makes experts hot.
SHAPE = {**example.TINY, "experts": 16, "sequences": 16, "ranks": 4}


class DaemonTest(example.ExampleTest):
    def start_daemon(self, decide_every, freeze_steps=""):
        # The policy that moves most: what is compared here is training while experts move.
        self.daemon = harness.Daemon(self.directory, policy_every=decide_every, policy="balanced",
                                     config=f'freeze_steps = "{freeze_steps}"\n[report]\nevery_steps = 10\n')
        self.daemon.start()
        self.addCleanup(lambda: self.daemon.process.poll() is None and self.daemon.kill())

    def test_loss_is_bit_equal_while_the_daemon_makes_the_ranks_even(self):
        # The static layout is watched for six windows before the first decision may be made.
        self.start_daemon(decide_every=40, freeze_steps="0:60")
        still = self.train("still", steps=STEPS)
        moved, windows = self.train_and_watch("moved")
        self.assertEqual([record["step"] for record in moved], list(range(STEPS)))
        for name in ("loss", "auxiliary_loss", "gradient_norm", "load", "static_mean_balancedness"):
            self.assertEqual([record[name] for record in moved], [record[name] for record in still], name)
        self.assertLess(still[-1]["loss"], still[0]["loss"] - 2)  # it learns

        plans = self.ask("get", "plans", "--limit", 1000)["plans"][::-1]
        switches = self.check_switches(moved, [plan for plan in plans if plan["result"] == "committed"])
        self.check_figures(moved, plans, windows)
        self.check_rise(moved, windows, switches)

    def test_replicas_that_the_daemon_places_train_as_one_expert(self):
        self.start_daemon(decide_every=20)
        common = {"steps": 60, "dtype": "float64"}
        without = self.train("without", **common)
        for name, more in (("every", {}), ("primary", {"state_in_primary": True})):
            with self.subTest(name):
                records = self.train(name, redundant=4, **self.beside_daemon(name), **more, **common)
                self.assertGreaterEqual(sum(record["switched"] for record in records), 2)
                apart = max(abs(one["loss"] - other["loss"]) / other["loss"] for one, other in zip(records, without))
                print(f"{name}: losses within {apart:.1e}")
                self.assertLessEqual(apart, 1e-10)

    def beside_daemon(self, job):
        return {"eplb": True, "endpoint": self.daemon.endpoint, "job": job}

    def train(self, name, **options):
        """returns: the records of a run's steps."""
        self.end(self.start(name, options))
        return self.records(name)

    def train_and_watch(self, name):
        """As train, beside the daemon. returns: the records, and what it said of the job's newest window, each once."""
        said = {}
        job = self.start(name, {"steps": STEPS, **self.beside_daemon(name)})
        while job.poll() is None:
            jobs = self.ask("get", "jobs")["jobs"]
            if jobs and jobs[0]["coverage"]:
                now = jobs[0]
                said[now["measured_first_step"], now["measured_last_step"]] = now["balancedness"]
            time.sleep(0.1)
        self.end(job)
        return self.records(name), said

    def start(self, name, options):
        flags = example.flags({**SHAPE, "log_json": self.directory / f"{name}.jsonl", **options})
        job = subprocess.Popen([example.PYTHON, "-B", example.EXAMPLE / "train.py", *flags], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.addCleanup(job.wait)
        self.addCleanup(job.terminate)
        self.addCleanup(job.stdout.close)
        return job

    def end(self, job):
        said, _ = job.communicate(timeout=example.TIMEOUT_SECONDS)
        self.assertEqual(job.returncode, 0, said)

    def ask(self, *arguments):
        done = subprocess.run([harness.BIN / "eplbctl", *map(str, arguments), "--endpoint", self.daemon.endpoint, "-o", "json"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def check_switches(self, moved, committed):
        """The example, the plans and the audit log tell of the same switches. returns: their steps."""
        steps = [record["step"] for record in moved if record["switched"]]
        print(f"experts moved after steps {steps}")
        self.assertGreaterEqual(len(steps), 3)
        self.assertEqual([plan["switched_step"] for plan in committed], steps)
        self.assertEqual([plan["reason"] for plan in committed], [record["reason"] for record in moved if record["switched"]])
        events = [event for event in self.ask("get", "events", "--limit", 1000)["events"] if event["name"] == "committed"]
        self.assertEqual([int(re.search(r"at step (\d+):", event["reason"])[1]) for event in events[::-1]], steps)
        for plan, step in zip(committed, steps):
            self.assertEqual((step + 1) % 8, 0, step)  # where the ranks vote
            self.assertLess(plan["decided_last_step"], step)
            # A step runs under one placement, the next one under the new.
            self.assertEqual([moved[each]["version"] for each in (step, step + 1)], [plan["base_version"], plan["last_version"]])
        return steps

    def check_figures(self, moved, plans, windows):
        """What the daemon said of each window is the balancedness of the tokens that the example counted."""
        placements = {}

        def figure(first, last, version=None):
            """Of those steps, under the placements that they ran under, or under that of `version`."""
            slots = 0
            for record in moved[first:last + 1]:
                ran = record["version"] if version is None else version
                if ran not in placements:
                    answer = self.ask("get", "placement", "--version", ran)
                    placements[ran] = np.array(answer["placement"]["physical_to_logical_map"])
                slots = slots + np.take_along_axis(np.array(record["load"]), placements[ran], axis=1)
            return balancedness(slots, SHAPE["ranks"]).mean()

        for (first, last), said in windows.items():
            self.assertEqual((first % 10, last - first), (0, 9))
            self.assertAlmostEqual(said, figure(first, last), places=9, msg=(first, last))
        self.assertGreater(len(plans), 3)
        for plan in plans:
            decided = plan["decided_first_step"], plan["decided_last_step"]
            # Measured is the mean over the windows that were decided on.
            before = np.mean([figure(first, first + 9) for first in range(decided[0], decided[1], 10)])
            self.assertAlmostEqual(plan["balancedness_before"], before, places=9, msg=plan)
            self.assertAlmostEqual(plan["balancedness_in_force"], figure(*decided, plan["base_version"]), places=9, msg=plan)

    def check_rise(self, moved, windows, switches):
        before = [said for (_, last), said in windows.items() if last <= switches[0]]
        after = [said for (first, _), said in windows.items() if first > switches[2]]
        self.assertGreaterEqual(min(len(before), len(after)), 2, windows)
        print(f"the daemon's windows: {np.mean(before):.3f} until the first switch ({len(before)} seen), "
              f"{np.mean(after):.3f} after the third ({len(after)} seen)")
        self.assertGreater(np.mean(after), np.mean(before) + 0.15)
        # With the same tokens, step by step.
        last = moved[switches[2] + 1:]
        mean, static = (np.mean([record[name] for record in last]) for name in ("mean_balancedness", "static_mean_balancedness"))
        print(f"steps {last[0]['step']}..{STEPS - 1}: {mean:.3f}, the static placement would have {static:.3f}")
        self.assertGreater(mean, static + 0.1)


if __name__ == "__main__":
    unittest.main()
