"""eplbd's notifications to systemd: a socket of this test takes the service manager's place."""

import os
import signal
import socket
import subprocess
import time
import unittest

import job as harness


class ServiceManagerTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.manager = self.enterContext(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self.manager.bind(str(self.directory / "notify"))
        self.manager.settimeout(20 * harness.PATIENCE)

    def start(self, environment):
        self.address = f"127.0.0.1:{harness.free_port()}"
        out = self.enterContext(open(self.directory / "eplbd.log", "w+"))
        daemon = subprocess.Popen(
            [harness.BIN / "eplbd", "--listen", self.address, "--http", f"127.0.0.1:{harness.free_port()}",
             "--store", self.directory / "eplbd.db"],
            stdout=subprocess.DEVNULL, stderr=out,
            env={**os.environ, "NOTIFY_SOCKET": str(self.directory / "notify"), **environment})
        self.addCleanup(lambda: daemon.poll() is None and (daemon.kill(), daemon.wait(10)))
        return daemon

    def receive(self):
        return self.manager.recv(4096).decode().splitlines()

    def test_ready_comes_when_it_serves_and_stopping_when_it_drains(self):
        daemon = self.start({})
        self.assertEqual(self.receive(), ["READY=1", f"STATUS=serves on {self.address}"])
        host, port = self.address.split(":")
        socket.create_connection((host, int(port)), 5).close()
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(self.receive()[:2], ["STOPPING=1", "STATUS=draining"])
        self.assertEqual(daemon.wait(30 * harness.PATIENCE), 0)

    def test_the_watchdog_hears_of_a_daemon_that_is_alive_and_of_no_other(self):
        daemon = self.start({"WATCHDOG_USEC": "300000"})
        self.receive()
        for _ in range(3):
            self.assertEqual(self.receive(), ["WATCHDOG=1"])
        daemon.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        self.manager.setblocking(False)
        with self.assertRaises(BlockingIOError):  # what it said before it was stopped, then silence
            while True:
                self.receive()
        time.sleep(0.4)
        with self.assertRaises(BlockingIOError):
            self.receive()
        daemon.send_signal(signal.SIGCONT)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(30 * harness.PATIENCE), 0)

    def test_a_manager_that_does_not_listen_is_logged_once_and_harms_nothing(self):
        self.manager.close()
        daemon = self.start({"WATCHDOG_USEC": "100000"})
        log = self.directory / "eplbd.log"
        harness.wait_for(lambda: "notify_failed" in log.read_text(), 20, "a line about the manager")
        time.sleep(0.3)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(30 * harness.PATIENCE), 0)
        self.assertEqual(log.read_text().count("notify_failed"), 1)


if __name__ == "__main__":
    unittest.main()
