"""The error for a daemon that eplbctl cannot reach: one line, in words of the operating system, and its exit code."""

import json
import os
import random
import signal
import socket
import subprocess
import unittest

from command import DEADLINE, EPLBCTL, CommandTest, run

NOBODY = 65534


def unused_port():
    """A TCP port below the ephemeral range without a listener."""
    for _ in range(200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := random.randint(20000, 32000)))
                return port
            except OSError:
                continue
    raise AssertionError("no free port between 20000 and 32000")


class ConnectionTest(CommandTest):
    def test_a_refused_connection_is_called_so(self):
        done = run("status", "--endpoint", f"127.0.0.1:{unused_port()}")
        self.assert_fails(done, 3, ": connection refused\n")
        self.assertNotIn("UNKNOWN", done.stderr)
        self.assert_fails(run("status", "--endpoint", f"unix:{self.directory}/no.sock"), 3, ": no such file or directory\n")

    def test_the_http_address_of_the_daemon_is_told_from_its_grpc_address(self):
        daemon = subprocess.Popen([EPLBCTL.parent / "eplbd", "--listen", f"unix:{self.directory}/eplbd.sock", "--http",
                                   f"127.0.0.1:{unused_port()}", "--store", self.directory / "eplbd.db"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(daemon.stdout.close)
        self.addCleanup(daemon.wait, DEADLINE)
        self.addCleanup(daemon.send_signal, signal.SIGKILL)
        http = json.loads(daemon.stdout.readline())["http"]
        self.assert_fails(run("status", "--endpoint", http), 3, http, "is that eplbd's --http address?")

    def test_an_address_without_a_port_is_wrong_usage(self):
        self.assert_fails(run("status", "--endpoint", "localhost"), 2, '"localhost", expected HOST:PORT or unix:PATH')

    def test_a_socket_that_this_user_may_not_open_is_exit_4_with_its_path(self):
        path = self.directory / "eplbd.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            path.chmod(0o000)
            self.directory.chmod(0o755)
            command = [EPLBCTL, "status", "--endpoint", f"unix:{path}"]
            if os.geteuid() == 0:  # root may open any file
                if subprocess.run(["/bin/ls", EPLBCTL], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True,
                                  check=False).returncode != 0:
                    self.skipTest("another user may not run this build")
                done = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True,
                                      timeout=DEADLINE, env={"HOME": "/nonexistent"}, check=False)
            else:
                done = run(*command[1:])
        self.assert_fails(done, 4, str(path), "may not open the socket")

    def test_the_configuration_file_has_endpoint_and_certificates(self):
        folder = self.directory / "eplb"
        folder.mkdir()
        (folder / "eplbctl.toml").write_text('endpoint = "127.0.0.1:9"\n[tls]\nca = "ca.pem"\ncert = "me.pem"\nkey = "me.key"\n')
        settings = {"XDG_CONFIG_HOME": str(self.directory)}
        self.assert_fails(run("status", environment=settings), 2, f"{folder}/me.pem: ")
        (folder / "eplbctl.toml").write_text('[tls]\nkeyfile = "x"\n')
        self.assert_fails(run("status", environment=settings), 2, f"{folder}/eplbctl.toml: tls.keyfile: expected")


if __name__ == "__main__":
    unittest.main()
