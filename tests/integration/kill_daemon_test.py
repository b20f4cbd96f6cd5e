"""The daemon is killed again and again at random moments during one job.

  EPLB_KILLS=200 EPLB_SEED=.. : how often, and the seed of the moments (printed at the start).
"""

import json
import os
import random
import sys
import time
import unittest

import job as harness


class KillDaemonTest(harness.DaemonTest):
    def test_versions_rise_and_the_final_placement_is_what_the_ranks_run(self):
        kills = int(os.environ.get("EPLB_KILLS", "200"))
        seed = int(os.environ.get("EPLB_SEED", str(random.randrange(1 << 32))))
        print(f"{kills} kills, seed {seed}", flush=True)
        moments = random.Random(seed)
        daemon = self.started_daemon(policy_every=20, config="[report]\nevery_steps = 10\n")
        job = self.started_job(daemon.endpoint, world=3, steps=1000000, step_ms=15, slots=66, parameters=2,
                               extra=("--report-every", "10", "--stop-file", self.directory / "stop"))
        job.await_commit()
        for kill in range(kills):
            time.sleep(moments.uniform(0, 1.5))
            daemon.kill()
            self.assertEqual([rank.poll() for rank in job.ranks], [None] * 3, f"after kill {kill}")
            daemon.start()
        job.await_commit(above=job.commits()[-1]["version"])
        (self.directory / "stop").touch()
        self.assertEqual(job.wait(120), [0] * 3, [path.read_text() for path in job.errors])
        self.assertEqual(daemon.stop(), 0)
        self.check(job)

    def check(self, job):
        commits = [[(c["step"], c["version"], c["digest"]) for c in job.commits(rank)] for rank in range(3)]
        self.assertEqual(commits.count(commits[0]), 3)
        versions = [version for _, version, _ in commits[0]]
        self.assertEqual(versions, sorted(set(versions)))
        result = harness.eplbctl("report", self.directory)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr)
        # The daemon's newest stored version is the ranks' version: it is asked once more.
        endpoint = self.started_daemon().endpoint
        stored = json.loads(harness.eplbctl("get", "placement", "--job", "demo", "--endpoint", endpoint, "-o", "json").stdout)
        running = harness.read_lines(self.directory / "placements.jsonl")[-1]
        self.assertEqual(running["version"], versions[-1])
        self.assertEqual(stored["version"], running["version"])
        self.assertEqual(stored["placement"]["physical_to_logical_map"], running["placement"]["physical_to_logical_map"])
        print(f"{len(versions)} versions up to {versions[-1]} in {job.last_step() + 1} steps, "
              f"{job.report()['session_waits_over_1ms']} long waits", flush=True)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
