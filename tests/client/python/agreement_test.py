"""eplb._agreement: ranks on threads with one store between them, each with the faults of its test."""

import threading
import time
import unittest

import torch.distributed as dist

from eplb import _agreement
from eplb.errors import DeadlineExceeded, Unavailable
from ranks import PATIENCE

TIMEOUT = 0.8 * PATIENCE
WORLD = 4


class FaultyStore:
    """A store whose operation of one name does something else first."""

    def __init__(self, store, operation, fault):
        self._store, self._operation, self._fault = store, operation, fault

    def __getattr__(self, name):
        def call(*given):
            if name == self._operation:
                self._fault(*given)
            return getattr(self._store, name)(*given)

        return call


def refuse(*_):
    raise RuntimeError("connection reset by peer")


def stand_still(*_):
    time.sleep(8 * TIMEOUT)


class AgreementTest(unittest.TestCase):
    def setUp(self):
        self.store = dist.HashStore()
        self.agreements = [_agreement.Agreement(self.store, rank, WORLD, TIMEOUT) for rank in range(WORLD)]

    def on_all(self, function, ranks=range(WORLD)):
        """Returns what function(rank, agreement) returned or raised on each rank; every rank must end in time."""
        found = {}

        def run(rank):
            try:
                found[rank] = function(rank, self.agreements[rank])
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 7 * TIMEOUT
        for thread in threads:
            thread.join(max(0, deadline - time.monotonic()))
        self.assertEqual(sorted(found), sorted(ranks), "a rank has not ended in time")
        return [found[rank] for rank in ranks]

    def meet(self):
        self.assertEqual(self.on_all(lambda rank, agreement: agreement.absent()), [[]] * WORLD)

    def ask(self, answer=b"plan", accept=bytes.decode, late=lambda rank: 0):
        def question(rank, agreement):
            time.sleep(late(rank))
            return agreement.decide(lambda: answer, accept)

        return self.on_all(question)

    def fault(self, rank, operation, fault):
        self.agreements[rank]._store = FaultyStore(self.store, operation, fault)

    def assert_all_keep(self, found):
        self.assertEqual([each for each in found if not isinstance(each, Exception)],
                         [None] * sum(not isinstance(each, Exception) for each in found))

    def test_all_ranks_use_the_answer_of_rank_0(self):
        self.meet()
        for number in range(20):
            self.assertEqual(self.ask(b"plan %d" % number), [f"plan {number}"] * WORLD)
        self.assertLess(self.store.num_keys(), 2 * (_agreement._QUESTIONS_STORED + 1) + WORLD + 3)

    def test_no_answer_is_an_answer(self):
        self.meet()
        begin = time.monotonic()
        self.assertEqual(self.ask(b""), [None] * WORLD)
        self.assertLess(time.monotonic() - begin, TIMEOUT)

    def test_an_error_of_rank_0_is_no_answer_for_the_others(self):
        self.meet()

        def make():
            raise ValueError("no plan")

        found = self.on_all(lambda rank, agreement: agreement.decide(make, bytes.decode))
        self.assertIsInstance(found[0], ValueError)
        self.assertEqual(found[1:], [None] * (WORLD - 1))

    def test_a_rank_that_cannot_use_the_answer_makes_all_keep(self):
        self.meet()
        found = self.on_all(lambda rank, agreement: agreement.decide(lambda: b"7", int if rank != 2 else refuse))
        self.assert_all_keep(found)
        self.assertRegex(str(found[0]), "^ranks 2 of 4 did not acknowledge rank 0's placement within ")
        self.assertEqual(self.ask(), ["plan"] * WORLD)

    def test_an_answer_that_rank_0_cannot_use_is_not_published(self):
        self.meet()
        found = self.on_all(lambda rank, agreement: agreement.decide(lambda: b"7", int if rank else refuse))
        self.assertRegex(str(found[0]), "connection reset")
        self.assertEqual(found[1:], [None] * (WORLD - 1))

    def test_a_late_rank_is_waited_for(self):
        self.meet()
        for late in (0, 2):
            self.assertEqual(self.ask(late=lambda rank: TIMEOUT / 2 * (rank == late)), ["plan"] * WORLD)

    def test_a_rank_that_is_too_late_obeys_the_verdict(self):
        self.meet()
        found = self.ask(late=lambda rank: 1.5 * TIMEOUT * (rank == 3))
        self.assertIsInstance(found[0], DeadlineExceeded)
        self.assertEqual(found[1:], [None] * 3)
        self.assertEqual(self.ask(), ["plan"] * WORLD)

    def test_a_rank_0_that_is_too_late_makes_all_keep(self):
        self.meet()
        found = self.ask(late=lambda rank: 1.5 * TIMEOUT * (rank == 0))
        self.assert_all_keep(found)
        self.assertRegex(str(found[1]), "^rank 0 of 4 published no placement within ")
        self.assertEqual(self.ask(), ["plan"] * WORLD)

    def test_a_stopped_rank_0_does_not_say_go_after_its_time(self):
        """The time passes between the acknowledgements and the verdict, as in a process that is stopped there."""
        self.meet()
        self.fault(0, "compare_set", lambda *_: time.sleep(2.5 * TIMEOUT))
        found = self.ask()
        self.assert_all_keep(found)

    def test_a_store_that_fails_on_one_rank_makes_all_keep(self):
        for rank, operations in ((0, ("delete_key", "set", "multi_get", "compare_set")), (2, ("check", "get", "set"))):
            for operation in operations:
                with self.subTest(rank=rank, operation=operation):
                    self.setUp()
                    self.meet()
                    self.fault(rank, operation, refuse)
                    self.assert_all_keep(self.ask())

    def test_a_store_that_stands_still_on_one_rank_makes_all_keep_in_bounded_time(self):
        self.meet()
        self.fault(1, "check", stand_still)
        found = self.ask()
        self.assert_all_keep(found)
        self.assertIsInstance(found[1], Unavailable)
        begin = time.monotonic()
        self.assertIsNone(self.agreements[1].decide(bytes, bytes))  # it is not asked again
        self.assertLess(time.monotonic() - begin, TIMEOUT / 2)

    def test_after_three_failures_no_rank_waits_again(self):
        self.meet()
        self.fault(2, "get", refuse)
        for _ in range(3):
            found = self.ask()
            self.assert_all_keep(found)
        self.assertRegex(str(found[0]), "3 times in a row: rank 0 plans no more$")
        begin = time.monotonic()
        self.assertEqual(self.ask()[:2], [None, None])
        self.assertLess(time.monotonic() - begin, TIMEOUT / 2)

    def test_ranks_that_wrote_nothing_are_absent_for_all_even_for_those_that_come_later(self):
        self.assertEqual(self.on_all(lambda rank, agreement: agreement.absent(), (1, 3)), [[0, 2]] * 2)
        self.assertEqual(self.agreements[2].absent(), [0, 2])

    def test_a_rank_that_loses_the_store_while_it_meets_the_others(self):
        """The others count on it after its first write: all keep. Before, they find it absent."""
        for operation, found in (("set", [2]), ("add", []), ("get", [])):
            with self.subTest(operation):
                self.setUp()
                self.fault(2, operation, refuse)
                absent = self.on_all(lambda rank, agreement: agreement.absent())
                self.assertIsInstance(absent.pop(2), RuntimeError)
                self.assertEqual(absent, [found] * 3)
                self.assertEqual(self.agreements[2].announced, not found)
                if not found:
                    self.assert_all_keep(self.ask())

    def test_a_store_without_an_answer_ends_the_meeting(self):
        self.fault(0, "set", stand_still)
        with self.assertRaisesRegex(Unavailable, "^the job's store has not answered for "):
            self.agreements[0].absent()


if __name__ == "__main__":
    unittest.main()
