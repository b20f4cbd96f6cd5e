"""eplb.echo: replicas for one batch, planned without a client."""

import unittest

import numpy as np

import eplb


class EchoTest(unittest.TestCase):
    def test_a_hot_expert_is_copied_to_the_other_gpus(self):
        echo = eplb.echo([[0, 1, 2, 3]], [0, 100, 0, 0], num_gpus=4, spare_slots=1, tolerance=0)
        self.assertEqual((echo.before, echo.peak, echo.bound, echo.num_replicas), (100, 25, 25, 3))
        self.assertEqual(echo.source.tolist(), [[1], [-1], [1], [1]])
        self.assertEqual(echo.spare_tokens.tolist(), [[25], [0], [25], [25]])
        self.assertEqual(echo.home_tokens.tolist(), [0, 25, 0, 0])

    def test_a_copy_stays_in_its_domain_and_tokens_sum_to_the_counts(self):
        counts = np.random.RandomState(1).zipf(1.5, 64).clip(max=10**6)
        placement = [list(range(64)), list(reversed(range(64)))]
        echo = eplb.echo(placement, counts, layer=1, num_gpus=16, num_domains=4)
        sums = np.zeros(64, np.int64)
        np.add.at(sums, placement[1], echo.home_tokens)
        used = np.argwhere(echo.source >= 0)
        self.assertEqual(len(used), echo.num_replicas)
        self.assertGreater(len(used), 0)
        for gpu, spare in used:
            slot = echo.source[gpu, spare]
            self.assertEqual(slot // 4 // 4, gpu // 4, "its domain")
            sums[placement[1][slot]] += echo.spare_tokens[gpu, spare]
        self.assertEqual(sums.tolist(), counts.tolist())
        gpus = echo.home_tokens.reshape(16, 4).sum(axis=1) + echo.spare_tokens.sum(axis=1)
        self.assertEqual(gpus.max(), echo.peak)
        self.assertLessEqual(echo.peak, echo.before)

    def test_echoes_are_compared_by_the_values_of_their_arrays(self):
        one, same, other = (eplb.echo([[0, 1]], counts, num_gpus=2, spare_slots=1) for counts in ([9, 1], [9, 1], [9, 2]))
        self.assertTrue(one == same and one != other and one != "an echo")
        with self.assertRaises(TypeError):
            hash(one)

    def test_errors_name_what_does_not_fit(self):
        for arguments, options, message in [
            (([[0, 1]], [1, 2]), {}, "num_gpus: missing"),
            (([[0, 1]], [[1, 2]]), {"num_gpus": 2}, r"counts: int64 \[1, 2\], expected integers \[experts\]"),
            (([[0, 1]], 5), {"num_gpus": 2}, r"counts: 5, expected integers \[experts\]"),
            (([[0, 1]], np.zeros(0, int)), {"num_gpus": 2}, "layer 0: tokens of 0 experts, expected 2"),
            (([[0, 1]], [1, 2, 3]), {"num_gpus": 2}, "layer 0: tokens of 3 experts, expected 2"),
            (([[0, 1]], [1, -2]), {"num_gpus": 2}, "layer 0: expert 1 has -2 tokens"),
            (([[0, 1]], [1, 2]), {"num_gpus": 2, "layer": 1}, "layer 1 is not in 0..0"),
            (([[0, 1]], [1, 2]), {"num_gpus": 2, "spare_slots": -1}, "spare_slots is -1, expected 1..1024"),
            (([[0, 1]], [1, 2]), {"num_gpus": 2, "spare_slots": 2000}, "spare_slots is 2000, expected 1..1024"),
            (([[0, 1]], [1, 2]), {"num_gpus": 2, "tolerance": "much"}, "tolerance: 'much', expected a number"),
            (([[0, 1]], [1, 2]), {"num_gpus": 2, "tolerance": 10**400}, "tolerance: an integer of 1329 bits is above"),
            (([[0, 1]], [1, 2]), {"num_gpus": 2, "num_domains": 3}, "num_domains is 3, expected a divisor of 2 GPUs"),
            (([[0, 1]], [1, 2]), {"num_gpus": 2, "num_domains": "a"}, "num_domains: 'a', expected an integer"),
            (([[0, 1]], [1, 2]), {"num_gpus": -1}, "num_gpus is -1"),
            (([[0, 1]], [1, 2]), {"num_gpus": 2**31 - 1, "spare_slots": 1024}, "^num_gpus is 2147483647, it must be in 1..1048576$"),
            (([[0, 2**31]], [1, 2]), {"num_gpus": 2}, "placement: layer 0, slot 1: expert 2147483648"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(eplb.InvalidArgument, message):
                eplb.echo(*arguments, **options)


if __name__ == "__main__":
    unittest.main()
