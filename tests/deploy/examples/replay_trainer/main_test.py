"""eplb-trainer: one clear line for a flag that no run can use, before anything is computed."""

import os
import subprocess
import unittest

TRAINER = f"{os.environ['EPLB_BIN']}/eplb-trainer"
TRACE = f"{os.environ['EPLB_DATA']}/moe64_aux.jsonl"


class UsageTest(unittest.TestCase):
    def assert_refused(self, expected, *flags):
        given = {"--rank": 0, "--world": 1, "--trace": TRACE, "--steps": 1, "--rendezvous": "127.0.0.1:1"}
        for flag in flags[::2]:
            given.pop(flag, None)
        words = [str(word) for pair in given.items() for word in pair] + [str(flag) for flag in flags]
        result = subprocess.run([TRAINER, *words], capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertRegex(result.stderr, r"\Aeplb-trainer: [^\n]+\n\Z")
        self.assertIn(expected, result.stderr)

    def test_numbers_out_of_range_are_named_with_their_flag(self):
        for expected, *flags in (("--step-ms is nan, expected 0..1e+06", "--step-ms", "nan"),
                                 ("--step-ms is inf, expected 0..1e+06", "--step-ms", "inf"),
                                 ("--step-ms is -1, expected 0..1e+06", "--step-ms", -1),
                                 ("--world is 0, expected at least 1", "--world", 0),
                                 ("--rank is 2, expected 0..1", "--rank", 2, "--world", 2),
                                 ("--nodes is 0, expected at least 1", "--nodes", 0),
                                 ("--groups is 0, expected at least 1", "--groups", 0),
                                 ("--groups 5 expert groups do not divide the 64 experts", "--groups", 5),
                                 ("--hang-at-step is -3, expected at least 0", "--hang-at-step", -3),
                                 ("--fork-at-step is -1, expected at least 0", "--fork-at-step", -1),
                                 ('--steps is "0", expected 1..1073741824', "--steps", 0),
                                 ('--slow-rank is "0:nan", expected RANK:FACTOR', "--slow-rank", "0:nan")):
            with self.subTest(flags=flags):
                self.assert_refused(expected, *flags)

    def test_a_command_line_is_explained_as_eplbctl_explains_one(self):
        self.assert_refused("--world is given 2 times, expected once (see eplb-trainer --help)", "--world", 1, "--world", 1)
        self.assert_refused("unknown flag --wordl, did you mean --world?", "--wordl", 1)
        self.assert_refused('--world is "1.5", expected an integer', "--world", 1.5)
        self.assert_refused('--split is "batches", expected one of equal, batch, did you mean batch?', "--split", "batches")


if __name__ == "__main__":
    unittest.main()
