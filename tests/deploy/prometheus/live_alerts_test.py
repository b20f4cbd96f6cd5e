"""Every alert that is shipped fires by its real fault, at real daemons and a real Prometheus, and clears where the fault ends.

All faults are there at once, each at a job or a daemon of its own. Only `for:` and the intervals are shorter than what is
shipped. Alerts on what happened within a time, which the rules name in brackets, clear after that time: alerts_test.yml has
their end.
"""

import re
import resource
import subprocess
import sys
import threading
import time
import unittest

from prometheus import RULES, Prometheus, needs_prometheus, rules_in

import job as harness
import raw_rank
import tls_test

WELL = "well"
# Deadlines so short that a state is stuck within seconds. Job `changing` decides nothing in its first 5 seconds: a rule sees a
# counter rise only after a first scrape.
CONFIG = """[report]
every_steps = 10
[limits]
prepare_deadline = "1s"
voting_deadline = "1s"
cancel_deadline = "1s"
session_grace = "1h"
[jobs.poor]
mode = "observe"
[jobs.worse]
mode = "observe"
[jobs.changing]
freeze_steps = "0:500"
"""
WITHIN = re.compile(r"\[\d+[smhd]\]")  # a rule on what happened within a time


def rank_of_a_process(port, job, world):
    """Rank world - 1 of a job as a process of its own: its stream stays open until the process is killed."""
    rank = raw_rank.RawRank(int(port), job, "run-1", int(world) - 1, int(world), {14: 0}, None)
    rank.welcomed.wait(60)
    print("welcome", flush=True)
    rank.ended.wait()


@needs_prometheus
class LiveAlertsTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemons = {name: self.daemon(name) for name in ("jobs", "store", "down")}
        authority = tls_test.Authority(self.directory)
        authority.sign("server", "DNS:localhost,IP:127.0.0.1", days=13)
        self.renew = lambda: authority.sign("server", "DNS:localhost,IP:127.0.0.1", days=365)
        self.daemons["tls"] = self.daemon("tls", tls_test.CONFIG.format(self.directory))
        rules = self.directory / "alerts.yml"
        text, count = re.subn(r"^( +for:) .*$", r"\1 1s", RULES.read_text(), flags=re.M)
        text = text.replace(">= 2\n", ">= 1\n")  # misses of predictions: a run of seconds has one
        self.assertGreaterEqual(count, 8)
        rules.write_text(text)
        self.prometheus = Prometheus(self.directory, [self.address(name) for name in self.daemons], rules)
        self.addCleanup(self.prometheus.close)
        self.prometheus.wait_until_ready()
        self.expected = {}  # alert -> the job or the daemon of its fault

    def daemon(self, name, config=None):
        daemon = harness.Daemon(self.directory, 10, name, CONFIG)
        if config is not None:
            daemon.config.write_text(config)
        daemon.start()
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.kill())
        return daemon

    def address(self, name):
        return f"127.0.0.1:{self.daemons[name].http_port}"

    def job(self, name, daemon="jobs", **options):
        job = raw_rank.RawJob(self.daemons[daemon].grpc_port, name, **options)
        self.addCleanup(job.close)
        return job

    def eplbctl(self, *words):
        subprocess.run([harness.BIN / "eplbctl", *words, "--endpoint", self.daemons["jobs"].endpoint], check=True,
                       capture_output=True, timeout=60)

    def wait_for(self, condition, seconds, what):
        """Waits as the harness does, once a second, and reports the alerts that fire instead."""
        deadline = time.monotonic() + seconds * harness.PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what()}; what fires: {sorted(self.prometheus.firing())}")
            time.sleep(1)

    def break_daemons(self):
        """Returns what mends each of them."""
        daemon = self.daemons["store"]
        self.job("disk", "store", uneven=True, on_proposal=raw_rank.ready_alike).connect().train()
        unlimited = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (1, unlimited[1]))
        self.expected |= {"EplbNotReady": self.address("store"), "EplbStoreErrors": self.address("store")}
        self.daemons["down"].kill()
        self.expected |= {"EplbDown": self.address("down"), "EplbCertificateExpires": self.address("tls")}
        return [lambda: resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, unlimited), self.daemons["down"].start,
                self.renew]

    def break_plans(self):
        """Proposals that end badly: ranks with different plans, and a rank that answers neither proposal nor cancel."""
        apart = self.job("apart", uneven=True, on_proposal=raw_rank.ready_with_a_plan_of_its_own).connect().train()
        mute = self.job("mute", uneven=True).connect().train()
        for rank in mute.ranks.values():
            rank.deaf = True
        self.expected |= {"EplbQuarantine": "apart", "EplbStuck": "mute"}

        def end_quarantine():
            for rank in apart.ranks.values():
                rank.on_proposal = raw_rank.ready_alike
            self.eplbctl("resume", "--job", "apart")

        def speak():
            self.eplbctl("pause", "--job", "mute")  # no more proposals, which no rank would answer
            for rank in mute.ranks.values():
                rank.deaf = False
                for version in rank.cancelled:
                    rank.failed(version, raw_rank.CANCELLED)

        return [end_quarantine, speak]

    def break_ranks(self):
        """Ranks that are killed, that are silent, that have a twin, or that are refused."""
        killed = self.job("killed", world=3)
        command = [sys.executable, "-B", __file__, "--rank", str(killed.port), "killed", "3"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, 10)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "welcome\n")
        killed.connect([0, 1]).train()
        silent = self.job("silent", world=4).connect()
        self.job("twins").connect().train()
        twin = self.job("twins", run_id="run-b", world=1)
        again = self.job("again").connect().train()
        self.wait_for(lambda: len(self.prometheus.query('eplb_job_step{training_job=~"again|twins"} > 0')) == 2, 30,
                      lambda: "jobs train")
        silent.train().silent = {1}
        twin.connect()
        again.finish()
        self.wait_for(lambda: self.prometheus.query('eplb_plan_state{training_job="again",state="FINISHED"}'), 30,
                      lambda: "job again is FINISHED")
        self.job("again").connect()
        process.kill()
        self.expected |= {"EplbRanksMissing": "killed", "EplbLowCoverage": "silent", "EplbStalled": "twins",
                          "EplbRanksRefused": "again"}

        def start_again():
            killed.hang()
            killed.drop()
            self.job("killed", run_id="run-2", world=3).connect().train()

        return [start_again, silent.silent.clear, twin.drop]

    def break_balance(self):
        """Jobs that only observe, one worse than without EPLB, one that counts no tokens, and one whose load changes with the
        switch.
        """
        poor = self.job("poor", uneven=True).connect().train()

        # The first prediction of a run has no error to miss: what follows it gives the second one its error.
        switches = []

        def change(job):
            switches.append(job)
            if len(switches) == 1:
                timer = threading.Timer(4, lambda: job.counts.__setitem__(slice(None), [10] * 6 + [30, 30]))
                self.addCleanup(timer.cancel)
                timer.start()
            else:
                job.counts[:] = [1000] + [0] * 7  # one GPU of four has all tokens, whatever the placement

        changing = self.job("changing", world=4, on_switch=change)
        changing.counts = [30, 30] + [10] * 6
        changing.connect().train()
        # Without EPLB each GPU has 80 tokens; the spare slots of experts 0 and 1 are both on GPU 1.
        worse, loser = self.job("worse"), self.job("loser")
        for job in (worse, loser):
            job.counts = [80, 0, 0, 80]
            job.connect(hello=dict(zip((8, 10), raw_rank.static_layout(2, spare=1)))).train()
        uncounted = self.job("uncounted")
        uncounted.counts[:] = [0] * 4
        uncounted.connect().train()
        self.expected |= {"EplbPoorBalance": "poor", "EplbPredictionsMiss": "changing", "EplbWorseThanWithout": "worse",
                          "EplbTimeLost": "loser", "EplbNotCounting": "uncounted"}
        # Lost time stays lost until the run ends.
        return [loser.finish, *(lambda job=job: job.counts.__setitem__(slice(None), [10] * 4) for job in (poor, worse, uncounted))]

    def test_every_alert_fires_by_its_fault_and_clears(self):
        self.job(WELL).connect().train()
        begin = time.monotonic()
        mends = self.break_daemons() + self.break_plans() + self.break_ranks() + self.break_balance()
        shipped = rules_in(RULES.read_text())
        self.assertEqual(set(self.expected), set(shipped))
        wanted = set(self.expected.items())
        self.wait_for(lambda: wanted <= self.prometheus.firing(), 60, lambda: f"{sorted(wanted - self.prometheus.firing())} fire")
        print(f"all {len(wanted)} alerts fire after {time.monotonic() - begin:.1f} s", flush=True)
        for mend in mends:
            mend()
        ends = {(name, cause) for name, cause in wanted if not WITHIN.search(shipped[name]["expr"])}
        self.assertEqual(len(wanted - ends), 3)
        self.wait_for(lambda: not ends & self.prometheus.firing(), 60, lambda: f"{sorted(ends & self.prometheus.firing())} clear")
        print(f"{len(ends)} of them have cleared after {time.monotonic() - begin:.1f} s", flush=True)
        ever = self.prometheus.query('count by (alertname) (last_over_time(ALERTS{training_job="well",alertstate="firing"}[10m]))')
        self.assertEqual(ever, [], "a healthy job raised an alert")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        sys.exit(rank_of_a_process(*sys.argv[2:]))
    unittest.main(verbosity=2)
