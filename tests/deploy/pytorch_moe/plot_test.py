"""What the picture of a run shows."""

import json
import pathlib
import tempfile
import unittest

import example  # finds the example's modules

import numpy as np

import plot


def run(losses, balancedness, switches=()):
    return [{"step": step, "loss": loss, "mean_balancedness": even, "static_mean_balancedness": 0.25, "switched": step in switches}
            for step, (loss, even) in enumerate(zip(losses, balancedness))]


def labels(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


class PlotTest(unittest.TestCase):
    STILL = run([4, 3, 2.5, 2], [0.5, 0.5, 0.5, 0.6])
    MOVED = run([4, 3, 2.5, 2], [0.5, 0.5, 0.7, 0.9], switches=[1])

    def test_two_runs_are_compared_over_the_steps_after_the_first_switch(self):
        above, below = plot.figure_of({"still": self.STILL, "moved": self.MOVED}).axes
        self.assertEqual(labels(above), ["still", "moved"])
        self.assertIn("equal in every bit, in all 4 steps", above.get_title(loc="left"))
        self.assertEqual(labels(below), ["still: 0.550", "moved: 0.800", "moved: experts moved (1 time)"])
        self.assertEqual(below.get_legend().get_title().get_text(), "mean of steps 2..3")
        marks = [line for line in below.lines if line.get_marker() == "v"]
        self.assertEqual([line.get_xdata().tolist() for line in marks], [[1.5]])
        self.assertEqual(below.get_ylim(), (0, 1))

    def test_losses_that_differ_are_told(self):
        above, _ = plot.figure_of({"one": self.STILL, "other": run([4, 3, 2.75], [1, 1, 1])}).axes
        self.assertIn("at most 2.5e-01 apart, in 3 steps", above.get_title(loc="left"))

    def test_a_run_alone_has_the_static_placement_beside_it(self):
        above, below = plot.figure_of({"moved": self.MOVED}).axes
        self.assertEqual(above.get_title(loc="left"), "loss of the global batch")
        self.assertIn("static placement, same tokens: 0.250", labels(below))

    def test_the_mean_begins_anew_at_a_switch(self):
        values = [0.0] * 12 + [1.0] * 12
        means = plot.moving_mean(values, [step == 11 for step in range(24)])
        self.assertEqual(means.tolist(), values)
        np.testing.assert_allclose(plot.moving_mean(values, [False] * 24)[[0, 11, 12, 16, 21]], [0, 0, 0.1, 0.5, 1])

    def test_what_cannot_be_drawn_is_named(self):
        with self.assertRaisesRegex(ValueError, "run empty has no steps"):
            plot.figure_of({"empty": []})
        with tempfile.TemporaryDirectory() as directory:
            torn = pathlib.Path(directory) / "torn.jsonl"
            torn.write_text(json.dumps(self.STILL[0]) + "\n{", encoding="utf-8")
            with self.assertRaisesRegex(ValueError, "torn.jsonl:2: "):
                plot.read_log(str(torn))
            torn.write_text('{"step": 0}', encoding="utf-8")
            with self.assertRaisesRegex(ValueError, "torn.jsonl:1: no loss, is it a file of train.py --log-json?"):
                plot.read_log(str(torn))


if __name__ == "__main__":
    unittest.main()
