"""Runs the trainers of deploy/examples/pytorch_moe as processes, and reads what they log."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "deploy/examples/pytorch_moe"
sys.path.insert(0, str(ROOT / "tests/integration"))

import job as harness  # noqa: E402

# Small enough for four ranks on two busy cores; experts get very different numbers of tokens, some none.
TINY = {"ranks": 4, "width": 16, "hidden": 24, "heads": 2, "length": 16}
TIMEOUT_SECONDS = 250


class ExampleTest(unittest.TestCase):
    """Runs of one class share a directory, and a daemon that decides often with the policy that moves most."""

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="eplb-torch-")))
        cls.daemon = harness.Daemon(cls.directory, policy_every=20, policy="balanced", config="[report]\nevery_steps = 10\n")
        cls.daemon.start()
        cls.addClassCleanup(lambda: cls.daemon.process.poll() is None and cls.daemon.kill())

    @classmethod
    def command(cls, script, name, options):
        options = {**TINY, **({"log_json": cls.directory / f"{name}.jsonl"} if name else {}), **options}
        return [sys.executable, "-B", EXAMPLE / script,
                *(part for option, value in options.items() for part in (f"--{option.replace('_', '-')}", str(value)))]

    @classmethod
    def start(cls, script, name, environment=None, **options):
        return subprocess.run(cls.command(script, name, options), capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
                              env={**os.environ, **(environment or {})})

    @classmethod
    def train(cls, script, name, **options):
        """Returns the records of a run's steps; fails unless all ranks end well."""
        done = cls.start(script, name, **options)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        return cls.records(name)

    @classmethod
    def records(cls, name):
        lines = (cls.directory / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @classmethod
    def ask(cls, *arguments):
        """Returns what eplbctl reports of the daemon."""
        done = subprocess.run([harness.BIN / "eplbctl", *map(str, arguments), "--endpoint", cls.daemon.endpoint, "-o", "json"],
                              capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return json.loads(done.stdout)
