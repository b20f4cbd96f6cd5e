"""The Unix socket that eplbd opens beside its address, and where a service manager's folders put it."""

import os
import signal
import subprocess
import unittest

import job as harness


class UnixSocketTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        for name in ("run", "state"):
            (self.directory / name).mkdir()
        self.socket = self.directory / "run" / "eplbd.sock"
        self.starts = 0

    def start(self, *flags):
        """A daemon under a service manager that gave it folders, and its first line."""
        environment = {name: value for name, value in os.environ.items() if name != "EPLB_LISTEN_UNIX"}
        self.starts += 1
        self.log = self.directory / f"eplbd-{self.starts}.log"  # its own: a daemon before it may still write
        daemon, listening = self.spawned(*flags, stderr=self.enterContext(open(self.log, "w")), env={
            **environment, "RUNTIME_DIRECTORY": str(self.directory / "run"), "STATE_DIRECTORY": str(self.directory / "state")})
        self.assertTrue(listening, self.log.read_text())
        return daemon, listening

    def status(self, endpoint):
        return harness.eplbctl("status", "--endpoint", endpoint)

    def test_a_service_has_its_socket_and_store_in_the_folders_it_was_given(self):
        daemon, listening = self.start()
        self.assertEqual(listening["unix"], f"unix:{self.socket}")
        self.assertEqual(self.socket.stat().st_mode & 0o777, 0o600)
        self.assertTrue((self.directory / "state" / "eplbd.db").exists())
        answer = self.status(listening["unix"])
        self.assertEqual(answer.returncode, 0, answer.stderr)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(30 * harness.PATIENCE), 0)
        self.assertFalse(self.socket.exists())

    def test_a_killed_daemons_socket_is_taken_over_and_a_live_ones_is_not(self):
        first, _ = self.start()
        first.kill()
        first.wait(10)
        self.assertTrue(self.socket.is_socket())
        _, second = self.start()
        self.assertEqual(second["unix"], f"unix:{self.socket}")
        _, third = self.start("--store", "memory")
        self.assertNotIn("unix", third)
        harness.wait_for(lambda: "another eplbd listens there" in self.log.read_text(), 30, "the reason in the log")
        self.assertEqual(self.status(second["unix"]).returncode, 0)

    def test_its_group_may_use_it_when_the_configuration_says_so(self):
        self.start("--set", "listen.unix_access=group")
        self.assertEqual(self.socket.stat().st_mode & 0o777, 0o660)

    def test_a_socket_that_was_asked_for_and_cannot_be_opened_stops_the_daemon(self):
        daemon = subprocess.run(
            [harness.BIN / "eplbd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "memory",
             "--set", f"listen.unix={self.directory}/none/eplbd.sock"],
            capture_output=True, text=True, timeout=60 * harness.PATIENCE, check=False)
        self.assertEqual(daemon.returncode, 1)
        self.assertEqual(daemon.stdout, "")
        self.assertRegex(daemon.stderr.splitlines()[-1], "^eplbd: .*none/eplbd.sock: cannot open ")


if __name__ == "__main__":
    unittest.main()
