"""Runs of one job that start at the same time, and a job that knows two daemons.

  rendezvous_test.py PairsTest --pairs 200 --seed 7 : how many pairs (10), and the seed of their order (printed)
"""

import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

import job as harness

PAIRS = 10
SEED = random.randrange(1 << 32)
WORLD = 2
TRACE = harness.DATA / "moe64_aux.jsonl"
SHARED = "two runs share the launch id"


class Run:
    """The ranks of one run, not yet started."""

    def __init__(self, directory, endpoint, trace, launch_id):
        self.directory = directory
        directory.mkdir()
        self.commands = [
            [harness.TRAINER, "--rank", str(rank), "--world", str(WORLD), "--endpoint", endpoint, "--job", "twins",
             "--trace", trace, "--steps", "20", "--parameters", "16", "--log-dir", directory]
            for rank in range(WORLD)]
        self.environment = {key: value for key, value in os.environ.items() if key != "EPLB_LAUNCH_ID"}
        if launch_id:
            self.environment["EPLB_LAUNCH_ID"] = launch_id
        self.processes = {}

    def start(self, rank):
        self.processes[rank] = subprocess.Popen(self.commands[rank], env=self.environment, text=True, stdout=subprocess.DEVNULL,
                                                stderr=subprocess.PIPE)

    def end(self):
        """Exit code and stderr of each rank."""
        said = {rank: process.communicate(timeout=100 * harness.PATIENCE)[1] for rank, process in self.processes.items()}
        return {rank: (self.processes[rank].returncode, said[rank]) for rank in sorted(said)}

    def kill(self):
        for process in self.processes.values():
            process.kill()
            process.communicate()

    def run_ids(self):
        """Returns the run of each rank that started."""
        lines = {rank: harness.read_lines(self.directory / f"rank-{rank}.jsonl") for rank in range(WORLD)}
        return {rank: said[0]["run_id"] for rank, said in lines.items() if said}


class PairsTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon()
        # Another load of the same shape, so that nothing but the rendezvous tells its ranks apart.
        self.traces = (TRACE, self.directory / "other.jsonl")
        windows = [json.loads(line) for line in TRACE.read_text().splitlines()]
        for window in windows:
            window["load"] = [layer[::-1] for layer in window["load"]]
        self.traces[1].write_text("".join(json.dumps(window) + "\n" for window in windows))

    def test_no_rank_ever_meets_one_of_another_launch(self):
        print(f"{PAIRS} pairs, seed {SEED}", flush=True)
        order = random.Random(SEED)
        outcomes = collections.Counter()
        for pair in range(PAIRS):
            kind = ("own ids", "no ids", "one id")[pair % 3]
            ids = {"own ids": (f"a{pair}", f"b{pair}"), "no ids": ("", ""), "one id": (f"c{pair}", f"c{pair}")}[kind]
            runs = [Run(self.directory / f"{pair}-{i}", self.daemon.endpoint, self.traces[i], ids[i]) for i in range(2)]
            starts = [(run, rank) for run in runs for rank in range(WORLD)]
            order.shuffle(starts)
            for run, rank in starts:
                run.start(rank)
                self.addCleanup(run.kill)
            results = [run.end() for run in runs]
            with self.subTest(pair=pair, kind=kind, results=results):
                outcomes[f"{kind}: {self.check(kind, ids, runs, results)}"] += 1
        print(dict(outcomes), flush=True)

    def check(self, kind, ids, runs, results):
        """returns: what became of the pair, for the summary."""
        names = [run.run_ids() for run in runs]
        self.assertFalse(set(names[0].values()) & set(names[1].values()), "ranks of two launches met")
        for said in names:
            self.assertLessEqual(len(set(said.values())), 1, "a run has ranks of two runs")
        if kind == "own ids":
            for launch_id, result, said in zip(ids, results, names):
                self.assertEqual([code for code, _ in result.values()], [0] * WORLD)
                self.assertRegex(said[0], f"^{launch_id}\\.[0-9a-f]{{16}}$")
            return "both trained"
        if kind == "no ids":
            for code, said in [rank for result in results for rank in result.values()]:
                self.assertEqual(code, 2)
                self.assertRegex(said.splitlines()[-1], "^eplb-trainer: rank [01]: .*set EPLB_LAUNCH_ID, equal on all ranks "
                                                        "and different for each run$")
            return "both refused"
        trained = [all(code == 0 for code, _ in result.values()) for result in results]
        for result in [result for result, well in zip(results, trained) if not well]:
            self.assertTrue(any(SHARED in said and "give each run an EPLB_LAUNCH_ID of its own" in said
                                for _, said in result.values()))
            self.assertTrue(all(code != 0 for code, _ in result.values()))
        self.assertLess(sum(trained), 2)
        return f"{sum(trained)} trained"


class RestartDuringStartTest(harness.DaemonTest):
    def test_a_daemon_that_restarts_while_ranks_meet_loses_no_launch(self):
        daemon = self.started_daemon()
        for turn in range(3):
            run = Run(self.directory / str(turn), daemon.endpoint, TRACE, f"run-{turn}")
            self.addCleanup(run.kill)
            run.start(1)
            self.wait_until_connected(daemon, f"rank 1 waits for the others in run-{turn}")
            daemon.kill()
            daemon.start()
            run.start(0)
            result = run.end()
            self.assertEqual([code for code, _ in result.values()], [0] * WORLD, result)

    def wait_until_connected(self, daemon, what):
        """Until a connection to the daemon has been there for a second: by then its call has begun."""
        seen = [0]

        def connected():
            seen[0] = seen[0] + 1 if self.connections(daemon) > 0 else 0
            return seen[0] >= 50  # polls, 20 ms apart

        harness.wait_for(connected, 30, what)

    def connections(self, daemon):
        """Established TCP connections to the daemon's port."""
        port = f":{daemon.grpc_port:04X}"
        rows = [row for table in ("tcp", "tcp6") for row in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        return sum(1 for row in rows if row.split()[2].endswith(port) and row.split()[3] == "01")


class TwoDaemonsTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemons = [self.started_daemon(20, name, "[report]\nevery_steps = 10\n") for name in ("first", "second")]

    def test_ranks_at_two_daemons_come_together_again_and_commits_go_on(self):
        first, second = self.daemons
        proxy = harness.Chaos(second.endpoint)
        self.addCleanup(lambda: proxy.process.poll() is None and proxy.close())
        both = f"{first.endpoint},{second.endpoint}"
        job = self.started_job(both, world=4, steps=1000000, step_ms=10, slots=72, parameters=16,
                               endpoints={3: f"{first.endpoint},{proxy.endpoint}"},
                               extra=("--report-every", "10", "--stop-file", str(self.directory / "stop")))
        version = job.await_commit()
        first.kill()
        job.await_commit(above=version)  # the second daemon stands in
        first.start()
        proxy.close()  # rank 3 can reach the first daemon alone, the others are at the second
        # 5 s with the second daemon in vain, and up to 7.5 s until the others ask the first one.
        leads = f"eplbd at {first.endpoint} leads this run"
        harness.wait_for(lambda: leads in job.errors[0].read_text(), 15, "the other ranks go to the first daemon")
        job.await_commit(above=job.commits()[-1]["version"], seconds=15)
        (self.directory / "stop").write_text("")
        self.assertEqual(job.wait(120), [0] * 4, [path.read_text()[-2000:] for path in job.errors])


def take(flag, default):
    """The value of a flag of this file's own, taken out of the command line."""
    if flag not in sys.argv:
        return default
    at = sys.argv.index(flag)
    value = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
    return value


if __name__ == "__main__":
    PAIRS = take("--pairs", PAIRS)
    SEED = take("--seed", SEED)
    sys.exit(unittest.main(verbosity=2))
