"""Training does not notice where experts are: the same bits under any permutation."""

import unittest

import example


class PermutationTest(example.ExampleTest):
    def test_loss_and_parameters_are_bit_equal_when_experts_move(self):
        steps = example.steps_of_test(60)
        still = self.run_worker("still", ranks=4, steps=steps, checkpoint_every=steps)
        moved = self.run_worker("moved", ranks=4, steps=steps, checkpoint_every=steps, migrate_every=3)
        self.assertEqual(len(still), steps)
        self.assertEqual(sum(record["switched"] for record in moved), steps // 3)
        for name in ("loss", "auxiliary_loss", "gradient_norm"):
            self.assertEqual([record[name] for record in moved], [record[name] for record in still], name)
        self.assert_bit_equal("moved", "still", steps)
        # What moves is real work: other ranks have the load, and the model learns.
        self.assertNotEqual([record["balancedness"] for record in moved], [record["balancedness"] for record in still])
        self.assertLess(still[-1]["loss"], still[0]["loss"] - 0.5)

    def test_a_tensor_that_does_not_move_is_noticed(self):
        self.run_worker("still", ranks=2, steps=8, checkpoint_every=8)
        self.run_worker("moved", ranks=2, steps=8, checkpoint_every=8, migrate_every=3, forget="second_moment")
        difference, _ = self.largest_difference("moved", "still", 8)
        self.assertGreater(difference, 0)


if __name__ == "__main__":
    unittest.main()
