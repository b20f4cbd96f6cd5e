"""A daemon that was stopped for a while (SIGSTOP): no load window is lost, because its ranks reported all of them."""

import re
import time
import unittest

import job as harness
import raw_rank

STOPPED = 10  # seconds; a client gives its stream up after 20
LOST = re.compile(r"^(eplb_windows_given_up_total|eplb_reports_dropped_total)(\{.*\})? (\S+)$", re.M)
COMPLETE = re.compile(r"^eplb_windows_total(?:\{.*\})? (\S+)$", re.M)


class StoppedDaemonTest(harness.DaemonTest):
    def start(self, config=""):
        """Windows count once every rank reported them, and none of them leads to a decision."""
        return self.started_daemon(10**6, config=f"[report]\nevery_steps = 10\nmin_coverage = 1.0\n{config}")

    def stop_for_a_while(self, daemon):
        daemon.freeze()
        time.sleep(STOPPED)
        daemon.thaw()

    def metrics(self, daemon):
        """Windows that are complete, and all that was lost."""
        text = daemon.get("metrics")
        return float(COMPLETE.search(text)[1]), {name + labels: float(value) for name, labels, value in LOST.findall(text)
                                                 if float(value) > 0}

    def assert_complete_through(self, daemon, windows):
        harness.wait_for(lambda: self.metrics(daemon)[0] >= windows, 30, f"{windows} windows are complete")
        self.assertEqual(self.metrics(daemon)[1], {})

    def test_a_job_of_eplb_clients_loses_no_window(self):
        daemon = self.start()
        job = self.started_job(daemon.endpoint, world=4, steps=10**6, step_ms=15, extra=("--report-every", "10"))
        harness.wait_for(lambda: self.metrics(daemon)[0] > 20, 60, "windows are complete")
        self.stop_for_a_while(daemon)
        self.assert_complete_through(daemon, job.last_step() // 10 + 20)

    def test_64_ranks_lose_no_window_though_the_queue_has_two_places_for_each(self):
        daemon = self.start("[limits]\nmax_sessions_per_peer = 100\nmax_queued_events = 256\n")
        job = raw_rank.RawJob(daemon.grpc_port, "many", world=64, period=0.05).connect()
        self.addCleanup(job.close)
        job.train()
        harness.wait_for(lambda: self.metrics(daemon)[0] > 20, 60, "windows are complete")
        self.stop_for_a_while(daemon)
        self.assert_complete_through(daemon, job.step // raw_rank.WINDOW_STEPS + 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
