"""--split batch: the same training, with a fullest rank that has fewer tokens."""

import os
import re
import subprocess
import unittest

import example  # finds the example's modules

import numpy as np


class SplitTest(example.ExampleTest):
    def train(self, name, **options):
        """returns: the records of the steps, and what the run printed."""
        options = {**example.TINY, "log_json": self.directory / f"{name}.jsonl", "dtype": "float64", **options}
        result = subprocess.run([example.PYTHON, "-B", example.EXAMPLE / "train.py", *example.flags(options)],
                                capture_output=True, text=True, timeout=example.TIMEOUT_SECONDS,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return self.records(name), result.stdout

    def test_it_trains_as_equal_shares_do_and_the_fullest_rank_has_less(self):
        steps = example.steps_of_test(10)
        common = {"ranks": 4, "steps": steps, "redundant": 4}
        equal, _ = self.train("equal", **common)
        batch, said = self.train("batch", split="batch", **common)
        # An expert's gradient is another sum of the same tokens: equal to rounding, as with replicas at all.
        apart = max(abs(one[name] - other[name]) / abs(other[name])
                    for one, other in zip(batch, equal) for name in ("loss", "gradient_norm"))
        self.assertLessEqual(apart, 1e-10)
        self.assertEqual([record["load"] for record in batch], [record["load"] for record in equal])
        ran, if_equal = (np.array([record[name] for record in batch])
                         for name in ("fullest_rank_tokens", "fullest_rank_tokens_if_equal"))
        mean = np.array([np.sum(record["load"], axis=1) for record in batch]) / 4
        self.assertTrue((ran >= mean).all())
        self.assertTrue((ran <= np.ceil(if_equal)).all())  # an optimum, where halves of a token are not
        self.assertLess(ran.mean(), if_equal.mean())
        self.assertLess(ran.mean(), np.mean([record["fullest_rank_tokens"] for record in equal]))
        printed = re.search(r"^split batch: the fullest rank had ([\d.]+) tokens a layer and step; with equal shares it would "
                            r"have had ([\d.]+) \(\+[\d.]+%\), and the mean rank has ([\d.]+)$", said, flags=re.M)
        self.assertIsNotNone(printed, said)
        for text, value in zip(printed.groups(), (ran.mean(), if_equal.mean(), mean.mean())):
            self.assertAlmostEqual(float(text), value, delta=0.06)
        print(f"{steps} steps, curve within {apart:.1e}; {printed[0]}")

    def test_without_replicas_it_is_equal_in_every_bit(self):
        common = {"ranks": 2, "steps": 3, "dtype": "float32"}
        equal, _ = self.train("equal", **common)
        batch, said = self.train("batch", split="batch", **common)
        for name in ("loss", "auxiliary_loss", "gradient_norm", "load", "balancedness"):
            self.assertEqual([record[name] for record in batch], [record[name] for record in equal], name)
        self.assertIn("(+0.0%)", said)


if __name__ == "__main__":
    unittest.main()
