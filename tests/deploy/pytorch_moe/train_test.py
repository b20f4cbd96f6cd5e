"""train.py: experts move and no bit of the loss changes, in one run and over a checkpoint; and train.py as a user starts it."""

import json
import os
import pathlib
import subprocess
import unittest

import example
import numpy as np
from example import harness

STEPS, SAVED = 80, 50


def values(records, name):
    return [record[name] for record in records]


def balancedness(slot_tokens):
    """Mean over layers of mean / max tokens of a rank. slot_tokens: [layers, slots]."""
    ranks = slot_tokens.reshape(len(slot_tokens), example.TINY["ranks"], -1).sum(axis=2)
    return (ranks.mean(axis=1) / ranks.max(axis=1)).mean()


class MoveTest(example.ExampleTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.still = cls.train("train.py", "still", steps=STEPS)
        cls.moved = cls.train("train.py", "moved", steps=STEPS, endpoint=cls.daemon.endpoint, job="moved", checkpoint_every=SAVED,
                              checkpoint_dir=cls.directory)

    def test_losses_are_bit_equal_while_experts_move(self):
        self.assertEqual(values(self.moved, "step"), list(range(STEPS)))
        self.assertGreaterEqual(sum(values(self.moved, "switched")), 2)
        for name in ("loss", "load"):
            self.assertEqual(values(self.moved, name), values(self.still, name), name)
        self.assertLess(self.still[-1]["loss"], self.still[0]["loss"] - 2)  # it learns
        # Real work moved: the same tokens are on other ranks.
        self.assertNotEqual(values(self.moved, "slot_tokens"), values(self.still, "slot_tokens"))

    def test_a_checkpoint_of_moved_experts_continues_without_eplb_in_every_bit(self):
        self.assertTrue(any(values(self.moved[:SAVED], "switched")))
        saved = self.directory / f"step-{SAVED:06d}"
        resumed = self.train("train.py", "resumed", steps=STEPS, resume=saved)
        self.assertEqual(values(resumed, "step"), list(range(SAVED, STEPS)))
        self.assertEqual(values(resumed, "loss"), values(self.still[SAVED:], "loss"))
        done = self.start("train.py", "", ranks=2, resume=saved)
        self.assertEqual(done.returncode, 1)
        self.assertIn("was written by 4 ranks, this run has 2", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_the_daemon_measured_the_tokens_that_the_ranks_computed(self):
        plans = self.ask("get", "plans", "--limit", 1000)["plans"][::-1]
        self.assertEqual([plan["switched_step"] for plan in plans if plan["result"] == "committed"],
                         [record["step"] for record in self.moved if record["switched"]])
        slots = np.array(values(self.moved, "slot_tokens"))
        for plan in plans:
            windows = range(plan["decided_first_step"], plan["decided_last_step"], 10)
            self.assertAlmostEqual(plan["balancedness_before"],
                                   np.mean([balancedness(slots[first:first + 10].sum(axis=0)) for first in windows]), places=9)

    def test_eplbctl_replays_the_log(self):
        done = subprocess.run([harness.BIN / "eplbctl", "replay", "--trace", self.directory / "still.jsonl", "--gpus", "4",
                               "--slots", "16", "-o", "json"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertAlmostEqual(json.loads(done.stdout)["summary"]["balancedness_static_mean"],
                               np.mean(values(self.still, "balancedness")), places=9)

    def test_ranks_of_another_launcher_meet_at_an_address(self):
        port = harness.free_port()
        ranks = []
        for rank in range(4):
            given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                     "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
            ranks.append(subprocess.Popen(self.command("train.py", "launched", {"steps": 3}), stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT, text=True,
                                          env={**os.environ, **{name: str(value) for name, value in given.items()}}))
            self.addCleanup(ranks[-1].wait)
            self.addCleanup(ranks[-1].kill)
        for rank in ranks:
            output, _ = rank.communicate(timeout=example.TIMEOUT_SECONDS)
            self.assertEqual(rank.returncode, 0, output)
        self.assertEqual(values(self.records("launched"), "loss"), values(self.still[:3], "loss"))


class CommandLineTest(example.ExampleTest):
    def test_bad_input_is_one_line(self):
        (self.directory / "sitecustomize.py").write_text("import sys\nsys.modules['eplb'] = None\n", encoding="utf-8")
        attached = {"endpoint": "127.0.0.1:1", "ranks": 1, "steps": 1}
        for options, environment, message in (
                ({"top_k": 16}, {}, "--top-k 16 of 16 experts"),
                ({"experts": 18}, {}, "18 slots do not divide over 4 ranks"),
                ({"sequences": 7}, {}, "--sequences 7 do not divide over 4 ranks"),
                ({"heads": 3}, {}, "--width 16 is no multiple of --heads 3"),
                ({"text": "/nothing/here"}, {}, "/nothing/here"),
                ({"resume": self.directory, "ranks": 1}, {}, "rank-0.pt"),
                (attached, {"PYTHONPATH": str(self.directory)}, "rank 0: "),
                (attached, {"EPLB_LIBRARY": "/nothing/here"}, "rank 0: EPLB_LIBRARY is /nothing/here, which cannot be loaded"),
                ({**attached, "job": "no spaces"}, {}, "no spaces")):
            with self.subTest(message):
                done = self.start("train.py", "", environment, **options)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(message, done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def test_ranks_end_with_the_process_that_started_them(self):
        job = subprocess.Popen(self.command("train.py", "", {"ranks": 2, "steps": 1_000_000}), stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.wait)
        self.addCleanup(job.terminate)
        self.assertIn("step     0", job.stdout.readline())
        ranks = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text(encoding="utf-8").split()
        self.assertEqual(len(ranks), 2)
        job.terminate()
        job.stdout.read()  # its end: no process has it open any more
        harness.wait_for(lambda: not any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks), 10, "the ranks ended")


if __name__ == "__main__":
    unittest.main()
