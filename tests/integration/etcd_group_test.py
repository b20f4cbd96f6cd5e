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
