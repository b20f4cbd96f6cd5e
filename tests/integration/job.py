"""A daemon and rank processes for end-to-end tests: everything on loopback, every wait bounded.

Binaries come from the directory in EPLB_BIN, test data from EPLB_DATA; ctest sets both.
"""

import itertools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

BIN = pathlib.Path(os.environ["EPLB_BIN"])
DATA = pathlib.Path(os.environ["EPLB_DATA"])
TRAINER = pathlib.Path(os.environ.get("EPLB_TRAINER", BIN / "eplb-trainer"))
# A daemon of a test leaves the machine's default socket alone.
os.environ.setdefault("EPLB_LISTEN_UNIX", "none")
# Sanitizer builds are slower; their preset raises this.
PATIENCE = float(os.environ.get("EPLB_TEST_PATIENCE", "1"))
LAUNCHES = itertools.count()


_CLAIMS = []  # of the ports drawn, held until this process ends


def free_port():
    """A TCP port below the ephemeral range that no process listens on, and that no other test draws while this one runs."""
    for _ in range(200):
        port = random.randint(20000, 32000)
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                claim.bind(f"\0eplb-test-port-{port}")
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _CLAIMS.append(claim)
        return port
    raise AssertionError("no free port between 20000 and 32000")


def wait_for(condition, seconds, what):
    """Polls until `condition()` is true. Fails after `seconds` (times EPLB_TEST_PATIENCE), saying `what` did not happen."""
    deadline = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds * PATIENCE:.0f} s: {what}")


def eplbctl(*arguments):
    """Runs eplbctl. Returns the finished process, its output as text."""
    return subprocess.run([BIN / "eplbctl", *map(str, arguments)], capture_output=True, text=True,
                          timeout=300 * PATIENCE)


def read_lines(path):
    """The JSON objects of a file of JSON lines; a torn last line is left out."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Daemon:
    """An eplbd process on fixed ports, so that it can be killed and started again."""

    def __init__(self, directory, policy_every=50, name="eplbd", config="", policy="incremental"):
        """policy: one that decides at the first window; auto waits until its back-test has seen some. config: more TOML, after
        the [policy] table."""
        self.directory = pathlib.Path(directory)
        self.name = name
        self.grpc_port, self.http_port = free_port(), free_port()
        self.config = self.directory / f"{name}.toml"
        self.config.write_text(f'[policy]\nname = "{policy}"\nevery_steps = {policy_every}\n{config}')
        self.log = self.directory / f"{name}.log"
        self.process = None

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.grpc_port}"

    def start(self):
        printed = self.directory / f"{self.name}.out"
        with open(printed, "w") as out, open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [BIN / "eplbd", "--config", self.config, "--listen", self.endpoint,
                 "--http", f"127.0.0.1:{self.http_port}", "--store", self.directory / f"{self.name}.db"],
                stdout=out, stderr=log)
        wait_for(lambda: self.process.poll() is not None or '"event":"listening"' in printed.read_text(), 20, "eplbd listens")
        if self.process.poll() is not None:
            raise AssertionError(f"eplbd ended with {self.process.returncode}; its log ends: {self.log.read_text()[-500:]}")

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def stop(self):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30 * PATIENCE)

    def ready(self):
        """Status and text of /readyz."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/readyz", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def events(self, name=None):
        """Returns the daemon's log lines, as objects: all, or those of one name."""
        return [event for event in read_lines(self.log) if name is None or event.get("event") == name]


class Chaos:
    """An eplb-chaos proxy before `target`; faults are switched by its control lines."""

    def __init__(self, target, *faults):
        command = [BIN / "eplb-chaos", "--to", target]
        for fault in faults:
            command += ["--fault", fault]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = json.loads(self.process.stdout.readline())["address"]

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if answer != "ok":
            raise AssertionError(answer)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(10)


class Job:
    """The rank processes of one run of the demonstration trainer."""

    def __init__(self, directory, endpoint, world=4, steps=240, step_ms=10, slots=72, extra=(), parameters=128,
                 endpoints=None, rank_extra=None, environment=None, rank_environment=None):
        """endpoints: of the daemon for single ranks; rank_extra, rank_environment: more of single ranks."""
        self.directory = pathlib.Path(directory)
        self.world = world
        self.launch_id = f"{os.getpid()}-{next(LAUNCHES)}"
        self.errors = [self.directory / f"rank-{rank}.err" for rank in range(world)]
        self.ranks = []
        for rank in range(world):
            command = [TRAINER, "--rank", str(rank), "--world", str(world), "--endpoint", (endpoints or {}).get(rank, endpoint),
                       "--trace", DATA / "moe64_aux.jsonl", "--steps", str(steps), "--slots", str(slots),
                       "--step-ms", str(step_ms), "--parameters", str(parameters), "--log-dir", self.directory,
                       "--report-json", self.directory / "run.json", *extra, *(rank_extra or {}).get(rank, ())]
            own = {**os.environ, "EPLB_LAUNCH_ID": self.launch_id, **(environment or {}), **(rank_environment or {}).get(rank, {})}
            with open(self.errors[rank], "w") as errors:
                self.ranks.append(subprocess.Popen(command, stderr=errors, env=own))

    def wait(self, seconds):
        """Exit codes by rank."""
        deadline = time.monotonic() + seconds * PATIENCE
        return [rank.wait(max(0.1, deadline - time.monotonic())) for rank in self.ranks]

    def kill_all(self):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait(10)

    def history(self, rank):
        return read_lines(self.directory / f"rank-{rank}.jsonl")

    def last_step(self, rank=0):
        """The newest step of a rank's log; written at every vote."""
        return max((line.get("last_step", 0) for line in self.history(rank)), default=0)

    def commits(self, rank=0):
        return [line for line in self.history(rank) if line["event"] == "commit"]

    def report(self):
        return json.loads((self.directory / "run.json").read_text())


class DaemonTest(unittest.TestCase):
    """A test with a directory of its own, whose daemons end with it."""

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-test-")))

    def started_daemon(self, *arguments, **options):
        """Returns a running Daemon(self.directory, *arguments, **options)."""
        daemon = Daemon(self.directory, *arguments, **options)
        daemon.start()
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.kill())
        return daemon

    def started_job(self, *arguments, **options):
        """Returns a Job(self.directory, *arguments, **options), whose ranks end with the test."""
        job = Job(self.directory, *arguments, **options)
        self.addCleanup(job.kill_all)
        return job
