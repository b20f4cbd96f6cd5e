"""Checkpoints fit other placements and other numbers of ranks, and nothing that they do not belong to."""

import contextlib
import dataclasses
import io
import json
import re
import shutil
import unittest

import example  # finds the example's modules

import numpy as np
import torch

import train
from balancer import NoBalancer
from collectives import Ranks
from settings import Settings


class CheckpointTest(example.ExampleTest):
    def test_four_ranks_then_two_then_four_end_where_four_would(self):
        common = {"dtype": "float64", "migrate_every": 4}
        straight = self.run_worker("straight", ranks=4, steps=50, checkpoint_every=50, **common)
        pieces = []
        for name, ranks, until, resume in (("first", 4, 17, None), ("second", 2, 34, ("first", 17)),
                                           ("third", 4, 50, ("second", 34))):
            more = {"resume": self.checkpoint(*resume)} if resume else {}
            pieces += self.run_worker(name, ranks=ranks, steps=until, checkpoint_every=until, **more, **common)
        self.assertEqual([record["step"] for record in pieces], list(range(50)))
        curve = max(abs(one["loss"] - other["loss"]) / other["loss"] for one, other in zip(pieces, straight))
        difference, tensor = self.largest_difference("third", "straight", 50)
        print(f"4 -> 2 -> 4: curve within {curve:.1e}, tensors within {difference:.1e} ({tensor})")
        self.assertLessEqual(curve, 1e-10)
        self.assertLessEqual(difference, 1e-10, tensor)

    def test_what_does_not_fit_is_refused_by_name(self):
        settings = Settings(**example.TINY, steps=1, checkpoint_every=1, checkpoint_dir=str(self.directory / "one"))
        alone, good = Ranks(0, 1, torch.device("cpu")), self.checkpoint("one", 1)
        with contextlib.redirect_stdout(io.StringIO()):
            train.run(settings, alone, NoBalancer())
        expected = {
            "experts": (good, {"experts": 16}, "experts is 8, this run's is 16"),
            "seed": (good, {"seed": 5}, "seed is 1, this run's is 5"),
            "dtype": (good, {"dtype": "float64"}, "dtype is float32, this run's is float64"),
            "missing": (self.damaged(good, self.remove_tensor), {},
                        "it has no tensor layers.1.experts.up.first_moment"),
            "shape": (self.damaged(good, self.cut_experts), {},
                      "tensor layers.0.experts.gate is float32 [7, 24, 16], this run's is float32 [8, 24, 16]"),
            "torn": (self.damaged(good, self.cut_file), {}, "tensor layers.0.experts.gate cannot be read"),
            "incomplete": (self.damaged(good, lambda path: (path / "checkpoint.json").unlink()), {}, "not complete"),
            "field": (self.damaged(good, self.remove_field), {}, "it has no field text_sha256"),
        }
        for name, (path, options, message) in expected.items():
            with self.subTest(name):
                other = dataclasses.replace(settings, resume=str(path), **options)
                with self.assertRaisesRegex(ValueError, re.escape(message)) as caught:
                    train.run(other, alone, NoBalancer())
                self.assertIn(str(path), str(caught.exception))

    def damaged(self, good, damage):
        self.copies = getattr(self, "copies", 0) + 1
        path = self.directory / f"damaged-{self.copies}"
        shutil.copytree(good, path)
        damage(path)
        return path

    def remove_tensor(self, path):
        (path / "layers.1.experts.up.first_moment.npy").unlink()

    def cut_experts(self, path):
        file = path / "layers.0.experts.gate.npy"
        np.save(file, np.load(file)[:7])

    def cut_file(self, path):
        file = path / "layers.0.experts.gate.npy"
        file.write_bytes(file.read_bytes()[:-100])

    def remove_field(self, path):
        fields = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
        del fields["text_sha256"]
        (path / "checkpoint.json").write_text(json.dumps(fields), encoding="utf-8")


if __name__ == "__main__":
    unittest.main()
