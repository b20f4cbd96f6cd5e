"""deploy/container without a container engine: the image's file system is made of this build's programs, and its daemon, its
health check and its stop run in a chroot under the image's account. build_in_chroot.sh runs the other steps of the
Containerfile."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["EPLB_BIN"])
IMAGE = ROOT / "deploy" / "container"
DEADLINE = 60


def instructions():
    """returns: the Containerfile as (word, rest), lines joined."""
    text = re.sub(r"\\\n", " ", (IMAGE / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


def values(word):
    return [rest for name, rest in instructions() if name == word]


class ContainerfileTest(unittest.TestCase):
    def test_the_image_runs_as_no_root_by_number(self):
        user, = values("USER")
        self.assertRegex(user, r"^[1-9]\d+:[1-9]\d+$")
        command, = [run for run in values("RUN") if "rootfs.sh" in run]
        self.assertEqual(command.split()[2], user.split(":")[0])

    def test_files_that_it_names_are_there(self):
        for run in values("RUN"):
            for word in re.findall(r"deploy/\S+", run):
                self.assertTrue((ROOT / word).exists(), word)
        for line in (ROOT / ".dockerignore").read_text().splitlines():
            self.assertNotIn(line, ("deploy", "proto", "server", "client"))

    def test_its_ports_are_the_daemons(self):
        keys = subprocess.run([BIN / "eplbd", "--help-config"], capture_output=True, text=True, timeout=DEADLINE).stdout
        ports, = values("EXPOSE")
        self.assertEqual(ports.split(), re.findall(r"default 127\.0\.0\.1:(\d+)", keys))


class RootfsTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-image-")))
        self.rootfs = self.directory / "rootfs"

    def make(self, *arguments):
        return subprocess.run([IMAGE / "rootfs.sh", *arguments], capture_output=True, text=True, timeout=DEADLINE)

    def in_image(self, *command, **more):
        """A process as the engine would start it: root of the file system, account and variables of the image."""
        variables = dict(pair.split("=", 1) for pair in shlex.split(values("ENV")[0]))
        return subprocess.Popen(["/usr/sbin/chroot", "--userspec", values("USER")[0], self.rootfs, *command], env=variables,
                                stderr=subprocess.PIPE, text=True, **more)

    def test_wrong_usage_makes_nothing(self):
        self.assertEqual(self.make(self.rootfs, "10001").returncode, 2)
        self.assertEqual(self.make(self.rootfs, "0", BIN / "eplbd").returncode, 2)
        self.assertFalse(self.rootfs.exists())
        self.assertEqual(self.make(self.directory, "10001", BIN / "eplbd").returncode, 2)

    @unittest.skipIf(os.geteuid() != 0, "chroot needs root")
    def test_the_daemon_serves_is_healthy_and_stops_in_its_file_system(self):
        made = self.make(self.rootfs, "10001", BIN / "eplbd", BIN / "eplbctl")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(sorted(path.name for path in (self.rootfs / "usr/bin").iterdir()), ["eplbctl", "eplbd"])
        self.assertEqual((self.rootfs / "var/lib/eplb").stat().st_uid, 10001)
        program, = [json.loads(rest) for rest in values("ENTRYPOINT")]
        health = json.loads(values("HEALTHCHECK")[0].partition("CMD ")[2])
        daemon = self.in_image(*program, "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", stdout=subprocess.PIPE)
        self.addCleanup(daemon.stdout.close)
        self.addCleanup(daemon.stderr.close)
        self.addCleanup(daemon.wait, DEADLINE)
        self.addCleanup(daemon.kill)
        self.assertIn("listening", daemon.stdout.readline())
        healthy = self.in_image(*health, stdout=subprocess.PIPE)
        said, problem = healthy.communicate(timeout=DEADLINE)
        self.assertEqual(healthy.returncode, 0, problem)
        self.assertIn("eplbd", said)
        self.assertTrue((self.rootfs / "var/lib/eplb/eplbd.db").is_file())
        daemon.send_signal(getattr(signal, values("STOPSIGNAL")[0]))
        self.assertEqual(daemon.wait(DEADLINE), 0)
        ill = self.in_image(*health, stdout=subprocess.PIPE)
        ill.communicate(timeout=DEADLINE)
        self.assertEqual(ill.returncode, 3)


if __name__ == "__main__":
    unittest.main()
