"""Runs the built eplbctl for the tests of its commands."""

import math
import os
import pathlib
import random
import re
import subprocess
import tempfile
import unittest

EPLBCTL = pathlib.Path(os.environ["EPLB_BIN"]) / "eplbctl"
DATA = pathlib.Path(os.environ["EPLB_DATA"])
DEADLINE = 60  # seconds; sanitizer builds are slow


def run(*arguments, **options):
    """The finished process; its output is bytes-clean text. Nothing of the caller's settings reaches it."""
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent"}
    environment.update(options.pop("environment", {}))
    for name, value in os.environ.items():
        if name.endswith("SAN_OPTIONS"):
            environment[name] = value
    return subprocess.run([EPLBCTL, *map(str, arguments)], capture_output=True, text=True, errors="replace",
                          timeout=DEADLINE, env=environment, **options)


# Notes of `plan` about a shape that the engines cannot hold, and about layers without load.
NOTES = re.compile(r"note: \d+ GPUs do not divide .*? next: \d+ slots|note: \d+ layers? without load.*? part in means|"
                   r"note: the load has no tokens, so that no layer has figures")


def without_notes(stderr):
    """The messages but for those notes."""
    rest = NOTES.sub("", stderr)
    return "" if rest.strip() in ("eplbctl:", "eplbctl: ;") else rest


def draw(layers, experts, seed=3, skew=1.0):
    """A skewed load [layers][experts], the same for the same seed."""
    source = random.Random(seed)
    return [[int(1000 * math.exp(source.gauss(0, skew))) for _ in range(experts)] for _ in range(layers)]


class CommandTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="eplb-cli-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def write(self, name, content):
        path = self.directory / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def assert_fails(self, result, code, *words):
        """Exit `code`, nothing on stdout, one line on stderr that has the words."""
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertRegex(result.stderr, r"\Aeplbctl: [^\n]+\n\Z")
        for word in words:
            self.assertIn(str(word), result.stderr)
