"""A daemon with few file descriptors: connections that take all they can leave probes and queries alive."""

import resource
import socket
import time
import unittest
import urllib.request

import job as harness
import raw_rank

LIMIT = 80
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty settings
SOON = 1.0  # seconds


class DescriptorsTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.unix = f"unix:{self.directory}/eplbd.sock"
        self.log = self.directory / "log"
        _, listening = self.spawned("--store", self.directory / "db", "--set", f"listen.unix={self.directory}/eplbd.sock",
                                    stderr=self.enterContext(open(self.log, "w")),
                                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT)))
        self.grpc, self.http = listening["grpc"], listening["http"]

    def connect(self, count, address, first=b""):
        host, port = address.rsplit(":", 1)
        for _ in range(count):
            one = self.enterContext(socket.create_connection((host, int(port)), timeout=10 * harness.PATIENCE))
            if first:
                try:
                    one.sendall(first)
                except OSError:
                    pass  # it was closed at once

    def assert_probes_answer(self):
        for path in ("livez", "readyz"):
            started = time.monotonic()
            with urllib.request.urlopen(f"http://{self.http}/{path}", timeout=10 * harness.PATIENCE) as answer:
                self.assertEqual(answer.status, 200)
            self.assertLess(time.monotonic() - started, SOON * harness.PATIENCE, path)

    def assert_status_answers(self, endpoint):
        result = harness.eplbctl("status", "--endpoint", endpoint, "--timeout", "5s")
        self.assertEqual(result.returncode, 0, result.stderr + self.log.read_text())

    def test_silent_connections_make_room_for_those_that_speak(self):
        self.connect(96, self.grpc)
        self.assert_probes_answer()
        self.assert_status_answers(self.grpc)
        self.assert_status_answers(self.unix)

    def test_connections_that_stay_leave_probes_and_operators_alive(self):
        self.connect(96, self.grpc, PREFACE)
        self.connect(96, self.http)
        self.assert_probes_answer()
        self.assert_status_answers(self.unix)
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10 * harness.PATIENCE) as answer:
            crowded = [line for line in answer.read().decode().splitlines() if 'kind="crowded"' in line]
        self.assertGreater(float(crowded[0].split()[-1]), 0)

    def test_doctor_names_the_limit_once_half_of_the_room_is_taken(self):
        doctor = ("doctor", "--endpoint", self.unix, "--timeout", "5s")
        before = harness.eplbctl(*doctor)
        self.assertEqual(before.returncode, 0, before.stdout + before.stderr)
        job = raw_rank.RawJob(int(self.grpc.rsplit(":", 1)[1]), "wide", world=11)
        self.addCleanup(job.close)
        job.connect()
        for rank in job.ranks.values():
            self.assertTrue(rank.welcomed.wait(20 * harness.PATIENCE))
        crowded = harness.eplbctl(*doctor)
        self.assertEqual(crowded.returncode, 8, crowded.stdout + crowded.stderr)
        self.assertIn(f"the limit of {LIMIT} open files has room for 20 streams", " ".join(crowded.stdout.split()))

    def test_what_does_not_fit_is_told_at_the_start(self):
        told = "limits.max_sessions is 20000, but the limit of 80 open files has room for 20 streams"
        harness.wait_for(lambda: told in self.log.read_text(), 10, told)


if __name__ == "__main__":
    unittest.main()
