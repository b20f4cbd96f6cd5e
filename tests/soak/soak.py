#!/usr/bin/env python3
"""Does a daemon stay small while jobs come and go? Memory, descriptors, threads, store and log over many windows.

  EPLB_BIN=build/release/bin EPLB_DATA=tests/data tests/soak/soak.py --windows 20000 --jobs 200 [--keep DIR]

One job runs all the time. Beside it short jobs start, each with a name of its own: half of them end well, a quarter is killed,
a quarter loses one rank two seconds before the other. The daemon's limits are low (16 jobs, 50 rows of history), so that every
table is full early and stays so. Prints a table and exits with 1 when something grows between the second and the last quarter
of the run, by more than MAX_GROWTH says.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))

import job as harness  # noqa: E402

MAX_JOBS = 16
CONFIG = f"""[report]
every_steps = 2
[limits]
max_jobs = {MAX_JOBS}
max_history = 50
session_grace = "1s"
"""
# By how much the median of the last quarter of the samples may be above that of the second quarter: a share of that and
# a constant, for noise and for pages that fill.
MAX_GROWTH = {"memory_mib": (0.10, 4), "descriptors": (0.10, 8), "threads": (0.10, 4), "store_mib": (0.15, 1.0),
              "log_bytes_per_window": (0.25, 100)}


class Samples:
    """Samples of the daemon's resources, every few seconds."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.rows = []
        self.begin = time.monotonic()
        self.log_before = (0, 0)

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.http_port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def windows(self):
        return int(sum(float(value) for value in re.findall(r"^eplb_windows_total(?:\{.*\})? (\S+)$", self.metrics(), re.M)))

    def store_bytes(self):
        paths = (pathlib.Path(f"{self.daemon.directory / self.daemon.name}.db{suffix}") for suffix in ("", "-wal", "-shm"))
        return sum(path.stat().st_size for path in paths if path.exists())

    def take(self, started, running):
        process = pathlib.Path(f"/proc/{self.daemon.process.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        windows, log = self.windows(), self.daemon.log.stat().st_size
        new_windows, new_log = windows - self.log_before[0], log - self.log_before[1]
        self.log_before = (windows, log)
        self.rows.append({
            "seconds": time.monotonic() - self.begin, "windows": windows, "jobs_started": started, "jobs_running": running,
            "memory_mib": int(status["VmRSS"].split()[0]) / 1024, "threads": int(status["Threads"]),
            "descriptors": len(list((process / "fd").iterdir())), "store_mib": self.store_bytes() / (1 << 20),
            "log_mib": log / (1 << 20), "log_bytes_per_window": new_log / max(1, new_windows)})

    def quarter(self, key, index):
        size = len(self.rows) // 4
        return statistics.median(row[key] for row in self.rows[index * size:(index + 1) * size or None])

    def print_table(self):
        keys = ["seconds", "windows", "jobs_started", "jobs_running", "memory_mib", "descriptors", "threads", "store_mib",
                "log_mib"]
        print("  ".join(f"{key:>12}" for key in keys))
        for row in self.rows[::max(1, len(self.rows) // 16)] + self.rows[-1:]:
            print("  ".join(f"{row[key]:12.1f}" if isinstance(row[key], float) else f"{row[key]:12}" for key in keys))

    def check(self):
        """Names of what grew."""
        grew = []
        print(f"{'':24}{'second quarter':>16}{'last quarter':>16}{'highest':>16}")
        for key, (share, constant) in MAX_GROWTH.items():
            before, after = self.quarter(key, 1), self.quarter(key, 3)
            limit = before * (1 + share) + constant
            highest = max(row[key] for row in self.rows)
            print(f"{key:24}{before:16.1f}{after:16.1f}{highest:16.1f}  {'ok' if after <= limit else 'NOT'} <= {limit:.1f}")
            if after > limit:
                grew.append(key)
        return grew


class Crowd:
    """The resident job and the short ones."""

    def __init__(self, directory, endpoint, at_once):
        self.directory = pathlib.Path(directory)
        self.endpoint = endpoint
        self.at_once = at_once
        self.running = []  # (job, how it ends, when)
        self.started = 0
        self.endings = collections.Counter()
        self.resident = self.start("resident", ("--report-every", "2"), steps=1000000, step_ms=6)

    def start(self, name, extra, **options):
        directory = self.directory / name
        directory.mkdir()
        return harness.Job(directory, self.endpoint, world=2, slots=66, parameters=1,
                           extra=("--job", name, "--stop-file", str(directory / "stop"), "--vote-every", "2", "--rendezvous",
                                  f"127.0.0.1:{harness.free_port()}", *extra), **options)

    def start_short(self):
        number = self.started
        self.started += 1
        ending = ("finished", "killed", "finished", "rank killed")[number % 4]
        job = self.start(f"short-{number}", ("--report-every", "2"), steps=120 if ending == "finished" else 1000000, step_ms=4)
        self.running.append((job, ending, time.monotonic() + 4))

    def end_short(self):
        """Kills what is to be killed, and takes away what has ended."""
        for entry in list(self.running):
            job, ending, due = entry
            late = time.monotonic() - due
            if ending != "finished" and late > 0:
                # Without its peer a rank waits for the deadline of its vote: the test does not wait for that.
                for rank in job.ranks[:1] if ending == "rank killed" and late < 2 else job.ranks:
                    rank.kill()
            if all(rank.poll() is not None for rank in job.ranks):
                self.running.remove(entry)
                self.endings[ending] += 1
                if ending == "finished" and any(rank.returncode != 0 for rank in job.ranks):
                    raise SystemExit(f"soak: {job.directory.name} failed: {[path.read_text() for path in job.errors]}")

    def kill_all(self):
        for job in [self.resident] + [job for job, _, _ in self.running]:
            job.kill_all()


def jobs_known(daemon):
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.http_port}/api/v1/jobs", timeout=10) as answer:
        return len(json.load(answer)["jobs"])


def soak(arguments, directory):
    daemon = harness.Daemon(directory, policy_every=10, config=CONFIG)
    daemon.start()
    samples = Samples(daemon)
    crowd = Crowd(directory, daemon.endpoint, arguments.at_once)
    problems = []
    try:
        next_sample = 0.0
        while crowd.started < arguments.jobs or crowd.running or samples.rows[-1]["windows"] < arguments.windows:
            while crowd.started < arguments.jobs and len(crowd.running) < crowd.at_once:
                crowd.start_short()
            crowd.end_short()
            if daemon.process.poll() is not None or crowd.resident.ranks[0].poll() is not None:
                raise SystemExit(f"soak: the daemon or the resident job ended: {daemon.log.read_text()[-1000:]}")
            if time.monotonic() > next_sample:
                samples.take(crowd.started, len(crowd.running))
                next_sample = time.monotonic() + arguments.sample_seconds
            time.sleep(0.05)
        known = jobs_known(daemon)
        if known > MAX_JOBS:
            problems.append(f"the daemon knows {known} jobs, at most {MAX_JOBS} were allowed")
        (crowd.resident.directory / "stop").write_text("")
        if crowd.resident.wait(300) != [0, 0]:
            problems.append("the resident job failed")
    finally:
        crowd.kill_all()
        daemon.kill()
    samples.print_table()
    print(f"{crowd.started} jobs: {dict(crowd.endings)}; the daemon knows {known} of them at the end")
    return problems + [f"{key} grew" for key in samples.check()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1000, help="complete windows, of all jobs")
    parser.add_argument("--jobs", type=int, default=24, help="short jobs")
    parser.add_argument("--at-once", type=int, default=4, help="short jobs that run at one time")
    parser.add_argument("--sample-seconds", type=float, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="directory for logs and store; default: a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eplb-soak-") as temporary:
        directory = arguments.keep or pathlib.Path(temporary)
        os.makedirs(directory, exist_ok=True)
        problems = soak(arguments, directory)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
