"""Ranks of every earlier release at this daemon: their recorded connections (tests/data/wire/VERSION/connections.json, made by
record_release.py), byte for byte and at the recorded times. The job must run to its end as it did then."""

import json
import threading
import time
import unittest

import job as harness
import recorded_connection

RECORDED = sorted((harness.DATA / "wire").glob("*/connections.json"))
DEADLINE = 60


class OldClientTest(harness.DaemonTest):
    def start_daemon(self):
        """returns: its address. Its log is daemon.log."""
        log = self.enterContext((self.directory / "daemon.log").open("w"))
        _, listening = self.spawned("--store", "memory", "--set", "policy.mode=observe", "--set", "policy.name=incremental", "--set",
                                    "policy.every_steps=10", "--set", "report.every_steps=10", stderr=log)
        return listening["grpc"]

    def ask(self, address, *command):
        done = harness.eplbctl(*command, "--endpoint", address, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def replay(self, connections, address):
        """returns: what the daemon said on each connection."""
        heard = [b""] * len(connections)

        def run(i):
            heard[i] = recorded_connection.replay(connections[i], address, begin)

        begin = time.monotonic()
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(connections))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        return heard

    def test_their_jobs_run_to_the_end(self):
        self.assertTrue(RECORDED)
        for path in RECORDED:
            with self.subTest(release=path.parent.name):
                address = self.start_daemon()
                connections = recorded_connection.load(path)
                heard = self.replay(connections, address)
                welcomed = 0
                for connection, said in zip(connections, heard):
                    answered = recorded_connection.Connection([*connection.pieces, (0, False, said)])
                    for stream in recorded_connection.calls_of(connection, b"/eplb.v1.Balancer/Session"):
                        welcomed += len(recorded_connection.messages(answered, stream, False)) > 0
                self.assertEqual(welcomed, 2)
                job, = self.ask(address, "get", "jobs")["jobs"]
                self.assertEqual((job["job"], job["state"], job["world_size"]), ("recorded", "FINISHED", 2))
                self.assertGreaterEqual(job["step"], 29)
                plans = self.ask(address, "get", "plans")["plans"]
                self.assertGreaterEqual(len(plans), 1)
                log = (self.directory / "daemon.log").read_text()
                for wrong in ("malformed", "unknown_message", "denied", "refused", "report_short", "window_incomplete"):
                    self.assertNotIn(f'"{wrong}"', log)

    def test_another_answer_than_then_would_be_noticed(self):
        connections = recorded_connection.load(RECORDED[0])
        for connection in connections:
            connection.pieces = [(at, who, piece.replace(b"recorded", b"recor/ed")) for at, who, piece in connection.pieces]
        address = self.start_daemon()
        self.replay(connections, address)
        self.assertEqual(self.ask(address, "get", "jobs")["jobs"], [])


if __name__ == "__main__":
    unittest.main()
