"""A daemon that is restarted again and again under a running job: no rank ends or waits, versions only rise, and the job is
balanced after each restart. With EPLB_OLD_BIN, a folder of an earlier release's programs, every second daemon is that
release's, and so are half of the ranks' runs."""

import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

import job as harness

OLD_BIN = pathlib.Path(os.environ.get("EPLB_OLD_BIN", harness.BIN))
TRACE = harness.DATA / "moe64_aux.jsonl"
PATIENCE = 120
DRAIN = 10 * harness.PATIENCE  # seconds
RANKS = 4
RESTARTS = 4


class RollingRestartTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.address = "127.0.0.1:0"

    def start_daemon(self, folder):
        daemon, listening = self.spawned("--store", self.directory / "eplbd.db", "--set", "report.every_steps=10", "--set",
                                         "policy.every_steps=10", folder=folder, listen=self.address, stderr=subprocess.DEVNULL)
        self.address = listening["grpc"]
        return daemon

    def start_run(self, folder, number):
        ranks = [subprocess.Popen([folder / "eplb-trainer", "--job", "train", "--launch-id", f"run-{number}", "--rank", str(rank), "--world",
                                   str(RANKS), "--endpoint", self.address, "--trace", TRACE, "--steps", "1000000", "--step-ms", "10",
                                   "--slots", "64", "--report-every", "10", "--log-dir", self.directory / f"run-{number}", "--report-json",
                                   self.directory / f"run-{number}" / "run.json", "--stop-file", self.directory / f"run-{number}" / "stop"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for rank in range(RANKS)]
        for rank in ranks:
            self.addCleanup(rank.wait, PATIENCE)
            self.addCleanup(rank.kill)
        return ranks

    def job(self):
        done = harness.eplbctl("get", "jobs", "-o", "json", "--endpoint", self.address)
        jobs = json.loads(done.stdout)["jobs"] if done.returncode == 0 else []
        return jobs[0] if jobs else {"state": "", "step": 0, "version": 0, "connected_ranks": 0, "commits": 0, "term": 0}

    def wait_for(self, condition, what, ranks):
        deadline = time.monotonic() + PATIENCE
        while not condition(self.job()):
            self.assertEqual([rank.poll() for rank in ranks], [None] * RANKS, "a rank ended")
            self.assertLess(time.monotonic(), deadline, f"{what}; the job is {self.job()}")
            time.sleep(0.1)
        return self.job()

    def test_training_goes_on_and_versions_rise(self):
        folders = [OLD_BIN, harness.BIN]
        daemon = self.start_daemon(folders[0])
        for number, folder in enumerate(folders):
            (self.directory / f"run-{number}").mkdir()
            ranks = self.start_run(folder, number)
            before = self.wait_for(lambda job: job["connected_ranks"] == RANKS and job["commits"] > 0, "a switch", ranks)
            for restart in range(RESTARTS):
                daemon.send_signal(signal.SIGTERM)
                self.assertEqual(daemon.wait(DRAIN), 0)
                daemon = self.start_daemon(folders[(restart + 1) % 2])
                # Balanced again: a whole window was covered, and a force would find every rank there.
                now = self.wait_for(lambda job: job["connected_ranks"] == RANKS and job["state"] not in ("RECOVERING", "LOST") and
                                    job["step"] > before["step"] + 20 and job["last_window_last_step"] > before["step"], "balancing", ranks)
                self.assertGreaterEqual(now["version"], before["version"])
                self.assertGreater(now["term"], before["term"])
                before = now
            (self.directory / f"run-{number}" / "stop").touch()
            # The ranks verify every byte after every switch; the validator reads the logs of all of them.
            self.assertEqual([rank.wait(PATIENCE) for rank in ranks], [0] * RANKS)
            report = harness.eplbctl("report", self.directory / f"run-{number}")
            self.assertEqual((report.returncode, report.stderr), (0, ""))
            run = json.loads((self.directory / f"run-{number}" / "run.json").read_text())
            self.assertEqual(run["session_waits_over_1ms"], 0)


if __name__ == "__main__":
    unittest.main()
