"""train_replicas.py: experts in several slots train as if they were in one, but for rounding."""

import unittest

import example
import numpy as np

STEPS, SAVED = 40, 20
# Without the loss of the router, whose value depends on the number of ranks.
COMMON = {"steps": STEPS, "dtype": "float64", "auxiliary_loss": 0}


class ReplicasTest(example.ExampleTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.without = cls.train("train.py", "without", **COMMON)

    def run_with(self, name, beside_daemon=True, **options):
        """Fails unless the losses are those of the training without replicas, to rounding. Returns the records."""
        if beside_daemon:
            options.update(endpoint=self.daemon.endpoint, job=name)
        records = self.train("train_replicas.py", name, **COMMON, **options)
        reference = {record["step"]: record["loss"] for record in self.without}
        apart = max(abs(record["loss"] / reference[record["step"]] - 1) for record in records)
        print(f"{name}: {len(records)} steps within {apart:.1e}")
        self.assertLessEqual(apart, 1e-10)
        self.assertEqual(any(record["switched"] for record in records), beside_daemon)
        return records

    def test_state_in_every_replica_and_a_checkpoint_for_other_slots_and_ranks(self):
        self.run_with("every", slots=20, checkpoint_every=SAVED, checkpoint_dir=self.directory)
        resumed = self.run_with("resumed", beside_daemon=False, slots=18, ranks=2, resume=self.directory / f"step-{SAVED:06d}")
        self.assertEqual([record["step"] for record in resumed], list(range(SAVED, STEPS)))

    def test_state_at_the_primary(self):
        self.run_with("primary", slots=24, state="with_primary")

    def test_an_exact_split_gives_the_fullest_rank_fewer_tokens(self):
        equal = self.run_with("equal", beside_daemon=False, slots=32)
        batch = self.run_with("batch", beside_daemon=False, slots=32, split="batch", state="with_primary")
        self.assertEqual([record["load"] for record in batch], [record["load"] for record in equal])
        self.assertGreater(np.mean([record["balancedness"] for record in batch]),
                           np.mean([record["balancedness"] for record in equal]) + 0.02)

    def test_the_daemon_measures_the_exact_split(self):
        records = self.run_with("measured", slots=20, split="batch", state="with_primary")
        shown = self.ask("status", "measured")["jobs"][0]
        self.assertEqual(shown["measured_split"], "batch")
        last = [record["balancedness"] for record in records[-20:]]
        self.assertLess(min(last), shown["balancedness"])
        self.assertLess(shown["balancedness"], max(last))


if __name__ == "__main__":
    unittest.main()
