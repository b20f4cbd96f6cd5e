"""The daemon is killed again and again at random moments during one job.

  EPLB_KILLS=200 EPLB_SEED=.. : how often, and the seed of the moments (printed at the start).
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest

import job as harness


class KillDaemonTest(unittest.TestCase):
    def test_versions_rise_and_the_final_placement_is_what_the_ranks_run(self):
        kills = int(os.environ.get("EPLB_KILLS", "200"))
        seed = int(os.environ.get("EPLB_SEED", str(random.randrange(1 << 32))))
        print(f"{kills} kills, seed {seed}", flush=True)
        moments = random.Random(seed)
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-kill-")))
        daemon = harness.Daemon(directory, policy_every=20, config="[report]\nevery_steps = 10\n")
        daemon.start()
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.kill())
        job = harness.Job(directory, daemon.endpoint, world=3, steps=1000000, step_ms=15, slots=66, parameters=2,
                          extra=("--report-every", "10", "--stop-file", str(directory / "stop")))
        self.addCleanup(job.kill_all)
        harness.wait_for(job.commits, 60, "a first commit")
        for kill in range(kills):
            time.sleep(moments.uniform(0, 1.5))
            daemon.kill()
            self.assertEqual([rank.poll() for rank in job.ranks], [None] * 3, f"after kill {kill}")
            daemon.start()
        newest = job.commits()[-1]["version"]
        harness.wait_for(lambda: job.commits()[-1]["version"] > newest, 60, "a commit after the last kill")
        (directory / "stop").write_text("")
        self.assertEqual(job.wait(120), [0] * 3, [path.read_text() for path in job.errors])
        self.assertEqual(daemon.stop(), 0)
        self.check(directory, job)

    def check(self, directory, job):
        commits = [[(c["step"], c["version"], c["digest"]) for c in job.commits(rank)] for rank in range(3)]
        self.assertEqual(commits.count(commits[0]), 3)
        versions = [version for _, version, _ in commits[0]]
        self.assertEqual(versions, sorted(set(versions)))
        result = harness.eplbctl("report", directory)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr)
        # The daemon's newest stored version is the ranks' version: it is asked once more.
        daemon = harness.Daemon(directory)
        daemon.start()
        try:
            placement = subprocess.run(
                [harness.BIN / "eplbctl", "get", "placement", "--job", "demo", "--endpoint", daemon.endpoint, "-o", "json"],
                capture_output=True, text=True, timeout=60 * harness.PATIENCE, check=True)
        finally:
            daemon.kill()
        stored = json.loads(placement.stdout)
        running = harness.read_lines(directory / "placements.jsonl")[-1]
        self.assertEqual(running["version"], versions[-1])
        self.assertEqual(stored["version"], running["version"])
        self.assertEqual(stored["placement"]["physical_to_logical_map"], running["placement"]["physical_to_logical_map"])
        print(f"{len(versions)} versions up to {versions[-1]} in {job.last_step() + 1} steps, "
              f"{job.report()['session_waits_over_1ms']} long waits", flush=True)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
