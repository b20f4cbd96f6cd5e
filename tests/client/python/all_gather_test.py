"""The all-gather over a store: what it asks of the store, by the number of ranks, and what it says of ranks that are late."""

import threading
import unittest

import eplb


class Store:
    """A store of torch.distributed in this process, which counts requests and the bytes of values."""

    def __init__(self):
        self.requests, self.keys_waited, self.values, self._changed = 0, 0, {}, threading.Condition()

    def _request(self):
        self.requests += 1

    def add(self, key, number):
        with self._changed:
            self._request()
            self.values[key] = self.values.get(key, 0) + number
            return self.values[key]

    def set(self, key, value):
        with self._changed:
            self._request()
            assert value, f"{key} is empty"
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            self._request()
            return self.values[key]

    def multi_get(self, keys):
        with self._changed:
            self._request()
            return [self.values[key] for key in keys]

    def wait(self, keys, timeout):
        with self._changed:
            self._request()
            self.keys_waited += len(keys)
            if not self._changed.wait_for(lambda: all(key in self.values for key in keys), timeout.total_seconds()):
                raise RuntimeError("wait timeout")

    def delete_key(self, key):
        with self._changed:
            self._request()
            return self.values.pop(key, None) is not None


def run(world, call, store, seconds=60.0):
    """call(rank, all_gather) on a thread for each rank. returns: their results, exceptions among them."""
    results = [None] * world

    def of_rank(rank):
        try:
            results[rank] = call(rank, eplb.StoreAllGather(store, rank, world, deadline_seconds=seconds))
        except eplb.Error as error:
            results[rank] = error

    threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class StoreAllGatherTest(unittest.TestCase):
    def test_requests_rise_with_the_ranks_and_values_go(self):
        calls = 5
        for world in (1, 2, 8, 32, 64):
            with self.subTest(world=world):
                store = Store()
                answers = [bytes([rank]) * (rank % 3) for rank in range(world)]  # some are empty
                found = run(world, lambda rank, all_gather: [all_gather(answers[rank]) for _ in range(calls)], store)
                self.assertEqual(found, [[answers] * calls] * world)
                self.assertLessEqual(store.requests, (6 * calls + 1) * world)
                self.assertLessEqual(store.keys_waited, 2 * calls * world)
                self.assertLessEqual(len(store.values), world + 1)  # the claims and the newest answers

    def test_late_ranks_are_named_on_all_and_to_themselves(self):
        for late, named in (((2,), "rank 2"), ((0,), "rank 0"), ((1, 3), "ranks 1, 3")):
            given_up = threading.Barrier(5 - len(late))

            def call(rank, all_gather):
                if rank in late:
                    self.assertTrue(others_gave_up.wait(60))
                try:
                    return all_gather(b"")
                finally:
                    if rank not in late:
                        given_up.wait(60)

            others_gave_up = threading.Event()
            threading.Thread(target=lambda: (given_up.wait(60), others_gave_up.set())).start()
            with self.subTest(late=late):
                for rank, error in enumerate(run(4, call, Store(), seconds=1.0)):
                    if rank == 0 and 0 in late:
                        continue  # it finds what the others wrote
                    self.assertIsInstance(error, eplb.DeadlineExceeded)
                    self.assertEqual(str(error), f"all_gather 0 of rank {rank}: no answer within 1 s from {named}")

    def test_a_rank_is_claimed_once(self):
        store = Store()
        eplb.StoreAllGather(store, 0, 1)(b"")
        with self.assertRaisesRegex(eplb.FailedPrecondition, "another process has claimed rank 0 of 1"):
            eplb.StoreAllGather(store, 0, 1)(b"")


if __name__ == "__main__":
    unittest.main()
