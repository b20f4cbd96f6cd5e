"""eplbd.service, its user and its configuration: what systemd says of them, and the daemon as the unit starts it."""

import configparser
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "deploy/packages"
EPLBD = pathlib.Path(os.environ["EPLB_BUILD"]) / "bin" / "eplbd"
DEADLINE = 30
MOST_EXPOSED = 2.0  # on systemd-analyze's scale of 10


def unit_text(program, config):
    return (PACKAGES / "eplbd.service.in").read_text().replace("@eplbd_program@", str(program)).replace("@eplbd_config@", str(config))


def settings():
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str
    parser.read_string(unit_text("/usr/bin/eplbd", "/etc/eplb/eplbd.toml"))
    return parser["Service"]


class UnitTest(unittest.TestCase):
    def setUp(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze here: deploy/setup.sh --packages installs it")
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-unit-")))
        self.unit = self.directory / "eplbd.service"
        self.unit.write_text(unit_text(EPLBD, "/etc/eplb/eplbd.toml"))

    def test_systemd_finds_nothing_wrong(self):
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", self.unit], capture_output=True, text=True, timeout=DEADLINE)
        of_ours = [line for line in done.stderr.splitlines() if "eplbd" in line]
        self.assertEqual((of_ours, done.returncode), ([], 0), done.stderr)
        self.unit.write_text(self.unit.read_text().replace("ProtectHome=", "ProtectHomes="))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", self.unit], capture_output=True, text=True, timeout=DEADLINE)
        self.assertIn("ProtectHomes", done.stderr)

    def test_little_is_exposed(self):
        done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", self.unit], capture_output=True, text=True,
                              timeout=DEADLINE)
        level = float(re.search(r"Overall exposure level for eplbd.service: ([\d.]+)", done.stdout)[1])
        self.assertLessEqual(level, MOST_EXPOSED, done.stdout)

    def test_it_reports_by_itself_and_is_not_reloaded(self):
        self.assertEqual(settings()["Type"], "notify")
        self.assertNotIn("ExecReload", settings())  # the daemon reads its configuration once
        self.assertEqual(settings()["RestartPreventExitStatus"], "2")

    def test_the_user_of_the_unit_is_made(self):
        done = subprocess.run(["systemd-sysusers", "--dry-run", "--root", self.directory, PACKAGES / "eplbd.sysusers"],
                              capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(settings()["User"], settings()["Group"])
        self.assertRegex(done.stdout + done.stderr, rf"user '{settings()['User']}'")


class ConfigurationTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-unit-")))

    def check(self, text):
        config = self.directory / "eplbd.toml"
        config.write_text(text)
        return subprocess.run([EPLBD, "--check-config", "--config", config], capture_output=True, text=True, timeout=DEADLINE,
                              env={"PATH": "/usr/bin:/bin"})

    def test_the_file_is_a_configuration_also_with_its_examples(self):
        text = (PACKAGES / "eplbd.toml").read_text()
        done = self.check(text)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        examples = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.M)
        self.assertIn('\n[tls]\ncert = "/etc/eplb/', examples)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=eplbd", "-days", "2", "-keyout",
                        "server.key", "-out", "server.pem"], cwd=self.directory, check=True, capture_output=True, timeout=DEADLINE)
        shutil.copyfile(self.directory / "server.pem", self.directory / "ca.pem")
        (self.directory / "server.key").chmod(0o640)
        done = self.check(examples.replace("/etc/eplb/", f"{self.directory}/"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotEqual(self.check(examples.replace("grpc = ", "grcp = ")).returncode, 0)


class StartedTest(unittest.TestCase):
    """The daemon with what the unit gives it; a socket of the test takes systemd's place."""

    def test_it_reports_ready_keeps_its_places_and_feeds_the_watchdog(self):
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-unit-")))
        manager = self.enterContext(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(str(directory / "notify"))
        manager.settimeout(DEADLINE)
        (directory / "state").mkdir()
        (directory / "run").mkdir()
        config = directory / "eplbd.toml"
        config.write_text((PACKAGES / "eplbd.toml").read_text())
        seconds = int(re.fullmatch(r"(\d+)s", settings()["WatchdogSec"])[1])
        command = settings()["ExecStart"].split()
        self.assertEqual(command[0], "/usr/bin/eplbd")
        environment = {"PATH": "/usr/bin:/bin", "NOTIFY_SOCKET": str(directory / "notify"), "STATE_DIRECTORY": str(directory / "state"),
                       "RUNTIME_DIRECTORY": str(directory / "run"), "WATCHDOG_USEC": str(seconds * 1000),  # a thousandth of the unit's
                       "EPLB_LISTEN_GRPC": "127.0.0.1:0", "EPLB_LISTEN_HTTP": "127.0.0.1:0"}
        daemon = subprocess.Popen([EPLBD, command[1], config], env=environment, umask=int(settings()["UMask"], 8),
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(daemon.stdout.close)
        self.addCleanup(lambda: daemon.poll() is None and (daemon.kill(), daemon.wait(DEADLINE)))
        listening = json.loads(daemon.stdout.readline())
        self.assertEqual(listening["unix"], f"unix:{directory}/run/eplbd.sock")
        self.assertEqual(stat.S_IMODE((directory / "run/eplbd.sock").stat().st_mode), 0o660)
        self.assertTrue((directory / "state/eplbd.db").exists())
        self.assertEqual(manager.recv(4096).decode().splitlines()[0], "READY=1")
        for _ in range(3):
            self.assertEqual(manager.recv(4096).decode(), "WATCHDOG=1")
        daemon.send_signal(signal.SIGTERM)
        said = ""
        while "STOPPING=1" not in said:
            said = manager.recv(4096).decode()
        self.assertEqual(daemon.wait(DEADLINE), 0)


if __name__ == "__main__":
    unittest.main()
