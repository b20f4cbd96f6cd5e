"""Placements, the figure of balancedness, and what each rank reads of the text."""

import unittest

import example  # finds the example's modules

import numpy as np
import torch

from data import Batches
from placement import Placement, balancedness, slot_bounds, slot_tokens_if_split_equally


class PlacementTest(unittest.TestCase):
    def test_static_placement_repeats_the_experts(self):
        placement = Placement.static(num_layers=2, num_experts=4, num_slots=6, num_ranks=2)
        self.assertEqual(placement.physical_to_logical_map.tolist(), [[0, 1, 2, 3, 0, 1]] * 2)
        self.assertEqual(placement.replicas(1, 0), [0, 4])
        self.assertEqual([list(placement.local_slots(rank)) for rank in range(2)], [[0, 1, 2], [3, 4, 5]])

    def test_first_ranks_hold_the_slots_that_do_not_part_evenly(self):
        self.assertEqual(slot_bounds(10, 4), [0, 3, 6, 8, 10])

    def test_the_given_primary_comes_first(self):
        placement = Placement(np.array([[0, 1, 0]]), 2, 1, np.array([[[2, 0], [1, -1]]]))
        self.assertEqual(placement.replicas(0, 0), [2, 0])
        self.assertEqual(placement.logical_to_physical_map.tolist(), [[[2, 0], [1, -1]]])
        self.assertEqual(placement.logical_replica_count.tolist(), [[2, 1]])

    def test_what_is_wrong_is_named(self):
        for slots, order, message in (([[0, 0, 2]], None, "layer 0: no slot holds expert 1"),
                                      ([[0, 1, 3]], None, "layer 0: slot 2 holds expert 3, of 3"),
                                      ([[0, 1, 2]], [[[0], [2], [1]]], "expert 1 is in slots \\[1\\], but .* \\[2\\]")):
            with self.assertRaisesRegex(ValueError, message):
                Placement(np.array(slots), 3, 1, None if order is None else np.array(order))


class BalancednessTest(unittest.TestCase):
    def test_it_is_mean_over_max_of_the_ranks_tokens(self):
        tokens = np.array([[1, 2, 3, 6], [5, 5, 5, 5], [0, 0, 0, 0], [0, 0, 8, 0]])
        np.testing.assert_allclose(balancedness(tokens, 2), [6 / 9, 1, 1, 1 / 2])

    def test_replicas_share_equally(self):
        placement = Placement(np.array([[0, 1, 0, 2]]), num_experts=3, num_ranks=2)
        tokens = slot_tokens_if_split_equally(placement, np.array([[10, 4, 1]]))
        self.assertEqual(tokens.tolist(), [[5, 4, 5, 1]])
        np.testing.assert_allclose(balancedness(tokens, 2), [7.5 / 9])


class BatchesTest(unittest.TestCase):
    def test_global_batch_is_the_same_for_any_number_of_ranks(self):
        batches = Batches(bytes(range(256)) * 4, seed=3, num_sequences=8, length=16)
        cpu = torch.device("cpu")
        whole = batches.part(5, 0, 1, cpu)
        for num_ranks in (2, 4):
            parts = [batches.part(5, rank, num_ranks, cpu) for rank in range(num_ranks)]
            self.assertTrue(torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs))
            self.assertEqual([part.first_token for part in parts],
                             [rank * 128 // num_ranks for rank in range(num_ranks)])
        self.assertTrue(torch.equal(whole.inputs[:, 1:], whole.targets[:, :-1]))
        self.assertFalse(torch.equal(whole.inputs, batches.part(6, 0, 1, cpu).inputs))

    def test_ranks_that_cannot_have_equal_parts_are_refused(self):
        with self.assertRaisesRegex(ValueError, "8 sequences of a global batch do not part over 3 ranks"):
            Batches(b"x" * 100, 1, 8, 16).part(0, 0, 3, torch.device("cpu"))


if __name__ == "__main__":
    unittest.main()
