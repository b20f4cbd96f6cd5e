"""The comparison of two trainings."""

import unittest

import compare
import torch


def result(losses=(0.5,), switches=(3,), **digests):
    return {"losses": [value.hex() for value in losses], "switches": list(switches), "digests": digests}


class CompareTest(unittest.TestCase):
    def test_what_is_equal_and_what_is_not(self):
        off = [result(x="a", y="b", switches=()), result(x="a", z="c", switches=())]
        on = [result(x="a", z="c"), result(x="a", y="b")]
        self.assertEqual(compare.difference(off, on), "")
        for changed, message in (
                ([result((0.5000000000000001,), x="a", z="c"), on[1]], r"^rank 0 loss 0: 0\.5000000000000001, expected 0\.5$"),
                ([result((0.5, 0.5), x="a", z="c"), on[1]], "^rank 0 has 2 losses, expected 1$"),
                ([result(x="a", z="c"), result(x="a", y="other")], "^1 of 3 tensors differ, first y$"),
                ([result(x="a", z="c"), result(x="other", y="b")], r"^copies of x differ \(rank 1\)$"),
                ([result(x="a"), result(x="a", y="b")], "^1 tensors in one training alone, first z$"),
                ([result(x="a", z="c", switches=()), on[1]], "^experts did not move$")):
            with self.subTest(message):
                self.assertRegex(compare.difference(off, changed), message)
        self.assertEqual(compare.difference([result()], [result()]), "nothing was compared")
        self.assertEqual(compare.difference([result((float("nan"),), x="a")], [result((float("nan"),), x="a")]), "")

    def test_a_digest_is_of_every_bit(self):
        plain = torch.tensor([0.0, 1.0])
        self.assertEqual(compare.digest(plain), compare.digest(plain.reshape(2, 1).clone()))
        for other in (torch.tensor([-0.0, 1.0]), plain.to(torch.float64), plain.view(torch.int32), plain[:1]):
            self.assertNotEqual(compare.digest(plain), compare.digest(other))
        compare.digest(torch.ones(3, dtype=torch.bfloat16)), compare.digest(torch.tensor(1))


if __name__ == "__main__":
    unittest.main()
