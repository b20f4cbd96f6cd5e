"""A daemon and rank processes for end-to-end tests: everything on loopback, every wait bounded.

Binaries come from the directory in EPLB_BIN, test data from EPLB_DATA; ctest sets both.
"""

import collections
import itertools
import json
import os
import pathlib
import random
import resource
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


def gpu_loads(load, slots, num_gpus):
    """Tokens of each GPU in each layer, computed from the maps alone."""
    layers = []
    for tokens, experts in zip(load, slots):
        replicas = collections.Counter(experts)
        per_gpu = len(experts) // num_gpus
        layers.append([sum(tokens[e] / replicas[e] for e in experts[g * per_gpu:(g + 1) * per_gpu])
                       for g in range(num_gpus)])
    return layers


def read_lines(path):
    """The JSON objects of a file of JSON lines; a torn last line is left out."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Process:
    """A process that can be killed, stopped and started again. NAME.log is its log."""

    def __init__(self, name, directory):
        self.name = name
        self.log = pathlib.Path(directory) / f"{name}.log"
        self.process = None
        self.stopped = False

    def lives(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        if self.lives():
            self.process.kill()
            self.process.wait(10)
        self.stopped = False

    def freeze(self):
        """SIGSTOP: the process lives and does nothing."""
        if self.lives():
            os.kill(self.process.pid, signal.SIGSTOP)
            self.stopped = True

    def thaw(self):
        if self.lives() and self.stopped:
            os.kill(self.process.pid, signal.SIGCONT)
        self.stopped = False

    def fill_disk(self):
        """No file of the process may grow, as without space, until free_disk()."""
        if self.lives():
            hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (1, hard))

    def free_disk(self):
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


class Daemon(Process):
    """An eplbd process on fixed ports, so that it can be killed and started again."""

    def __init__(self, directory, policy_every=50, name="eplbd", config="", policy="incremental"):
        """policy: by default one that decides by rules alone, every policy_every steps. config: more TOML, after the [policy] table."""
        super().__init__(name, directory)
        self.directory = pathlib.Path(directory)
        self.grpc_port, self.http_port = free_port(), free_port()
        self.store = self.directory / f"{name}.db"
        self.config = self.directory / f"{name}.toml"
        self.config.write_text(f'[policy]\nname = "{policy}"\nevery_steps = {policy_every}\n{config}')

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.grpc_port}"

    def start(self):
        if self.lives():
            return
        printed = self.directory / f"{self.name}.out"
        with open(printed, "w") as out, open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [BIN / "eplbd", "--config", self.config, "--listen", self.endpoint,
                 "--http", f"127.0.0.1:{self.http_port}", "--store", self.store],
                stdout=out, stderr=log)
        wait_for(lambda: self.process.poll() is not None or '"event":"listening"' in printed.read_text(), 20, "eplbd listens")
        if self.process.poll() is not None:
            raise AssertionError(f"eplbd ended with {self.process.returncode}; its log ends: {self.log.read_text()[-500:]}")

    def store_files(self):
        return [pathlib.Path(f"{self.store}{suffix}") for suffix in ("", "-wal", "-shm")]

    def damage_store(self):
        """Damages the schema's page of a daemon that does not run, and removes what was not yet moved into the file."""
        with open(self.store, "r+b") as file:
            file.seek(100)
            file.write(os.urandom(800))
        for path in self.store_files()[1:]:
            path.unlink(missing_ok=True)

    def stop(self):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30 * PATIENCE)

    def get(self, path):
        """The text that HTTP answers with."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{path}", timeout=20 * PATIENCE) as answer:
            return answer.read().decode()

    def ready(self):
        """Status and text of /readyz."""
        try:
            return 200, self.get("readyz")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def events(self, name=None):
        """Returns the daemon's log lines, as objects: all, or those of one name."""
        return [event for event in read_lines(self.log) if name is None or event.get("event") == name]

    def logged(self, name):
        """Returns the log lines of that name, once there is one: the log follows what it tells."""
        wait_for(lambda: self.events(name), 30, f"a log line {name}")
        return self.events(name)


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
                 endpoints=None, rank_extra=None, environment=None, rank_environment=None, trace=DATA / "moe64_aux.jsonl"):
        """endpoints: of the daemon for single ranks; rank_extra, rank_environment: more of single ranks."""
        self.directory = pathlib.Path(directory)
        self.world = world
        self.launch_id = f"{os.getpid()}-{next(LAUNCHES)}"
        self.errors = [self.directory / f"rank-{rank}.err" for rank in range(world)]
        self.ranks = []
        for rank in range(world):
            command = [TRAINER, "--rank", str(rank), "--world", str(world), "--endpoint", (endpoints or {}).get(rank, endpoint),
                       "--trace", trace, "--steps", str(steps), "--slots", str(slots),
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

    def await_commit(self, above=0, seconds=60):
        """Waits for a commit of a version above `above`. Returns the newest version."""
        wait_for(lambda: any(line["version"] > above for line in self.commits()), seconds, f"a commit above version {above}")
        return max(line["version"] for line in self.commits())

    def await_steps(self, more, rank=0):
        until = self.last_step(rank) + more
        wait_for(lambda: self.last_step(rank) >= until, 60, f"step {until}")

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
        self.addCleanup(daemon.kill)
        return daemon

    def spawned(self, *flags, folder=BIN, listen="127.0.0.1:0", **options):
        """Returns an eplbd on free ports that ends with the test, and the object of its first line; None if it printed none.
        options: those of Popen."""
        daemon = subprocess.Popen([folder / "eplbd", "--listen", listen, "--http", "127.0.0.1:0", *flags], stdout=subprocess.PIPE, text=True,
                                  **options)
        self.addCleanup(lambda: (daemon.poll() is None and daemon.kill(), daemon.wait(60 * PATIENCE), daemon.stdout.close()))
        line = daemon.stdout.readline()
        return daemon, json.loads(line) if line else None

    def started_job(self, *arguments, **options):
        """Returns a Job(self.directory, *arguments, **options), whose ranks end with the test."""
        job = Job(self.directory, *arguments, **options)
        self.addCleanup(job.kill_all)
        return job
