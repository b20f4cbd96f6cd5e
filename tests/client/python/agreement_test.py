"""eplb._agreement: ranks on threads with one store between them, each with the faults of its test."""

import itertools
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


def at_call(number, fault):
    """Returns a fault that occurs at one call only, counted from 1."""
    calls = itertools.count(1)
    return lambda *given: fault(*given) if next(calls) == number else None


class AgreementTest(unittest.TestCase):
    def setUp(self):
        self.store = dist.HashStore()
        self.begin_engine()

    def begin_engine(self):
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

    def ask_until_planned(self):
        """Returns the number of questions up to the first plan [1, 64]. All ranks keep at the questions before it."""
        for number in range(1, 65):
            found = self.ask()
            if found == ["plan"] * WORLD:
                return number
            self.assert_all_keep(found)
        self.fail("64 questions without a plan")

    def fault(self, rank, operation, fault):
        self.agreements[rank]._store = FaultyStore(self.store, operation, fault)

    def mend(self, rank):
        self.agreements[rank]._store = self.store

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
        self.assertRegex(str(found[0]), "^rank 2 of 4 did not acknowledge rank 0's placement within ")
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

    def test_a_rank_takes_part_again_after_its_store_stood_still(self):
        for rank, operation in ((0, "multi_get"), (1, "check"), (1, "get")):
            with self.subTest(rank=rank, operation=operation):
                self.setUp()
                self.meet()
                mended = threading.Event()
                self.fault(rank, operation, at_call(1, lambda *_: mended.wait(30 * TIMEOUT)))
                found = self.ask()
                self.assert_all_keep(found)
                self.assertIsInstance(found[rank], Unavailable)
                begin = time.monotonic()
                self.assertIsNone(self.agreements[rank].decide(bytes, bytes))
                self.assertLess(time.monotonic() - begin, TIMEOUT / 2)  # it does not wait for the store again
                self.on_all(lambda _, agreement: agreement.decide(bytes, bytes), [each for each in range(WORLD) if each != rank])

                def question(each, agreement):
                    found = agreement.decide(lambda: b"plan", bytes.decode)
                    if each == rank:
                        mended.set()  # its call of the first question goes on, and acknowledges no later one
                    return found

                self.assert_all_keep(self.on_all(question))
                self.assertLess(self.ask_until_planned(), 8)

    def test_balancing_goes_on_after_any_number_of_failures(self):
        for number in (3, 6):
            with self.subTest(number):
                self.setUp()
                self.meet()
                self.fault(2, "get", refuse)
                while self.agreements[0]._failures < number:
                    self.assert_all_keep(self.ask())
                self.mend(2)
                self.ask_until_planned()
                self.assertEqual([self.ask() for _ in range(3)], [["plan"] * WORLD] * 3)

    def test_after_three_failures_most_questions_are_answered_at_once_without_a_plan(self):
        self.meet()
        self.fault(2, "get", refuse)
        for _ in range(4):  # the fourth question is a multiple of 2
            found = self.ask()
            self.assert_all_keep(found)
            self.assertIsInstance(found[0], DeadlineExceeded)
        begin = time.monotonic()
        for _ in range(3):  # the eighth is a multiple of 4
            self.assertEqual(self.on_all(lambda _, agreement: agreement.decide(self.fail, bytes)), [None] * WORLD)
        self.assertLess(time.monotonic() - begin, TIMEOUT / 2)

    def test_ranks_seldom_wait_for_a_rank_0_that_often_published_nothing(self):
        self.meet()
        self.fault(0, "set", refuse)
        for _ in range(4):
            self.assert_all_keep(self.ask())
        begin = time.monotonic()
        self.assert_all_keep(self.ask())
        self.assertLess(time.monotonic() - begin, TIMEOUT / 2)
        self.mend(0)
        self.ask_until_planned()

    def test_ranks_that_wrote_nothing_are_absent_for_all(self):
        for present, absent in (((1, 3), [0, 2]), ((0, 1, 3), [2])):
            with self.subTest(present):
                self.setUp()
                self.assertEqual(self.on_all(lambda rank, agreement: agreement.absent(), present), [absent] * len(present))
                self.assertTrue(self.agreements[2].absent())  # a rank that comes later does not take part, either

    def test_a_second_engine_on_the_same_store_obeys_nothing_of_the_first(self):
        """The state after destroy_process_group and init_process_group in the same workers: torch reuses the names of groups."""
        self.meet()
        self.assertEqual(self.ask(b"plan of engine 1"), ["plan of engine 1"] * WORLD)
        for slow in (0, 2):
            self.begin_engine()

            def run(rank, agreement):
                time.sleep(TIMEOUT / 4 * (rank == slow))
                absent = agreement.absent()
                time.sleep(TIMEOUT / 4 * (rank == slow))
                return absent, agreement.decide(lambda: b"plan of engine 2", bytes.decode)

            self.assertEqual(self.on_all(run), [([], "plan of engine 2")] * WORLD)

    def test_a_second_engine_on_the_same_store_finds_out_which_ranks_are_absent(self):
        self.meet()
        self.ask()
        for absent in (2, 0):
            self.begin_engine()
            present = [rank for rank in range(WORLD) if rank != absent]
            self.assertEqual(self.on_all(lambda rank, agreement: agreement.absent(), present), [[absent]] * 3)
            self.begin_engine()
            self.meet()

    def test_a_rank_that_loses_the_store_while_it_meets_the_others(self):
        """The others count on it after its acknowledgement: all keep, and it goes on when it has the store again. Before that
        they find it absent."""
        for operation, call, found in (("set", 1, [2]), ("get", 1, [2]), ("set", 2, [2]), ("compare_set", 1, [])):
            with self.subTest(operation, call=call):
                self.setUp()
                self.fault(2, operation, at_call(call, refuse))
                absent = self.on_all(lambda rank, agreement: agreement.absent())
                self.assertIsInstance(absent.pop(2), RuntimeError)
                self.assertEqual(absent, [found] * 3)
                if not found:
                    self.assert_all_keep(self.ask())
                if self.agreements[2].announced:
                    self.assertEqual(self.agreements[2].absent(), found)
                if not found:
                    self.assertEqual(self.ask(), ["plan"] * WORLD)

    def test_a_store_without_an_answer_ends_the_meeting(self):
        self.fault(0, "set", lambda *_: time.sleep(8 * TIMEOUT))
        for _ in range(2):
            with self.assertRaisesRegex(Unavailable, "^the job's store has not answered for "):
                self.agreements[0].absent()


if __name__ == "__main__":
    unittest.main()
