"""Mistakes of trainers, planted: each ends with a message that says what is wrong and where."""

import os
import subprocess
import sys
import unittest

import numpy as np
import torch

import eplb
import ranks


def wrong_row_size(rank, directory):
    with ranks.connect(directory, rank, 2) as client:
        for layer in range(2):
            client.register(np.zeros((4, 6 if rank else 5), np.float32), name=f"layers.{layer}.w", layer=layer)
        client.finish_registration()


def state_on_one_rank_only(rank, directory):
    with ranks.connect(directory, rank, 2) as client:
        for layer in range(2):
            client.register(np.zeros((4, 6), np.float32), name=f"layers.{layer}.w", layer=layer)
            if rank == 0:
                client.register(np.zeros((4, 6), np.float32), name=f"layers.{layer}.moment", layer=layer, role="state")
        client.finish_registration()


def refused_on_one_rank(rank, directory):
    with ranks.connect(directory, rank, 2) as client:
        memory = np.zeros((4, 8), np.float32)
        for layer in range(2):
            client.register(memory if rank else memory.copy(), name=f"layers.{layer}.w", layer=layer)
        client.finish_registration()


def one_rank_twice(process, directory):
    ranks.connect(directory, 0, 2, all_gather=ranks.store_all_gather(directory, 0, 2, seconds=3))


def wrong_place(process, directory):
    """An all-gather that lets two processes be rank 0, as one over a shared directory would."""
    all_gather = ranks.store_all_gather(directory, process, 2)

    def mistaken(data):
        return all_gather(data)

    eplb.Client.connect(mistaken, rank=0, world_size=2, num_layers=2, num_experts=8)


def another_shape(rank, directory):
    ranks.connect(directory, rank, 2, num_experts=8 + 2 * rank)


def absent(rank, directory):
    if rank != 1:
        ranks.connect(directory, rank, 3, all_gather=ranks.store_all_gather(directory, rank, 3, seconds=3))


def skipped_boundary(rank, directory):
    with ranks.connect(directory, rank, 2) as client:
        experts = ranks.Experts(client, ranks.numpy_zeros)
        for step in range(8):
            experts.update()
            if not (rank == 1 and step == 4):
                client.step_boundary(step)


def boundaries_end_early(rank, directory):
    with ranks.connect(directory, rank, 2, vote_deadline=3 * ranks.PATIENCE) as client:
        ranks.Experts(client, ranks.numpy_zeros)
        for step in range(8 if rank == 0 else 4):
            client.step_boundary(step)
        if rank == 1:
            ranks.time.sleep(6 * ranks.PATIENCE)
        else:
            raise AssertionError("all boundaries came to an end")


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


def without_a_port(rank, directory):
    ranks.connect(directory, rank, 2, endpoint="localhost")


def required_daemon_that_is_not_there(rank, directory):
    ranks.connect(directory, rank, 2, endpoint="127.0.0.1:1", require_daemon=True)


def meeting_where_nobody_listens(rank, directory):
    eplb.Client.connect(endpoint="127.0.0.1:1", job="alone", run_id="one", rank=rank, world_size=2, num_layers=2,
                        num_experts=8)


def meeting_without_a_name(rank, directory, **names):
    for variable in ("EPLB_LAUNCH_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        os.environ.pop(variable, None)
    eplb.Client.connect(endpoint="127.0.0.1:1", rank=rank, world_size=2, num_layers=2, num_experts=8, **names)


def meeting_of_the_default_job(rank, directory):
    meeting_without_a_name(rank, directory, run_id="one")


def meeting_of_a_launch_without_a_name(rank, directory):
    meeting_without_a_name(rank, directory, job="mine")


# Mistakes that both ranks report alike: the function, the error, and words of its message.
ON_ALL_RANKS = (
    (wrong_row_size, "FailedPrecondition", "tensor 0 differs", "layers.0.w row_bytes 20", "layers.0.w row_bytes 24"),
    (state_on_one_rank_only, "FailedPrecondition", "state 0 differs", "rank 0 has layer 0 state layers.0.moment row_bytes 24",
     "rank 1 has no such field"),
    (another_shape, "FailedPrecondition", "num_experts differs", "rank 0 has 8", "rank 1 has 10"),
    (without_a_port, "InvalidArgument", 'endpoint is "localhost", expected HOST:PORT or unix:PATH'),
    (meeting_where_nobody_listens, "Unavailable", "all_gather 0 through eplbd at 127.0.0.1:1: connection refused"),
    (meeting_of_the_default_job, "InvalidArgument", 'job: "default" is shared by all unnamed jobs; name this job'),
    (meeting_of_a_launch_without_a_name, "InvalidArgument",
     "set EPLB_LAUNCH_ID, equal on all ranks and different for each run"))


def in_turn(rank, directory):
    """Makes all of these mistakes. returns: the Failure of each."""
    failures = []
    for mistake, *_ in ON_ALL_RANKS:
        place = directory / mistake.__name__
        place.mkdir(exist_ok=True)
        try:
            failures.append(mistake(rank, place))
        except Exception as error:
            failures.append(ranks.Failure(error))
    return failures


def shown(rank, directory):
    with ranks.connect(directory, rank, 2) as client:
        return repr(client.placement)


class MistakesTest(ranks.RankTest):
    def test_both_ranks_name_the_mistake(self):
        by_rank = self.succeed(2, in_turn, self.directory)
        for number, (mistake, kind, *words) in enumerate(ON_ALL_RANKS):
            with self.subTest(mistake.__name__):
                for failures in by_rank:
                    self.assert_raised(failures[number], kind, *words)

    def test_what_one_rank_may_not_register_stops_all(self):
        other, own = self.run_ranks(2, refused_on_one_rank, self.directory)
        self.assert_raised(own, "InvalidArgument", "layers.0.w", "layers.1.w")
        self.assert_raised(other, "FailedPrecondition", "rank 1 cannot start", "layers.0.w")

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

    def test_a_required_daemon_that_is_not_there_stops_all(self):
        own, other = self.run_ranks(2, required_daemon_that_is_not_there, self.directory)
        words = "require_daemon: no answer from eplbd at 127.0.0.1:1: connection refused"
        self.assert_raised(own, "Unavailable", words)
        self.assert_raised(other, "FailedPrecondition", "rank 0 cannot start", words)

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

    def test_a_skipped_boundary(self):
        other, own = self.run_ranks(2, skipped_boundary, self.directory)
        self.assert_raised(own, "FailedPrecondition", "StepBoundary of step 5, expected 4")
        self.assert_raised(other, "Aborted", "rank 1")

    def test_boundaries_that_end_early(self):
        other, _ = self.run_ranks(2, boundaries_end_early, self.directory)
        self.assert_raised(other, "Aborted", "rank 1")

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

    def test_a_forked_child_does_nothing_and_says_so_once(self):
        done = self.run_code("""
child = os.fork()
if child == 0:
    for step in range(5):
        client.record(0, [1, 2, 3, 4])
        assert not client.step_boundary(step).voted
    client.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert client.step_boundary(1).voted
client.close()
print("well")
""")
        self.assertEqual((done.returncode, done.stdout), (0, "well\n"), done.stderr)
        self.assertEqual(done.stderr.count("was forked from a rank of a job"), 1, done.stderr)

    def test_a_forked_child_that_leaves_it_alone_is_silent(self):
        done = self.run_code("""
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
client.close()
""")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_child_may_have_a_client_of_its_own(self):
        done = self.run_code("""
child = os.fork()
if child == 0:
    own = eplb.Client.connect(num_layers=1, num_experts=4, transport="host")
    own.register(np.zeros((4, 2)), name="w", layer=0)
    own.step_boundary(0)
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
