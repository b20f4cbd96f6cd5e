"""Ranks on two hosts (network_hosts.py), two ranks on each, the daemon on one."""

import re
import subprocess
import sys
import unittest

import job as harness
import network_hosts


class NetworkNamespaceTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.hosts = network_hosts.Hosts(self)

    def test_ranks_of_two_hosts_switch_together(self):
        outer = (self.hosts.LEADER, self.hosts.RANKS)
        addresses = self.hosts.OUTER
        endpoint = f"{addresses[0]}:{harness.free_port()}"
        rendezvous = f"{addresses[0]}:{harness.free_port()}"
        log = self.directory / "eplbd.log"
        self.hosts.start(self, outer[0], [harness.BIN / "eplbd", "--set", "policy.every_steps=50", "--listen", endpoint,
                                          "--insecure-network", "--http", "127.0.0.1:0", "--store", "memory"], log)
        harness.wait_for(lambda: '"listening"' in log.read_text(), 20, "eplbd listens")
        said = subprocess.run([harness.BIN / "eplbd", "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
        version = re.search(r"gRPC (\d+)\.(\d+)\.(\d+)", said).groups()
        old = tuple(int(part) for part in version) < (1, 56, 2)
        self.assertEqual('"old_grpc"' in log.read_text(), old, "a gRPC with known faults is told where other machines reach it")
        errors = [self.directory / f"rank-{rank}.err" for rank in range(4)]
        ranks = [self.hosts.start(self, outer[rank // 2], [
            harness.BIN / "eplb-trainer", "--rank", rank, "--world", 4, "--endpoint", endpoint, "--rendezvous", rendezvous,
            "--bind-address", addresses[rank // 2], "--nodes", 2, "--trace", harness.DATA / "moe64_aux.jsonl", "--steps", 300,
            "--slots", 72, "--step-ms", 8, "--parameters", 128, "--log-dir", self.directory, "--report-json",
            self.directory / "run.json"], errors[rank]) for rank in range(4)]
        codes = [rank.wait(120 * harness.PATIENCE) for rank in ranks]
        self.assertEqual(codes, [0] * 4, [path.read_text() for path in errors])
        result = harness.eplbctl("report", self.directory, "--min-rebalances", 1)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
