"""Two daemons and the runs of one job, with what a test needs to hurt them and to look at them.

Needs the binaries of EPLB_BIN and the trace of EPLB_DATA, as tests/integration/job.py, which starts the processes.
"""

import json
import os
import pathlib
import shutil
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))

import job as harness  # noqa: E402

JOB = "demo"
# Frequent decisions on short windows, so that commits tell soon whether balancing works. After a restart a daemon waits
# session_grace for a run that hangs, and decides only then: with the 10 s that are the default, a job heals after 10.2 s.
CONFIG = """min_gain = 0.001
[report]
every_steps = 5
[limits]
prepare_deadline = "5s"
voting_deadline = "8s"
cancel_deadline = "5s"
session_grace = "8s"
"""


class FaultyDaemon(harness.Daemon):
    """A daemon whose store can be lost, damaged or replaced by an old copy."""

    def __init__(self, directory, name):
        super().__init__(directory, policy_every=5, name=name, config=CONFIG)
        self.copy = self.directory / f"{name}.copy"
        self.knows_pause = False  # an operator's pause is in its store

    def keep_copy(self):
        """Returns the store of a daemon that does not run, as an operator's backup holds it."""
        shutil.rmtree(self.copy, ignore_errors=True)
        self.copy.mkdir()
        for path in self.store_files():
            if path.exists():
                shutil.copy(path, self.copy / path.name)

    def restore_copy(self):
        """False when there is no copy."""
        if not self.copy.exists():
            return False
        self.lose_store()
        for path in self.copy.iterdir():
            shutil.copy(path, self.directory / path.name)
        return True

    def lose_store(self):
        self.knows_pause = False
        for path in self.store_files():
            path.unlink(missing_ok=True)

    def damage_store(self):
        self.knows_pause = False
        if self.store.exists():
            super().damage_store()

    def job_status(self):
        """The job as this daemon shows it, or None."""
        if not self.lives() or self.stopped:
            return None
        done = self.ctl("get", "jobs")
        if done.returncode != 0:
            return None
        return next((job for job in json.loads(done.stdout)["jobs"] if job["job"] == JOB), None)

    def ctl(self, *words):
        return harness.eplbctl(*words, "--endpoint", self.endpoint, "-o", "json")


class Commits:
    """The commits in the growing log of rank 0, and whether the rank has started."""

    def __init__(self, path):
        self.path = path
        self.at = 0
        self.commits = []
        self.run_id = None
        self.last_step = -1

    def read(self):
        if not self.path.exists():
            return self
        with open(self.path) as file:
            file.seek(self.at)
            text = file.read()
        end = text.rfind("\n") + 1
        self.at += len(text[:end].encode())
        for line in map(json.loads, text[:end].splitlines()):
            self.run_id = line["run_id"]
            self.last_step = max(self.last_step, line.get("last_step", 0))
            if line["event"] == "commit":
                self.commits.append((line["version"], line["digest"], line["step"]))
        return self


class Run:
    """The processes of one run, each behind doors of its own to both daemons."""

    def __init__(self, number, directory, doors, daemons, world, take_over=False):
        self.number = number
        self.directory = pathlib.Path(directory) / f"run-{number}"
        self.directory.mkdir()
        self.doors = [[doors.open(daemon.grpc_port) for daemon in daemons] for _ in range(world)]
        endpoints = {rank: ",".join(door.endpoint for door in own) for rank, own in enumerate(self.doors)}
        self.job = harness.Job(
            self.directory, "", world=world, steps=1000000, step_ms=20, slots=64 + world, parameters=2,
            endpoints=endpoints, environment={"EPLB_LAUNCH_ID": f"run-{number}"},
            extra=("--report-every", "5", "--vote-every", "4", "--stop-file", str(self.directory / "stop"),
                   "--rendezvous", f"127.0.0.1:{harness.free_port()}", *(("--take-over",) if take_over else ())))
        self.log = Commits(self.directory / "rank-0.jsonl")
        self.stopped = set()
        self.started_at = None

    @property
    def world(self):
        return len(self.job.ranks)

    def has_started(self):
        """Every rank wrote its first line; remembers when that was seen."""
        if self.started_at is None:
            paths = [self.directory / f"rank-{rank}.jsonl" for rank in range(self.world)]
            if all(path.exists() and path.stat().st_size > 0 for path in paths):
                self.started_at = time.monotonic()
        return self.started_at is not None

    def lives(self):
        return all(rank.poll() is None for rank in self.job.ranks)

    def stop_ranks(self, ranks):
        """SIGSTOP. The others then wait for these in their next vote: the run hangs."""
        for rank in ranks:
            if self.job.ranks[rank].poll() is None:
                os.kill(self.job.ranks[rank].pid, signal.SIGSTOP)
                self.stopped.add(rank)

    def continue_ranks(self):
        for rank in self.stopped:
            if self.job.ranks[rank].poll() is None:
                os.kill(self.job.ranks[rank].pid, signal.SIGCONT)
        self.stopped = set()

    def end(self):
        """Kills what lives and closes the doors."""
        self.job.kill_all()
        for own in self.doors:
            for door in own:
                door.close()
        self.doors = []

    def finish(self):
        """The run ends well; returns the exit codes."""
        self.continue_ranks()
        (self.directory / "stop").write_text("")
        return self.job.wait(120)

    def problems(self, ended_well):
        """Returns the validator's findings in the ranks' logs, as text; for a run that ended well, in its report too."""
        found = ""
        for words in [("doctor", "--run")] + [("report",)] * ended_well:
            done = harness.eplbctl(*words, self.directory)
            if done.returncode != 0:
                found += f"eplbctl {words[0]}: exit {done.returncode}: {done.stdout[-2000:]}{done.stderr}"
        return found
