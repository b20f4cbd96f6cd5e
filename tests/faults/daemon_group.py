"""Three daemons that share an etcd of three members, and the ranks of one job, with what a test needs to hurt them and to look
at them.

Needs the binaries of EPLB_BIN and the trace of EPLB_DATA, as tests/integration/job.py, and /usr/bin/etcd.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))

import job as harness  # noqa: E402

ETCD = pathlib.Path("/usr/bin/etcd")
JOB = "demo"
NUMBER = 3  # number of daemons, and of members
# Shifts the wall clock that a process sees, and no other clock of it. Of the package faketime.
FAKETIME = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
# Frequent decisions on short windows, so that commits tell soon whether balancing works.
CONFIG = """[policy]
name = "incremental"
every_steps = 5
min_gain = 0.001
[report]
every_steps = 5
[limits]
prepare_deadline = "5s"
voting_deadline = "8s"
cancel_deadline = "5s"
session_grace = "8s"
"""


class Process(harness.Process):
    """A process that can be started again with the same words."""

    def words(self):
        raise NotImplementedError

    def environment(self):
        return None

    def start(self):
        if self.lives():
            return
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([str(word) for word in self.words()], stdout=log, stderr=log, env=self.environment())
        self.stopped = False

    def terminate(self):
        """SIGTERM; returns at once."""
        if self.lives() and not self.stopped:
            self.process.terminate()


class Member(Process):
    """A member of etcd."""

    def __init__(self, number, directory, ports):
        """ports: of clients and of peers, of all members."""
        super().__init__(f"etcd-{number}", directory)
        self.number = number
        self.data = pathlib.Path(directory) / f"{self.name}.data"
        self.copy = pathlib.Path(directory) / f"{self.name}.copy"
        self.ports = ports
        self.client_port = ports[number][0]

    def words(self):
        client, peer = (f"http://127.0.0.1:{port}" for port in self.ports[self.number])
        cluster = ",".join(f"etcd-{i}=http://127.0.0.1:{ports[1]}" for i, ports in enumerate(self.ports))
        return [ETCD, "--name", self.name, "--data-dir", self.data, "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
                "--initial-cluster-state", "new", "--logger", "zap", "--log-outputs", "stderr"]

    def ask(self, path, body):
        """An answer of etcd's gateway of JSON, or None."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.client_port}{path}", data=json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=1) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def leads(self):
        if not self.lives() or self.stopped:
            return False
        status = self.ask("/v3/maintenance/status", {})
        return status is not None and status.get("leader") == status["header"]["member_id"]


class GroupDaemon(Process):
    """One of the daemons. It reaches each member by a door of its own, and ranks reach it by a door, which it advertises."""

    def __init__(self, number, directory, doors, members):
        super().__init__(f"eplbd-{number}", directory)
        self.grpc_port, self.http_port = harness.free_port(), harness.free_port()
        self.to_etcd = [doors.open(member.client_port) for member in members]
        self.to_ranks = doors.open(self.grpc_port)
        self.config = pathlib.Path(directory) / f"{self.name}.toml"
        self.clock = pathlib.Path(directory) / f"{self.name}.clock"
        self.shift_clock(0)
        endpoints = json.dumps([f"http://{door.endpoint}" for door in self.to_etcd])
        self.config.write_text(f'{CONFIG}[listen]\ngrpc = "127.0.0.1:{self.grpc_port}"\nhttp = "127.0.0.1:{self.http_port}"\n'
                               f'unix = "none"\nadvertise = "{self.to_ranks.endpoint}"\n'
                               f'[store]\nbackend = "etcd"\n[store.etcd]\nendpoints = {endpoints}\n')

    def words(self):
        return [harness.BIN / "eplbd", "--config", self.config]

    def environment(self):
        if not FAKETIME.exists():
            return None
        return {**os.environ, "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self.clock), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_RESET": "1"}

    def shift_clock(self, seconds):
        """The wall clock is off by so many seconds from now on."""
        self.clock.with_suffix(".new").write_text(f"{seconds:+d}")
        self.clock.with_suffix(".new").replace(self.clock)

    def get(self, path):
        """The answer of HTTP as text, or None."""
        if not self.lives() or self.stopped:
            return None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=1) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return None if error.code != 503 else ""
        except OSError:
            return None

    def leads(self):
        return bool(self.get("/readyz"))

    def job(self):
        """The job as this daemon shows it, or None."""
        answer = self.get("/api/v1/jobs")
        jobs = json.loads(answer)["jobs"] if answer else []
        return next((job for job in jobs if job["job"] == JOB), None)

    def events(self, name):
        return [line for line in read_objects(self.log) if line.get("event") == name]


def read_objects(path):
    """The JSON objects among the lines of a log."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


class Cluster:
    def __init__(self, directory, doors, world):
        self.directory = pathlib.Path(directory)
        ports = [(harness.free_port(), harness.free_port()) for _ in range(NUMBER)]
        self.members = [Member(i, directory, ports) for i in range(NUMBER)]
        self.daemons = [GroupDaemon(i, directory, doors, self.members) for i in range(NUMBER)]
        self.world = world
        self.run_directory = self.directory / "run"
        self.run_directory.mkdir()
        self.job = None

    @property
    def endpoints(self):
        return ",".join(daemon.to_ranks.endpoint for daemon in self.daemons)

    def start(self):
        for process in self.members + self.daemons:
            process.start()
        harness.wait_for(lambda: self.leader() is not None, 60, "a daemon leads")
        self.job = harness.Job(self.run_directory, self.endpoints, world=self.world, steps=10000000, step_ms=20, slots=64 + -64 % self.world,
                               parameters=2, extra=("--report-every", "5", "--vote-every", "4", "--stop-file",
                                                    str(self.run_directory / "stop")))

    def leader(self):
        return next((daemon for daemon in self.daemons if daemon.leads()), None)

    def etcd_leader(self):
        return next((member for member in self.members if member.leads()), None)

    def healthy_leader(self):
        """A daemon that leads, with which every rank is registered, and which balances; else None."""
        leader = self.leader()
        job = leader.job() if leader is not None else None
        if job is None or job["connected_ranks"] != self.world or job["state"] in ("RECOVERING", "QUARANTINE"):
            return None
        return leader

    def commits(self):
        return [(line["version"], line["digest"]) for line in self.job.commits()]

    def ctl(self, *words):
        return harness.eplbctl(*words, "--endpoint", self.endpoints)

    def copy_etcd(self):
        """Returns the data that a backup of etcd would hold: the members are killed for a moment."""
        for member in self.members:
            member.kill()
        for member in self.members:
            shutil.rmtree(member.copy, ignore_errors=True)
            shutil.copytree(member.data, member.copy)
            member.start()

    def restore_etcd(self):
        """The members begin anew from the copy; the daemons are away meanwhile."""
        for process in self.daemons + self.members:
            process.kill()
        for member in self.members:
            shutil.rmtree(member.data)
            shutil.copytree(member.copy, member.data)
            member.start()
        for daemon in self.daemons:
            daemon.start()

    def finish(self):
        """The run ends well; returns the exit codes."""
        (self.run_directory / "stop").write_text("")
        return self.job.wait(120)

    def validator(self):
        return harness.eplbctl("report", self.run_directory)

    def end(self):
        if self.job is not None:
            self.job.kill_all()
        for process in self.daemons + self.members:
            process.thaw()
            process.kill()
        for member in self.members:
            shutil.rmtree(member.data, ignore_errors=True)
            shutil.rmtree(member.copy, ignore_errors=True)
