"""The fault matrix: what must hold when daemon, ranks, network or messages fail, one test per row.

Every test ends with the validator over every rank's history (`eplbctl report`): no version lost or doubled, no step
under two digests. fault_matrix.md says which rows are held by other tests; FaultTableTest holds that table.
"""

import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import unittest

import job as harness

ROOT = pathlib.Path(__file__).resolve().parents[2]


class FaultMatrixTest(harness.DaemonTest):
    def start_daemon(self, policy_every=40, name="eplbd", config=""):
        return self.started_daemon(policy_every, name, f"[report]\nevery_steps = 20\n{config}")

    def start_job(self, endpoint, world=3, steps=600, step_ms=5, slots=66, extra=(), directory=None, **options):
        job = harness.Job(directory or self.directory, endpoint, world=world, steps=steps, step_ms=step_ms, slots=slots,
                          extra=("--report-every", "20", *extra), **options)
        self.addCleanup(job.kill_all)
        return job

    def start_chaos(self, target, *faults):
        chaos = harness.Chaos(target, *faults)
        self.addCleanup(chaos.close)
        return chaos

    def assert_finished_and_sound(self, job, codes=None):
        """The job ended well, the validator agrees, and the training threads never waited for the session."""
        self.assertEqual(job.wait(120), codes or [0] * len(job.ranks), [path.read_text() for path in job.errors])
        self.assert_sound()
        self.assertEqual(job.report()["session_waits_over_1ms"], 0)

    def assert_sound(self, directory=None, ended_early=False):
        """ended_early: what the report says about the end of a run that was to fail is no violation."""
        result = harness.eplbctl("report", directory or self.directory)
        problems = result.stdout.partition("Not verified")[2].splitlines()[1:]
        if ended_early:
            expected = r"ended early|steps, \d+ were asked for|no byte .* was verified|does not end with a stop"
            problems = [line for line in problems if not re.search(expected, line)]
        self.assertIn(result.returncode, (0, 8), result.stderr)
        self.assertEqual(problems, [])

    def test_row_01_daemon_killed_while_idle(self):
        daemon = self.start_daemon(policy_every=100000)  # one decision, then idle
        job = self.start_job(daemon.endpoint)
        job.await_commit()
        harness.wait_for(lambda: len(job.commits()) >= daemon.events("proposed")[-1]["version"], 30, "every chunk")
        before = job.last_step()
        daemon.kill()
        job.await_steps(50)
        daemon.start()
        self.assert_finished_and_sound(job)
        seconds = [step["seconds"] for step in job.report()["steps"]]
        alive, dead = seconds[max(0, before - 40):before], seconds[before + 8:before + 48]
        self.assertLess(statistics.median(dead), 2 * statistics.median(alive), "the median step without a daemon")

    def test_row_02_daemon_dies_with_a_proposal_in_flight(self):
        daemon = self.start_daemon()
        # Votes are far apart, so that the kill comes before, while and after every rank is PREPARED.
        job = self.start_job(daemon.endpoint, steps=600, extra=("--vote-every", "20"))
        seen = 0
        for _ in range(2):
            harness.wait_for(lambda: len(daemon.events("proposed")) > seen, 60, "a proposal")
            daemon.kill()
            seen = len(daemon.events("proposed"))
            job.await_steps(20)
            daemon.start()
        self.assert_finished_and_sound(job)
        versions = [line["version"] for line in job.commits()]
        self.assertEqual(versions, sorted(set(versions)))

    def test_row_03_daemon_never_returns(self):
        daemon = self.start_daemon()
        job = self.start_job(daemon.endpoint, steps=400)
        job.await_commit()
        daemon.kill()
        self.assert_finished_and_sound(job)
        self.assertEqual(job.report()["steps"][-1]["version"], job.commits()[-1]["version"])

    def test_row_04_a_corrupt_store_is_moved_aside_and_the_ranks_tell_what_runs(self):
        daemon = self.start_daemon()
        job = self.start_job(daemon.endpoint, steps=800)
        version = job.await_commit()
        daemon.kill()
        daemon.damage_store()
        daemon.start()
        self.assertEqual(len([path for path in self.directory.glob("eplbd.db.corrupt-*")]), 1)
        # An operator may have stopped the job before: it waits until one has looked.
        harness.wait_for(lambda: daemon.events("unknown_job_paused"), 20, "the job is paused")
        harness.wait_for(lambda: len(daemon.events("released")) > 1, 20, "all ranks are back")
        resumed = harness.eplbctl("resume", "--endpoint", daemon.endpoint)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        job.await_commit(above=version)
        self.assert_finished_and_sound(job)

    def test_row_05_a_full_disk_stops_proposals_and_nothing_else(self):
        daemon = self.start_daemon()
        job = self.start_job(daemon.endpoint, steps=1000)
        version = job.await_commit()
        daemon.fill_disk()
        harness.wait_for(lambda: daemon.ready()[0] == 503, 20, "/readyz says 503")
        self.assertIn("store", daemon.ready()[1])
        job.await_steps(60)
        status = harness.eplbctl("status", "--endpoint", daemon.endpoint, "-o", "json")
        self.assertEqual((status.returncode, json.loads(status.stdout)["ready"]), (0, False))
        commits = len(job.commits())
        daemon.free_disk()
        harness.wait_for(lambda: daemon.ready()[0] == 200, 20, "/readyz says 200")
        harness.wait_for(lambda: len(job.commits()) > commits, 60, f"a commit after version {version}")
        self.assert_finished_and_sound(job)

    def test_row_06_a_daemon_of_a_lower_term_is_refused(self):
        newer, older = self.start_daemon(name="newer"), None
        for _ in range(2):  # the term rises at each start
            newer.kill()
            newer.start()
        older = self.start_daemon(name="older")
        chaos = self.start_chaos(newer.endpoint)
        job = self.start_job(chaos.endpoint, steps=500)
        version = job.await_commit()
        # The ranks reach the older daemon at the same address: it must outbid their term before it speaks.
        chaos.say("cut")
        port = chaos.endpoint
        chaos.process.kill()
        chaos.process.wait(10)
        again = subprocess.Popen([harness.BIN / "eplb-chaos", "--listen", port, "--to", older.endpoint],
                                 stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.addCleanup(lambda: (again.stdin.close(), again.wait(10)))
        job.await_commit(above=version)
        self.assert_finished_and_sound(job)
        led, = json.loads(older.get("api/v1/jobs"))["jobs"]
        self.assertGreater(led["term"], max(event["term"] for event in newer.events("proposed")))

    def test_row_08_a_crashed_rank_ends_the_run_and_the_next_one_goes_on(self):
        daemon = self.start_daemon()
        first = self.start_job(daemon.endpoint, steps=5000)
        version = first.await_commit()
        first.ranks[1].kill()
        codes = first.wait(60)
        self.assertEqual((codes[0], codes[2]), (1, 1))
        for rank in (0, 2):
            self.assertRegex(first.errors[rank].read_text(), r"ranks? 1\b")
        self.assertRegex(daemon.logged("run_ended")[0]["reason"], r"rank 1\b")
        version = max(version, *(line["version"] for line in first.commits()))
        second = self.start_job(daemon.endpoint, steps=400)
        second.await_commit(above=version)
        self.assert_finished_and_sound(second)

    def test_row_09_a_hung_rank_is_named_and_nobody_is_killed(self):
        daemon = self.start_daemon(policy_every=20, config='[limits]\nvoting_deadline = "1s"\n')
        job = self.start_job(daemon.endpoint, steps=400, rank_extra={2: ("--hang-at-step", "150")})
        self.assert_finished_and_sound(job)
        self.assertEqual(daemon.logged("run_ended")[-1]["reason"].count("finished"), 1)
        self.assertGreater(len([step for step in job.report()["steps"] if step["seconds"] > 2.5]), 0)

    def test_row_10_a_frozen_rank_does_not_hold_up_another_job(self):
        daemon = self.start_daemon()
        frozen = self.start_job(daemon.endpoint, steps=5000, world=2, slots=64, extra=("--job", "frozen"))
        frozen.await_commit()
        os.kill(frozen.ranks[1].pid, signal.SIGSTOP)
        other = pathlib.Path(self.directory / "other")
        other.mkdir()
        running = self.start_job(daemon.endpoint, world=2, steps=300, slots=66, directory=other)
        running.await_commit()
        self.assertEqual(running.wait(60), [0, 0])
        os.kill(frozen.ranks[1].pid, signal.SIGCONT)
        frozen.await_steps(20)
        frozen.kill_all()

    def test_row_11_a_straggler_in_prepare_is_cancelled_and_backed_off(self):
        daemon = self.start_daemon(policy_every=20, config='[limits]\nprepare_deadline = "1s"\n')
        chaos = self.start_chaos(daemon.endpoint)
        stop = self.directory / "stop"
        # Windows of 0.4 s: a report that is 1 s late still completes its window, so decisions go on.
        job = self.start_job(daemon.endpoint, steps=20000, step_ms=20, endpoints={2: chaos.endpoint},
                             extra=("--rendezvous", f"127.0.0.1:{harness.free_port()}", "--stop-file", stop))
        job.await_commit()
        chaos.say("delay 1s")
        self.assertRegex(daemon.logged("cancelling")[0]["reason"], r"within 1s it still waited for .*rank 2\b")
        chaos.say("clear")
        stop.touch()
        self.assert_finished_and_sound(job)

    def test_row_16_lost_and_cut_streams_lose_no_outcome(self):
        daemon = self.start_daemon()
        chaos = self.start_chaos(daemon.endpoint, "jitter 20ms")
        job = self.start_job(chaos.endpoint, steps=450, extra=("--rendezvous", f"127.0.0.1:{harness.free_port()}"))
        job.await_commit()
        for _ in range(4):
            chaos.say("cut")
            job.await_steps(16)
        job.await_commit(above=job.commits()[-1]["version"])
        self.assert_finished_and_sound(job)

    def test_row_18_corrupted_bytes_end_streams_and_nothing_else(self):
        # One decision before the corruption and none during it: bytes without TLS have no checksum, and a digest that was
        # corrupted in an Applied is a QUARANTINE, as any other digest that differs.
        daemon = self.start_daemon(policy_every=400)
        chaos = self.start_chaos(daemon.endpoint)
        stop = self.directory / "stop"
        # A rank whose bytes were refused comes back within 30 s: the job lasts until all have.
        job = self.start_job(chaos.endpoint, steps=20000,
                             extra=("--rendezvous", f"127.0.0.1:{harness.free_port()}", "--stop-file", stop))
        job.await_commit()
        harness.wait_for(lambda: any(re.search(r"chunk (\d+) of \1\)", event["reason"]) for event in daemon.events("committed")),
                         30, "all chunks of the decision committed")
        version = max(line["version"] for line in job.commits())
        chaos.say("corrupt 0.1")
        job.await_steps(60)  # a second: the ranks' back-off stays short
        chaos.say("clear")
        chaos.say("cut")
        job.await_commit(above=version)
        stop.touch()
        self.assert_finished_and_sound(job)
        self.assertIsNone(daemon.process.poll())

    def test_row_22_fork_in_the_trainer(self):
        daemon = self.start_daemon()
        job = self.start_job(daemon.endpoint, steps=350, extra=("--fork-at-step", "60"))
        job.await_steps(70)
        version = job.commits()[-1]["version"] if job.commits() else 0
        job.await_commit(above=version)  # the parent's stream still works
        self.assert_finished_and_sound(job)

    def test_row_23_only_what_is_displayed_reads_the_wall_clock(self):
        allowed = {"server/process/log.cc", "server/runner/effect_executor.cc", "base/monotonic_clock.h",
                   "server/etcd/client.cc", "server/rpc/balancer.cc", "server/rpc/rpc_server.cc", "server/store/opening.cc"}
        for path in sorted((ROOT / "server").rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".cc", ".h") and name not in allowed and not name.startswith("server/http/"):
                self.assert_no_wall_clock(path)
        for path in sorted((ROOT / "client").rglob("*.cc")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(("client/rows/", "client/boundary", "client/session/connection", "client/session/session.cc")):
                self.assert_no_wall_clock(path)

    def assert_no_wall_clock(self, path):
        code = re.sub(r"#ifdef __SANITIZE_THREAD__.*?#else", "", path.read_text(), flags=re.S)
        found = re.findall(r"absl::Now\(|system_clock|gettimeofday", code)
        self.assertEqual(found, [], path)

    def test_row_24_a_smaller_job_after_a_node_is_lost(self):
        daemon = self.start_daemon()
        first = self.start_job(daemon.endpoint, world=4, slots=64, steps=5000)
        version = first.await_commit()
        for rank in first.ranks[2:]:
            rank.kill()
        self.assertEqual(first.wait(60)[:2], [1, 1])
        version = max(version, *(line["version"] for line in first.commits()))
        other = self.directory / "smaller"
        other.mkdir()
        second = self.start_job(daemon.endpoint, world=2, slots=64, steps=400, directory=other)
        second.await_commit(above=version)
        self.assertEqual(second.wait(60), [0, 0], [path.read_text() for path in second.errors])
        self.assert_sound(ended_early=True)
        self.assert_sound(other)

    def test_waits_daemon_frozen_by_a_stop_signal(self):
        daemon = self.start_daemon()
        job = self.start_job(daemon.endpoint, steps=450)
        version = job.await_commit()
        daemon.freeze()
        job.await_steps(100)
        daemon.thaw()
        job.await_commit(above=version)
        self.assert_finished_and_sound(job)

    def test_waits_daemon_behind_a_slow_network(self):
        daemon = self.start_daemon()
        chaos = self.start_chaos(daemon.endpoint, "delay 50ms", "jitter 30ms", "rate 200000")
        job = self.start_job(chaos.endpoint, steps=350, extra=("--rendezvous", f"127.0.0.1:{harness.free_port()}"))
        job.await_commit()
        chaos.say("stall on")
        job.await_steps(60)
        chaos.say("clear")
        self.assert_finished_and_sound(job)


class FaultTableTest(unittest.TestCase):
    """fault_matrix.md: every row names tests that exist."""

    def rows(self):
        text = (ROOT / "tests/integration/fault_matrix.md").read_text()
        return re.findall(r"^\| (\d+) \| ([^|]*) \| ([^|]*) \|$", text, re.M)

    def test_every_row_is_there_once(self):
        self.assertEqual([int(number) for number, _, _ in self.rows()], list(range(1, 46)))

    def known_tests(self):
        """Names of ctest, and BINARY.SUITE.TEST of each gtest binary that this build has."""
        build = pathlib.Path(os.environ["EPLB_BUILD"])
        listed = subprocess.run(["ctest", "-N", "--test-dir", build], capture_output=True, text=True, check=True,
                                timeout=120 * harness.PATIENCE)
        known = set(re.findall(r"Test +#\d+: (\S+)", listed.stdout))
        for binary in {name.split(".")[0] for name in known if (build / "tests" / name.split(".")[0]).is_file()}:
            tests = subprocess.run([build / "tests" / binary, "--gtest_list_tests"], capture_output=True, text=True, check=True,
                                   timeout=60 * harness.PATIENCE).stdout
            for line in tests.splitlines():
                name = line.split("#")[0].rstrip()
                if not name.startswith(" "):
                    suite = name
                known.add(f"{binary}.{suite}{name.strip()}")
        return known

    def test_every_named_test_exists(self):
        known = self.known_tests()
        self.assertGreater(len(known), 100)
        programs = {name.split(".")[0] for name in known}
        is_partial = bool((pathlib.Path(os.environ["EPLB_BUILD"]) / "tests/left_out.txt").read_text().strip())
        for number, fault, tests in self.rows():
            names = re.findall(r"`([^`]+)`", tests)
            self.assertTrue(names, f"row {number}, {fault}: no test")
            for name in names:
                if is_partial and name.split(".")[0] not in programs:
                    continue  # this configuration does not build the program
                self.assertTrue(name in known, f"row {number}, {fault}: there is no test {name}")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
