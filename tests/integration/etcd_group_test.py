"""Daemons that share an etcd, when their files, their etcd or their callers misbehave.

Without /usr/bin/etcd the tests are skipped.
"""

import base64
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))

import doors  # noqa: E402
import replicas  # noqa: E402

harness = replicas.harness
LEADER_KEY = "/eplb/v1/leader"


def encoded(text):
    return base64.b64encode(text.encode()).decode()


@unittest.skipUnless(replicas.ETCD.exists(), "/usr/bin/etcd is missing: install the package etcd-server")
class EtcdGroupTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-etcd-")))
        self.doors = doors.Doors()
        self.addCleanup(self.doors.close)
        self.etcd = replicas.Member(0, self.directory, [(harness.free_port(), harness.free_port())])
        self.start(self.etcd)

    def start(self, process):
        process.start()
        self.addCleanup(process.kill)
        return process

    def daemons(self, number):
        """Daemons of which the first leads."""
        group = []
        for i in range(number):
            group.append(self.start(replicas.Replica(i, self.directory, self.doors, [self.etcd])))
            harness.wait_for(lambda: group[0].leads(), 30, "the first daemon leads")
        return group

    def ask_etcd(self, path, **body):
        answer = self.etcd.ask(path, body)
        self.assertIsNotNone(answer, f"etcd does not answer {path}")
        return answer

    def take_lead(self, daemon):
        """The leader's key disappears: the daemon steps down."""
        lost = len(daemon.events("lead_lost"))
        self.ask_etcd("/v3/kv/deleterange", key=encoded(LEADER_KEY))
        harness.wait_for(lambda: len(daemon.events("lead_lost")) > lost, 10, "the daemon steps down")

    def doctor(self, *endpoints):
        """Exit code and what is printed, on one line."""
        done = subprocess.run([harness.BIN / "eplbctl", "doctor", "--timeout", "2s", "--endpoint", ",".join(endpoints)],
                              capture_output=True, text=True, timeout=60 * harness.PATIENCE)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def test_doctor_names_an_etcd_that_is_gone_at_every_daemon(self):
        group = self.daemons(2)
        endpoints = [daemon.to_ranks.endpoint for daemon in group]
        leader, standby = group
        self.assertEqual(self.doctor(*endpoints)[0], 0)
        self.etcd.kill()
        # The leader leads until its lease ends.
        harness.wait_for(lambda: "warning: etcd: unreachable since " in self.doctor(endpoints[0])[1], 5, "the leader names etcd")
        harness.wait_for(lambda: leader.events("lead_lost"), 20, "the leader steps down")
        for asked in (endpoints[:1], endpoints[1:], endpoints):
            harness.wait_for(lambda: self.doctor(*asked)[1].count("etcd: unreachable since ") == len(asked), 10, "etcd is named")
            code, text = self.doctor(*asked)
            self.assertEqual(code, 8, text)
            self.assertIn("etcd at 127.0.0.1", text)
        with self.assertRaises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"http://127.0.0.1:{standby.http_port}/readyz", timeout=10)
        self.assertIn("etcd: unreachable since ", refusal.exception.read().decode())
        self.start(self.etcd)
        harness.wait_for(lambda: self.doctor(*endpoints)[0] == 0, 30, "doctor is content again")

    def test_a_leader_steps_down_while_its_configuration_is_edited(self):
        daemon, = self.daemons(1)
        sound = daemon.config.read_text()
        for text in ("[policy\n", "", "[policy]\nnam = 1\n", None, sound[:len(sound) // 2]):
            if text is None:
                daemon.config.unlink()
            else:
                daemon.config.write_text(text)
            self.take_lead(daemon)
            harness.wait_for(lambda: not daemon.lives() or daemon.leads(), 30, "the daemon leads again")
            self.assertTrue(daemon.lives(), f"{text!r}: exit {daemon.process.poll()}: {daemon.log.read_text()[-400:]}")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
