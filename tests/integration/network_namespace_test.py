"""Ranks on two hosts: two network namespaces with a cable between them, two ranks in each, the daemon in one.

Needs root. Skipped with the reason where namespaces cannot be made; EPLB_REQUIRE_NETNS=1 makes that a failure.
"""

import os
import re
import subprocess
import sys
import unittest

import job as harness

HOSTS = ("10.77.0.1", "10.77.0.2")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=20)


class NetworkNamespaceTest(harness.DaemonTest):
    def setUp(self):
        self.names = [f"eplb-{os.getpid()}-{host}" for host in "ab"]
        super().setUp()
        links = [f"ve{os.getpid() % 100000}{host}" for host in "ab"]
        commands = [("ip", "netns", "add", name) for name in self.names]
        commands.append(("ip", "link", "add", links[0], "netns", self.names[0], "type", "veth", "peer", "name",
                         links[1], "netns", self.names[1]))
        for name, link, host in zip(self.names, links, HOSTS):
            commands += [("ip", "-n", name, "addr", "add", f"{host}/24", "dev", link),
                         ("ip", "-n", name, "link", "set", link, "up"), ("ip", "-n", name, "link", "set", "lo", "up")]
        self.addCleanup(lambda: [run("ip", "netns", "delete", name) for name in self.names])
        for command in commands:
            try:
                result = run(*command)
                problem = "" if result.returncode == 0 else result.stderr.strip()
            except FileNotFoundError:
                problem = "there is no program ip"
            if problem and os.environ.get("EPLB_REQUIRE_NETNS") == "1":
                self.fail(f"{' '.join(command)}: {problem}")
            if problem:
                self.skipTest(f"{' '.join(command)}: {problem}")

    def inside(self, host, command, **options):
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *map(str, command)], **options)

    def test_ranks_of_two_hosts_switch_together(self):
        port, rendezvous = harness.free_port(), harness.free_port()
        endpoint = f"{HOSTS[0]}:{port}"
        config = self.directory / "eplbd.toml"
        config.write_text("[policy]\nevery_steps = 50\n")
        out, log = self.directory / "eplbd.out", self.directory / "eplbd.log"
        daemon = self.inside(0, [harness.BIN / "eplbd", "--config", config, "--listen", endpoint, "--insecure-network",
                                 "--http", "127.0.0.1:0", "--store", "memory"],
                             stdout=open(out, "w"), stderr=open(log, "w"))
        self.addCleanup(lambda: (daemon.kill(), daemon.wait(10)))
        harness.wait_for(lambda: '"listening"' in out.read_text(), 20, f"eplbd listens: {log.read_text()}")
        said = subprocess.run([harness.BIN / "eplbd", "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
        version = re.search(r"gRPC (\d+)\.(\d+)\.(\d+)", said).groups()
        old = tuple(int(part) for part in version) < (1, 56, 2)
        self.assertEqual('"old_grpc"' in log.read_text(), old, "a gRPC with known faults is told where other machines reach it")
        ranks, errors = [], [self.directory / f"rank-{rank}.err" for rank in range(4)]
        for rank in range(4):
            host = rank // 2
            command = [harness.BIN / "eplb-trainer", "--rank", rank, "--world", 4, "--endpoint", endpoint,
                       "--rendezvous", f"{HOSTS[0]}:{rendezvous}", "--bind-address", HOSTS[host], "--nodes", 2,
                       "--trace", harness.DATA / "moe64_aux.jsonl", "--steps", 300, "--slots", 72, "--step-ms", 8,
                       "--parameters", 128, "--log-dir", self.directory, "--report-json", self.directory / "run.json"]
            ranks.append(self.inside(host, command, stderr=open(errors[rank], "w")))
            self.addCleanup(lambda process=ranks[-1]: (process.kill(), process.wait(10)))
        codes = [rank.wait(120 * harness.PATIENCE) for rank in ranks]
        self.assertEqual(codes, [0] * 4, [path.read_text() for path in errors])
        result = run(harness.BIN / "eplbctl", "report", self.directory, "--min-rebalances", "1")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
