"""train.py as a user starts it."""

import json
import os
import pathlib
import re
import subprocess
import unittest

import example

import numpy as np


class CommandLineTest(example.ExampleTest):
    def train(self, *arguments, **environment):
        return subprocess.run([example.PYTHON, "-B", example.EXAMPLE / "train.py", *arguments], capture_output=True,
                              text=True, timeout=example.TIMEOUT_SECONDS, env={**os.environ, **environment})

    def test_lines_of_eplb_without_replicas(self):
        text = (example.EXAMPLE / "balancer.py").read_text(encoding="utf-8")
        parts = re.findall(r"# EPLB\n(.*?)# end of EPLB", text, re.S)
        lines = [line for part in parts for line in part.splitlines() if line.strip()]
        self.assertGreaterEqual(len(lines), 5)
        self.assertLessEqual(len(lines), 12, lines)

    def test_log_and_plot_are_written(self):
        log, png = self.directory / "run.jsonl", self.directory / "run.png"
        result = self.train(*example.flags({**example.TINY, "ranks": 2, "steps": 3, "log_json": log, "plot": png}))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("balancedness", result.stdout)
        self.assertTrue(png.read_bytes().startswith(b"\x89PNG"))
        records = self.records("run")
        self.assertEqual([record["step"] for record in records], [0, 1, 2])
        for record in records:
            self.assertAlmostEqual(record["mean_balancedness"], np.mean(record["balancedness"]))
            # Nothing moved, and without replicas the equal split is the real one.
            self.assertAlmostEqual(record["mean_balancedness"], record["static_mean_balancedness"])

    def test_eplbctl_replays_the_log(self):
        log = self.directory / "run.jsonl"
        result = self.train(*example.flags({**example.TINY, "ranks": 4, "steps": 6, "log_json": log}))
        self.assertEqual(result.returncode, 0, result.stderr)
        result = subprocess.run([f"{os.environ['EPLB_BIN']}/eplbctl", "replay", "--trace", log, "--gpus", "4", "--slots",
                                 "8", "-o", "json"], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        # The library computes the same figure from the same load.
        ours = np.mean([record["mean_balancedness"] for record in self.records("run")])
        self.assertAlmostEqual(json.loads(result.stdout)["summary"]["balancedness_static_mean"], ours, places=9)

    def test_wrong_settings_are_named(self):
        for arguments, message in ((["--top-k", "9", "--experts", "8"], "top_k is 9, of 8 experts"),
                                   (["--ranks", "1", "--text", "/nothing/here"], "/nothing/here"),
                                   (["--split", "half"], "split is half, it must be equal or batch"),
                                   (["--redundant", "-3"], "redundant is -3, it must be at least 0"),
                                   (["--experts", "1", "--top-k", "1", "--ranks", "2"], "fewer than the 2 ranks"),
                                   (["--plot", "/nothing/here/run.png"], "there is no directory /nothing/here"),
                                   (["--ranks", "1", "--resume", str(self.directory)], "not complete")):
            result = self.train(*arguments)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(message, result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_without_the_package_eplb_only_what_needs_it_is_refused(self):
        without = self.without("eplb")
        for wanted in (["--eplb"], ["--redundant", "2"], ["--split", "batch"]):
            result = self.train("--ranks", "1", *wanted, **without)
            self.assertEqual(result.returncode, 2)
            self.assertRegex(result.stderr, r"^usage: .*\n.*--eplb, --redundant and --split batch need the Python package eplb.*\n$")
        result = self.train(*example.flags({**example.TINY, "ranks": 2, "steps": 2}), **without)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_without_matplotlib_a_plot_is_refused_before_training(self):
        result = self.train("--ranks", "1", "--plot", str(self.directory / "run.png"), **self.without("matplotlib"))
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"^usage: .*\n.*--plot needs the Python package matplotlib.*\n$")

    def without(self, package):
        """Environment of a Python that does not have the package."""
        (self.directory / "sitecustomize.py").write_text(f"import sys\nsys.modules['{package}'] = None\n", encoding="utf-8")
        return {"PYTHONPATH": str(self.directory)}

    def test_what_the_client_of_eplb_says_is_told_in_one_line(self):
        arguments = example.flags({**example.TINY, "ranks": 1, "steps": 2, "eplb": True})
        result = self.train(*arguments, EPLB_LIBRARY="/nothing/here")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^rank 0: EPLB_LIBRARY is /nothing/here, which cannot be loaded.*\n$")
        result = self.train(*arguments, "--job", "no spaces")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^rank 0: job.*no spaces.*\n$")

    def test_a_rank_that_fails_ends_the_others(self):
        # 3 ranks cannot share 8 sequences equally; each would say so, and none may wait for another.
        result = self.train(*example.flags({**example.TINY, "ranks": 3, "steps": 3}))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("do not part over 3 ranks", result.stderr)

    def test_ranks_end_with_the_process_that_started_them(self):
        log = self.directory / "run.jsonl"
        arguments = example.flags({**example.TINY, "ranks": 2, "steps": 1_000_000, "log_json": log})
        job = subprocess.Popen([example.PYTHON, "-B", example.EXAMPLE / "train.py", *arguments],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.wait)
        self.addCleanup(job.terminate)
        self.assertIn("step     0", job.stdout.readline())
        ranks = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text(encoding="utf-8").split()
        self.assertEqual(len(ranks), 2)
        job.terminate()
        job.stdout.read()  # its end: no process has it open any more
        self.assertEqual(job.wait(example.TIMEOUT_SECONDS), 128 + 15)
        self.assertEqual([rank for rank in ranks if pathlib.Path(f"/proc/{rank}").exists()], [])


if __name__ == "__main__":
    unittest.main()
