"""The launch scripts of deploy/slurm, deploy/torchrun and deploy/launch, with stand-ins for srun, scontrol and torchrun."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = pathlib.Path(os.environ["EPLB_BIN"])
DEADLINE = 120
RANKS = 2

# Slurm steps of the scripts: a step beside the job is one process, the job's step one process a rank.
SRUN = """#!/usr/bin/env python3
import os, signal, subprocess, sys
arguments = sys.argv[1:]
if arguments[0] == "--overlap":
    assert arguments[:8] == ["--overlap", "--nodes", "1", "--ntasks", "1", "--nodelist", "localhost", "--kill-on-bad-exit=0"], arguments
    os.execvp(arguments[8], arguments[8:])
ranks = [subprocess.Popen(arguments, env={**os.environ, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_STEP_ID": "1"})
         for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""
SCONTROL = '#!/bin/sh\n[ "$*" = "show hostnames localhost,other" ] && printf "localhost\\nother\\n"\n'
TORCHRUN = """#!/usr/bin/env python3
import os, subprocess, sys
with open(os.environ["ASKED"], "w") as file:
    print(os.environ["EPLB_ENDPOINT"], *sys.argv[1:], file=file)
if "--no-ranks" in sys.argv:
    sys.exit(0)
program = sys.argv[sys.argv.index("--") + 1:]
ranks = [subprocess.Popen(program, env={**os.environ, "RANK": str(rank), "TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "0"})
         for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""


class LaunchTest(unittest.TestCase):
    MEETS = "--rendezvous 127.0.0.1:21973"  # of ranks that have no daemon to meet at

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-launch-")))
        self.tools = self.directory / "tools"
        self.tools.mkdir()
        self.environment = {"PATH": f"{self.tools}:{BIN}:{os.environ['PATH']}", "HOME": str(self.directory), "LANG": "C.UTF-8",
                            "EPLBD_PORT": "0", "EPLBD_SCRIPTS": str(ROOT), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost,other",
                            "SLURM_SUBMIT_DIR": str(self.directory), "ASKED": str(self.directory / "asked")}
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("torchrun", TORCHRUN)):
            self.tool(name, text)

    def tool(self, name, text):
        path = self.tools / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def start(self, *command, **variables):
        """A process group of its own, which is ended with the test."""
        process = subprocess.Popen(command, cwd=self.directory, env={**self.environment, **variables}, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, DEADLINE)
        self.addCleanup(self.end_group, process.pid)
        return process

    def end(self, process, status=0):
        """Returns what a process wrote that must end with this status."""
        said, _ = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, status, said)
        return said

    @staticmethod
    def end_group(leader):
        try:
            os.killpg(leader, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def wait_for(self, condition, what):
        deadline = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)
        return condition()

    def daemons(self, leader):
        """Process ids of eplbd in the group of a script."""
        found = []
        for process in pathlib.Path("/proc").iterdir():
            try:
                if process.name.isdigit() and os.getpgid(int(process.name)) == leader and (process / "comm").read_text() == "eplbd\n":
                    found.append(int(process.name))
            except (ProcessLookupError, FileNotFoundError):
                continue
        return found

    def trainer(self, rank_variable, steps, step_ms, more=""):
        """A rank of the demonstration's job, which finds the daemon by its variable."""
        return ["sh", "-c", f'exec eplb-trainer --job train --rank "${rank_variable}" --world {RANKS} --endpoint env:EPLB_ENDPOINT {more} '
                f"--trace {ROOT}/tests/data/moe64_aux.jsonl --steps {steps} --step-ms {step_ms} --slots 64 --report-every 10"]


class SlurmTest(LaunchTest):
    SCRIPT = DEPLOY / "slurm" / "eplb.sbatch"

    def test_a_job_trains_beside_its_daemon_which_comes_back_when_it_is_killed(self):
        job = self.start(self.SCRIPT, *self.trainer("SLURM_PROCID", 150, 20), EPLBD_INSECURE="1")
        file = self.directory / "eplb-7" / "endpoint"
        self.wait_for(lambda: file.is_file() and file.stat().st_size > 0, "the address")
        endpoint = file.read_text().strip()
        self.assertRegex(endpoint, r"^localhost:\d+$")
        ask = [BIN / "eplbctl", "status", "--endpoint", endpoint]
        self.wait_for(lambda: b"train" in subprocess.run(ask, capture_output=True, timeout=DEADLINE).stdout, "the job")
        first, = self.daemons(job.pid)
        os.kill(first, signal.SIGKILL)
        second = self.wait_for(lambda: [pid for pid in self.daemons(job.pid) if pid != first], "another daemon")
        self.wait_for(lambda: b"train" in subprocess.run(ask, capture_output=True, timeout=DEADLINE).stdout, "the job at the same address")
        said = self.end(job)
        self.assertIn("eplbd ended with status 137; next start in 1 s", said)
        self.assertEqual([pid for pid in second if pathlib.Path(f"/proc/{pid}").exists()], [])

    def test_a_network_must_be_encrypted_or_trusted(self):
        job = self.start(self.SCRIPT, "true")
        said = self.end(job, 2)
        self.assertIn("set EPLBD_CONFIG to an eplbd.toml with [tls]", said)
        self.assertFalse((self.directory / "eplb-7" / "endpoint").exists())

    def test_the_names_of_many_nodes_are_read_to_their_end(self):
        self.tool("scontrol", '#!/bin/sh\necho localhost\nexec seq -f node%g 20000\n')
        self.end(self.start(self.SCRIPT, "true", EPLBD_INSECURE="1"))

    def test_the_exit_status_is_the_jobs(self):
        job = self.start(self.SCRIPT, "sh", "-c", "exit 3", EPLBD_INSECURE="1")
        self.end(job, 3)
        self.assertEqual(self.daemons(job.pid), [])

    def test_without_a_daemon_the_job_trains_with_one_warning(self):
        job = self.start(self.SCRIPT, *self.trainer("SLURM_PROCID", 20, 1, self.MEETS), EPLBD_CONFIG="/nonexistent.toml")
        said = self.end(job)
        self.assertIn("/nonexistent.toml", said)
        self.assertIn("eplbd refuses its configuration", said)
        self.assertEqual(said.count("eplb: warning: no daemon"), 1, said)
        self.assertEqual(sorted(path.name for path in (self.directory / "eplb-7").iterdir()), [])
        job = self.start(self.SCRIPT, *self.trainer("SLURM_PROCID", 20, 1, self.MEETS), EPLBD_STATE="/dev/null", EPLBD_INSECURE="1")
        said, _ = job.communicate(timeout=DEADLINE)
        self.assertEqual((job.returncode, said.count("eplb: warning: no daemon")), (0, 1), said)


class TorchrunTest(LaunchTest):
    SCRIPT = DEPLOY / "torchrun" / "eplb-torchrun"

    def asked(self):
        return (self.directory / "asked").read_text().split()

    def test_one_node_trains_beside_its_daemon(self):
        job = self.start(self.SCRIPT, "--nproc-per-node", "2", "--", *self.trainer("RANK", 20, 1))
        self.end(job)
        self.assertRegex(self.asked()[0], r"^127\.0\.0\.1:\d+$")
        self.assertEqual(self.asked()[1:3], ["--nproc-per-node", "2"])
        self.assertEqual(self.daemons(job.pid), [])
        self.assertTrue((self.directory / "eplb-state" / "eplbd.db").is_file())

    def test_two_launches_on_a_host_and_in_a_folder_have_a_daemon_each(self):
        jobs = [self.start(self.SCRIPT, "--", *self.trainer("RANK", 100, 20), EPLBD_PORT="") for _ in range(2)]
        said = [job.communicate(timeout=DEADLINE)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0], said)
        for one in said:
            self.assertIn("eplb: eplbd on 127.0.0.1:", one)
            self.assertNotIn("warning: no daemon", one)
        for state in ("eplb-state", "eplb-state-2"):
            names = sorted(path.name for path in (self.directory / state).iterdir())
            self.assertEqual([name for name in names if not name.startswith("eplbd.db")], ["launch.lock"], "no stale file")

    def test_without_a_daemon_the_job_trains_with_one_warning(self):
        self.tool("eplbd", '#!/bin/sh\necho "cannot start" >&2\nexit 2\n')
        job = self.start(self.SCRIPT, "--", *self.trainer("RANK", 20, 1, self.MEETS))
        said = self.end(job)
        self.assertEqual(said.count("eplb: warning: no daemon"), 1, said)

    def test_a_state_folder_that_cannot_be_made_costs_the_daemon_alone(self):
        job = self.start(self.SCRIPT, "--", *self.trainer("RANK", 20, 1, self.MEETS), EPLBD_STATE="/dev/null/state")
        said = self.end(job)
        self.assertEqual(said.count("eplb: warning: no daemon"), 1, said)

    def test_another_node_asks_the_daemon_of_the_first(self):
        for flags in (["--nnodes", "4", "--node-rank", "2", "--master-addr", "node0"], ["--nnodes=4", "--node_rank=2", "--master_addr=node0"],
                      ["--nnodes", "1:4", "--rdzv-endpoint", "node0:29400"]):
            job = self.start(self.SCRIPT, *flags, "--no-ranks", EPLBD_PORT="29610", EPLBD_NODE_RANK="2")
            self.end(job)
            self.assertEqual(self.asked(), ["node0:29610", *flags, "--no-ranks"])
            self.assertFalse((self.directory / "eplb-state").exists())

    def test_flags_behind_the_program_are_the_programs(self):
        arguments = ["--standalone", "--nproc-per-node", "1", "--no-ranks", "x", "train.py", "--nnodes", "2", "--node-rank", "1", "--master-addr", "other"]
        self.end(self.start(self.SCRIPT, *arguments))
        self.assertRegex(self.asked()[0], r"^127\.0\.0\.1:\d+$")

    def test_variables_of_torchrun_count(self):
        job = self.start(self.SCRIPT, "--no-ranks", PET_NNODES="4", PET_NODE_RANK="2", PET_MASTER_ADDR="node0", EPLBD_PORT="29610")
        said, _ = job.communicate(timeout=DEADLINE)
        self.assertEqual((job.returncode, self.asked()[0]), (0, "node0:29610"), said)
        self.end(self.start(self.SCRIPT, "--nnodes", "1:1", "--no-ranks"))

    def test_a_signal_reaches_torchrun_and_the_daemon_is_drained(self):
        self.tool("torchrun", '#!/bin/sh\ntrap "exit 9" TERM\necho began\nwhile :; do sleep 0.1; done\n')
        job = self.start(self.SCRIPT, "train.py")
        while job.stdout.readline() != "began\n":
            self.assertIsNone(job.poll(), "the stand-in runs")
        job.send_signal(signal.SIGTERM)
        began = time.monotonic()
        self.end(job, 9)
        self.assertLess(time.monotonic() - began, DEADLINE / 4)
        self.assertEqual(self.daemons(job.pid), [])

    def test_the_first_of_several_nodes_needs_an_encrypted_or_trusted_network(self):
        flags = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "localhost", "--no-ranks"]
        job = self.start(self.SCRIPT, *flags)
        self.end(job, 2)
        self.end(self.start(self.SCRIPT, *flags, EPLBD_INSECURE="1"))
        self.assertRegex(self.asked()[0], r"^localhost:\d+$")


class DaemonLoopTest(LaunchTest):
    SCRIPT = DEPLOY / "launch" / "daemon_loop.sh"

    def test_an_address_of_an_earlier_run_misleads_nobody(self):
        (self.directory / "where").write_text("stale:1\n")
        loop = self.start(self.SCRIPT, "where", "--set", "policy.name=best")
        self.end(loop, 2)
        self.assertFalse((self.directory / "where").exists())

    def test_a_signal_before_the_daemon_listens_ends_it_at_once(self):
        self.tool("eplbd", '#!/bin/sh\ntrap "exit 0" TERM\necho began >&2\nwhile :; do sleep 0.1; done\n')
        loop = self.start(self.SCRIPT, "where")
        self.assertEqual(loop.stdout.readline(), "began\n")
        loop.send_signal(signal.SIGTERM)
        began = time.monotonic()
        loop.communicate(timeout=DEADLINE)
        self.assertLess(time.monotonic() - began, 20, "30 s is how long an address is waited for")
        self.assertEqual(loop.returncode, 0)

    def test_it_ends_with_a_drained_daemon(self):
        loop = self.start(self.SCRIPT, "where", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "memory")
        self.wait_for((self.directory / "where").is_file, "the address")
        loop.send_signal(signal.SIGTERM)
        self.end(loop)
        self.assertEqual(self.daemons(loop.pid), [])

    def test_a_wrong_configuration_is_not_started_again(self):
        loop = self.start(self.SCRIPT, "where", "--set", "policy.name=best")
        said = self.end(loop, 2)
        self.assertEqual(said.count("policy.name"), 1)

    def test_starts_that_fail_at_once_are_bounded_and_ever_further_apart(self):
        self.tool("eplbd", '#!/bin/sh\necho "started $*" >&2\nexit 1\n')
        self.tool("sleep", '#!/bin/sh\necho "slept $1" >&2\n')
        loop = self.start(self.SCRIPT, "where", "--listen", "127.0.0.1:0")
        said = self.end(loop, 1)
        self.assertEqual(said.count("started --listen 127.0.0.1:0"), 20)
        pauses = [line.split("next start in ")[1] for line in said.splitlines() if "next start in" in line]
        self.assertEqual(pauses[:7], ["1 s", "2 s", "4 s", "8 s", "16 s", "30 s", "30 s"])
        self.assertFalse((self.directory / "where").exists())


if __name__ == "__main__":
    unittest.main()
