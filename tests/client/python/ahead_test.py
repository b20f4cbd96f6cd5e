"""The option ahead with a real daemon: rows move while the next steps run, and a promise that is not kept costs a chunk."""

import os
import subprocess
import unittest

import ranks

STEPS = 3000


class Frozen(ranks.Experts):
    """Weights alone, which no step changes."""

    KINDS = (("weight", "float16", "weight", 1), ("scale", "float64", "weight", 2))

    def update(self):
        self.verify()

    def _value(self, layer, expert, name):
        return 1.0 + layer + 4 * expert + {"weight": 0, "scale": 0.5}[name]


class Trained(Frozen):
    """A misuse of the option: each step adds to every weight."""

    def update(self):
        self.verify()
        self.updates += 1
        self._fill()

    def _value(self, layer, expert, name):
        return super()._value(layer, expert, name) + 64 * (self.updates % 8)


def job(rank, world, directory, endpoint, kind, enough):
    options = {"history_path": directory / f"rank-{rank}.jsonl"}
    if rank == 0:
        options["placements_path"] = directory / "placements.jsonl"
    with ranks.connect(directory, rank, world, endpoint=endpoint, job="ahead", ahead=True, **options) as client:
        experts = kind(client, ranks.numpy_zeros)
        client.finish_registration()
        switches = ranks.train(client, experts, STEPS, enough=enough)
        return [switch[:2] for switch in switches], client.stats.dropped_chunks


def refused(rank, world, directory, option):
    with ranks.connect(directory, rank, world, ahead=option if option is not None else rank == 0) as client:
        ranks.Experts(client, ranks.numpy_zeros)
        client.finish_registration()


class AheadTest(ranks.RankTest):
    def run_job(self, kind, enough):
        """returns: of rank 0, the switches and the chunks that were dropped."""
        daemon = self.start_daemon()
        first, *others = self.succeed(2, job, 2, self.directory, daemon.endpoint, kind, enough)
        for other in others:
            self.assertEqual(other, first)
        told = subprocess.run([os.path.join(os.environ["EPLB_BIN"], "eplbctl"), "doctor", "--run", str(self.directory)],
                              capture_output=True, text=True, timeout=60 * ranks.PATIENCE)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        return first

    def outcomes(self):
        lines = ranks.harness.read_lines(self.directory / "rank-0.jsonl")
        return [(line["step"], line["outcome"]) for line in lines if line["event"] == "boundary"]

    def test_frozen_experts_switch_at_the_vote_after(self):
        switches, dropped = self.run_job(Frozen, 3)
        self.assertEqual(dropped, 0)
        outcomes = [each for each in self.outcomes() if each[1] != "not agreed"]
        committed = [step for step, _ in switches]
        self.assertEqual(outcomes, [each for step in committed for each in ((step - 2, "begun"), (step, "committed"))])

    def test_trained_experts_lose_a_chunk_and_are_staged_at_the_boundary(self):
        switches, dropped = self.run_job(Trained, 2)
        self.assertEqual(dropped, 1)
        outcomes = [outcome for _, outcome in self.outcomes() if outcome != "not agreed"]
        # A chunk whose rows were read only after the last update before its vote holds what they are, and commits.
        dropped_at = outcomes.index("dropped")
        self.assertEqual(outcomes[:dropped_at], ["begun", "committed"] * (dropped_at // 2) + ["begun"])
        self.assertEqual(set(outcomes[dropped_at + 1:]), {"committed"})

    def test_ranks_must_agree_and_state_is_refused(self):
        for result in self.run_ranks(2, refused, 2, self.directory, None):
            self.assert_raised(result, "FailedPrecondition", "start: ahead differs: rank 0 has 1, rank 1 has 0")
        (self.directory / "store").unlink()
        for result in self.run_ranks(2, refused, 2, self.directory, True):
            self.assert_raised(result, "InvalidArgument", '"layers.0.moment" is state, which steps change')


if __name__ == "__main__":
    unittest.main()
