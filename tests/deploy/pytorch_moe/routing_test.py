"""Which of an expert's slots a token goes to."""

import unittest

import example  # finds the example's modules

import numpy as np
import torch

from placement import Placement
from routing import RouteTable


class RouteTableTest(unittest.TestCase):
    def test_local_replicas_come_first_and_others_share_by_token(self):
        # 2 ranks of 3 slots: expert 0 on both, expert 1 twice on rank 0, expert 2 on rank 1.
        placement = Placement(np.array([[0, 1, 1, 2, 0, 3]]), num_experts=4, num_ranks=2)
        experts = torch.tensor([[0, 1], [0, 1], [2, 1], [2, 3]])
        cpu = torch.device("cpu")
        self.assertEqual(RouteTable(placement, 0, 0, cpu).slots(experts, first_token=0).tolist(),
                         [[0, 1], [0, 2], [3, 1], [3, 5]])
        self.assertEqual(RouteTable(placement, 0, 1, cpu).slots(experts, first_token=5).tolist(),
                         [[4, 2], [4, 1], [3, 2], [3, 5]])


if __name__ == "__main__":
    unittest.main()
