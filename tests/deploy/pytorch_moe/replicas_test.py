"""Experts in several slots train as if they were in one."""

import unittest

import example


class ReplicasTest(example.ExampleTest):
    def assert_equal_to(self, limit, with_replicas, without):
        """Every loss and norm, relative; returns the largest difference."""
        self.assertEqual(len(with_replicas), len(without))
        largest = max(abs(one[name] - other[name]) / abs(other[name])
                      for one, other in zip(with_replicas, without) for name in ("loss", "gradient_norm"))
        self.assertLessEqual(largest, limit)
        return largest

    def test_float64_is_equal_to_rounding_with_state_in_every_replica_or_at_the_primary(self):
        steps = example.steps_of_test(24)
        common = {"ranks": 4, "steps": steps, "checkpoint_every": steps, "dtype": "float64"}
        without = self.run_worker("without", **common)
        moving = {"redundant": 8, "migrate_every": 5}
        # "moving" by the test alone, the others by EPLB's client. 10 slots on 4 ranks: some ranks have 3.
        for name, more in (("every", moving), ("primary", {**moving, "state_in_primary": True}),
                           ("uneven", {"redundant": 2}), ("uneven primary", {"redundant": 2, "state_in_primary": True}),
                           ("still", {"redundant": 8})):
            with self.subTest(name):
                records = self.run_worker(name, **common, **more)
                curve = self.assert_equal_to(1e-10, records, without)
                difference, tensor = self.largest_difference(name, "without", steps)
                self.assertLessEqual(difference, 1e-10, tensor)
                print(f"{name}: {steps} steps, curve within {curve:.1e}, tensors within {difference:.1e} ({tensor})")
                self.assertEqual(any(record["switched"] for record in records), "migrate_every" in more)

    def test_float32_is_equal_to_rounding_at_each_step_from_the_same_state(self):
        steps = example.steps_of_test(20)
        common = {"ranks": 4, "steps": steps, "checkpoint_every": 1}
        without = self.run_worker("without", **common)
        records = self.run_worker("with", redundant=4, migrate_every=3, each_step_from=self.directory / "without",
                                  **common)
        curve = self.assert_equal_to(1e-5, records, without)
        worst = max(self.largest_difference("with", "without", step + 1) for step in range(steps))
        self.assertLessEqual(worst[0], 1e-5, worst)
        print(f"{steps} steps, curve within {curve:.1e}, tensors within {worst[0]:.1e} ({worst[1]})")


if __name__ == "__main__":
    unittest.main()
