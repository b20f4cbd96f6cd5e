"""Mistakes of trainers, planted: each ends with a message that says what is wrong and where."""

import subprocess
import sys
import unittest

import torch

import eplb
import ranks


def one_rank_twice(process, directory):
    ranks.connect(directory, 0, 2, all_gather=ranks.store_all_gather(directory, 0, 2, seconds=3))


def wrong_place(process, directory):
    """An all-gather that lets two processes be rank 0, as one over a shared directory would."""
    all_gather = ranks.store_all_gather(directory, process, 2)

    def mistaken(data):
        return all_gather(data)

    eplb.Client.connect(mistaken, rank=0, world_size=2, num_layers=2, num_experts=8)


def absent(rank, directory):
    if rank != 1:
        ranks.connect(directory, rank, 3, all_gather=ranks.store_all_gather(directory, rank, 3, seconds=3))


def exchanged_memory(rank, directory, checks=False):
    with ranks.connect(directory, rank, 2, num_layers=1) as client:
        weight = torch.nn.Parameter(torch.zeros(4, 6))
        client.register(weight, name="layers.0.w", layer=0)
        client.step_boundary(0)
        if rank == 1:
            weight.data = torch.ones(4, 6)
        if checks:
            client.check_experts(lambda layer, slot: slot)
        else:
            client.step_boundary(1)


def freed_memory(rank, directory):
    client = ranks.connect(directory, 0, 1, num_layers=1)
    weight = torch.zeros(8, 6)
    client.register(weight, name="layers.0.w", layer=0)
    client.finish_registration()
    weight.storage().resize_(0)
    try:
        client.step_boundary(0)
        client.step_boundary(1)
    finally:
        eplb_error = None
        try:
            client.step_boundary(2)
        except eplb.FailedPrecondition as error:
            eplb_error = str(error)
        assert eplb_error == "step_boundary was called after close", eplb_error


def stale_memory(rank, registered, freed, call):
    """A client of one rank whose tensor goes away before or after it was handed over."""
    client = eplb.Client.connect(num_layers=1, num_experts=8)
    weight = torch.nn.Parameter(torch.zeros(8, 1 << 16))
    client.register(weight, name="layers.0.w", layer=0)
    if registered:
        client.finish_registration()
    if freed:
        weight.data.storage().resize_(0)
    else:
        weight.data = torch.ones(8, 1 << 16)
    try:
        if call == "check_experts":
            client.check_experts(lambda layer, slot: slot)
        else:
            client.finish_registration()
    finally:
        assert client.closed


def shown(rank, directory):
    with ranks.connect(directory, rank, 2) as client:
        return repr(client.placement)


class MistakesTest(ranks.RankTest):

    def test_two_processes_with_one_rank(self):
        results = self.run_ranks(2, one_rank_twice, self.directory)
        claimed = [result for result in results if "FailedPrecondition" in result.classes]
        self.assertEqual(len(claimed), 1, results)
        self.assert_raised(claimed[0], "FailedPrecondition", "another process has claimed rank 0 of 2")
        results.remove(claimed[0])
        self.assert_raised(results[0], "DeadlineExceeded", "no answer within", "from rank 1")

    def test_two_processes_with_one_rank_over_an_all_gather_that_does_not_see_it(self):
        results = self.run_ranks(2, wrong_place, self.directory)
        self.assertTrue(all(isinstance(result, ranks.Failure) for result in results), results)
        self.assertIn("another process speaks for it", " ".join(result.text for result in results))

    def test_switches_take_a_truth_value(self):
        with self.assertRaisesRegex(eplb.InvalidArgument, "require_daemon: 'yes', expected True or False"):
            eplb.Client.connect(endpoint="127.0.0.1:1", require_daemon="yes", num_layers=1, num_experts=4)
        with self.assertRaisesRegex(eplb.InvalidArgument, "take_over: 1, expected True or False"):
            eplb.Client.connect(take_over=1, num_layers=1, num_experts=4)

    def test_a_placement_shows_itself_in_a_line(self):
        self.assertEqual(self.run_ranks(2, shown, self.directory),
                         [f"<eplb.PlacementView: version 0, 2 layers of 8 experts in 8 slots on 2 GPUs, this rank's slots {slots}>"
                          for slots in ("0..3", "4..7")])

    def test_a_rank_that_does_not_come_is_named(self):
        results = self.run_ranks(3, absent, self.directory)
        for rank in (0, 2):
            self.assert_raised(results[rank], "DeadlineExceeded", "no answer within", "from rank 1")

    def test_a_parameter_that_got_other_memory(self):
        for checks in (False, True):
            with self.subTest(checks=checks):
                place = self.directory / str(checks)
                place.mkdir()
                other, own = self.run_ranks(2, exchanged_memory, place, checks)
                self.assert_raised(own, "InvalidArgument", "tensor \"layers.0.w\": lies at 0x", "it was registered at 0x")
                self.assert_raised(other, "Aborted", "rank 1")

    def test_a_tensor_that_was_freed_before_the_client(self):
        result, = self.run_ranks(1, freed_memory, self.directory)
        self.assert_raised(result, "InvalidArgument", "tensor \"layers.0.w\": was freed, it was registered at 0x")

    def test_memory_that_went_away_is_neither_handed_over_nor_moved(self):
        for registered, call in ((False, "finish_registration"), (False, "check_experts"), (True, "check_experts")):
            for freed, words in ((False, "lies at 0x"), (True, "was freed")):
                with self.subTest(call, registered=registered, freed=freed):
                    result, = self.run_ranks(1, stale_memory, registered, freed, call)
                    self.assert_raised(result, "InvalidArgument", f"tensor \"layers.0.w\": {words}")


CLIENT = """
import os, sys
import numpy as np
import eplb
client = eplb.Client.connect(num_layers=1, num_experts=4, vote_every=1, transport="host")
client.register(np.zeros((4, 2)), name="w", layer=0)
client.step_boundary(0)
"""


class ProcessTest(unittest.TestCase):
    def run_code(self, code):
        return subprocess.run([sys.executable, "-B", "-c", CLIENT + code], capture_output=True, text=True, timeout=120)

    def test_a_forked_child_that_leaves_it_alone_is_silent(self):
        done = self.run_code("""
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
client.close()
""")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_interpreter_may_exit_with_an_open_client(self):
        for end in ("", "table = client.placement.physical_to_logical_map",
                    "import atexit; atexit.register(lambda: print(client.placement.version))",
                    "import threading; threading.Thread(target=lambda: client.stats).start()",
                    "client.self = client", "sys.exit(0)", "del client"):
            with self.subTest(end):
                done = self.run_code(end)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = self.run_code("raise KeyError('x')")
        self.assertEqual(done.returncode, 1)
        self.assertIn("KeyError: 'x'", done.stderr)


if __name__ == "__main__":
    unittest.main()
