"""eplb.torch.attach in a trainer that was not written for it: equal to the bit with experts that move."""

import os
import pathlib
import re
import time
import unittest

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import ranks  # noqa: E402
import torch_trainer as trainers  # noqa: E402

STEPS = 60


def give_time(trainer):
    """A daemon decides beside the steps, however busy the machine is."""
    if trainer.attached is not None:
        time.sleep(0.01 if len(trainer.switches) >= 3 else 0.1)


def plain(rank, world, directory, name, options, steps=STEPS, after=None):
    return trainers.Trainer(rank, world, directory, name, **options).run(steps, after).result()


def moved(rank, world, directory, name, endpoint, options, steps=STEPS, after=None, **attach):
    def between(trainer):
        give_time(trainer)
        if after is not None:
            after(trainer)

    attach = {"endpoint": endpoint, "job": name, "vote_every": 2, "report_every": 4, **attach}
    return trainers.Trainer(rank, world, directory, name, eplb=attach, **options).run(steps, between).result()


class AttachTest(ranks.RankTest):
    def setUp(self):
        super().setUp()
        daemon = self.start_daemon()
        self.endpoint = f"127.0.0.1:{daemon.grpc_port}"

    def expect_equal(self, world=2, steps=STEPS, after=None, least=3, **options):
        still = self.succeed(world, plain, world, self.directory, "plain", options, steps, after)
        moving = self.succeed(world, moved, world, self.directory, "moved", self.endpoint, options, steps, after)
        self.assertGreaterEqual(len(moving[0]["switches"]), least, moving[0]["switches"])
        for one, other in zip(still, moving):
            self.assertEqual(one["losses"], other["losses"])
            self.assertEqual(sorted(one["tensors"]), sorted(other["tensors"]))
            differing = [name for name, value in one["tensors"].items() if value != other["tensors"][name]]
            self.assertEqual(differing, [])
        return moving

    def test_adamw_on_two_ranks(self):
        self.expect_equal()


if __name__ == "__main__":
    unittest.main()
