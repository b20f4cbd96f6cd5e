"""Runs the example's training as processes of their own, and reads what they leave behind."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "deploy/examples/pytorch_moe"
WORKER = pathlib.Path(__file__).resolve().parent / "worker.py"
sys.path[:0] = [str(EXAMPLE), str(ROOT / "tests/integration")]

PYTHON = sys.executable

# Small enough for four ranks on two busy cores; experts get very different numbers of tokens, some none.
TINY = {"layers": 2, "experts": 8, "width": 16, "hidden": 24, "heads": 2, "length": 16, "sequences": 8}
TIMEOUT_SECONDS = 300


def flags(options):
    """Command line of {"name": value}; True is a flag without a value."""
    return [part for name, value in options.items()
            for part in ([f"--{name.replace('_', '-')}"] if value is True else
                         [f"--{name.replace('_', '-')}", str(value)])]


def steps_of_test(default):
    """How long the runs are: EPLB_TORCH_STEPS, for a longer look than a test takes."""
    return int(os.environ.get("EPLB_TORCH_STEPS", default))


def read_tensors(checkpoint):
    """{name: array} of a checkpoint; the experts' are [experts, ...], in logical order."""
    return {path.stem: np.load(path) for path in sorted(pathlib.Path(checkpoint).glob("*.npy"))}


def relative_difference(value, reference):
    """Largest difference as a share of the reference's largest value; 0 for two zeros."""
    largest = np.abs(reference).max()
    difference = np.abs(np.asarray(value) - np.asarray(reference)).max()
    return float(difference / largest) if largest > 0 else float(difference)


class ExampleTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-torch-")))

    def run_worker(self, name, **options):
        """Trains with the test's worker; fails unless all ranks end well. returns: the records of its steps."""
        options = {**TINY, "log_json": self.directory / f"{name}.jsonl", "checkpoint_dir": self.directory / name,
                   **options}
        result = subprocess.run([PYTHON, "-B", WORKER, *flags(options)], capture_output=True, text=True,
                                timeout=TIMEOUT_SECONDS, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return self.records(name)

    def records(self, name):
        lines = (self.directory / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def checkpoint(self, name, step):
        return self.directory / name / f"step-{step:06d}"

    def largest_difference(self, one, other, step):
        """(relative difference, name) of the tensor that differs most between two runs' checkpoints."""
        tensors, references = (read_tensors(self.checkpoint(name, step)) for name in (one, other))
        self.assertEqual(tensors.keys(), references.keys())
        self.assertGreater(len(tensors), 0)
        return max((relative_difference(tensors[name], references[name]), name) for name in tensors)

    def assert_bit_equal(self, one, other, step):
        tensors, references = (read_tensors(self.checkpoint(name, step)) for name in (one, other))
        self.assertEqual(tensors.keys(), references.keys())
        self.assertGreater(len(tensors), 0)
        differing = [name for name in tensors if tensors[name].tobytes() != references[name].tobytes()]
        self.assertEqual(differing, [])
