#!/usr/bin/env python3
"""Each mutant of tests/support/cuda_emulator/mutants.py must fail a test that passes without it."""
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support" / "cuda_emulator"))
import mutants  # noqa: E402

SECONDS = 240  # limit of a run, on a machine that has other work


def run(tests, **variables):
    """(exit status, output); a signal is a status below 0. A run without an end shows nothing: an error."""
    environment = dict(os.environ, **variables)
    ran = subprocess.run([os.environ["EPLB_EMULATED_TEST"], f"--gtest_filter={tests}", "--gtest_brief=1"],
                         env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    return ran.returncode, ran.stdout + ran.stderr


class MutantsDie(unittest.TestCase):
    def test_every_mutant_fails_its_test(self):
        for mutant in mutants.MUTANTS:
            with self.subTest(mutant.name):
                status, output = run(mutant.tests, EPLB_CUDA_MUTANT=mutant.name)
                self.assertNotIn(status, (0, 2), f"{mutant.tests} passes:\n{output}")

    # With one seed: cuda_emulated_test takes all.
    def test_without_a_mutant_they_pass(self):
        status, output = run(":".join(sorted({mutant.tests for mutant in mutants.MUTANTS})), EPLB_EMULATOR_SEED="0")
        self.assertEqual(status, 0, output[-3000:])


if __name__ == "__main__":
    unittest.main()
