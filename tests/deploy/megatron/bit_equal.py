"""Training with moving experts against the same training without EPLB: equal in every bit."""

import training  # finds the adapter's and the tests' modules

import ranks
from training import differing

STEPS = 50


def count_by_logical_id(this):
    """The router's own counters see logical experts, and so does what the daemon is told: with votes every 2 steps counts are
    taken after each step of an even number."""
    now = [router.local_tokens_per_expert.clone() for router in this.routers()]
    expected = now if this.next_step % 2 or this.next_step == 0 else [sum(each) for each in zip(this.counted, now)]
    this.counted = now
    counted = this.balancer.tokens_per_expert()
    for of_layer, expect in zip(counted, expected):
        assert (of_layer == expect).all(), (of_layer, expect)
    assert sum(now).sum() == training.TOKENS * this.config.moe_router_topk * this.config.num_layers, now


class BitEqualTest(ranks.RankTest):
    def bit_equal(self, world, steps=STEPS, after=count_by_logical_id, **options):
        """Trains twice, and compares every loss, and every tensor of every expert at the end. after: as of Training.run."""
        still = self.succeed(world, training.plain, world, self.directory, "still", steps, options)
        daemon = self.start_daemon()
        moved = self.succeed(world, training.moved, world, self.directory, "moved", steps, options,
                             {"endpoint": daemon.endpoint, "job": "moved"}, after)
        self.assertGreaterEqual(len(moved[0]["switches"]), 2)
        self.assertEqual(moved[0]["losses"], still[0]["losses"])
        self.assertEqual(differing(moved[0]["experts"], still[0]["experts"]), [])
        self.assertNotEqual(moved[0]["slots"].tolist(), [sorted(layer) for layer in moved[0]["slots"].tolist()])
        self.assertLess(still[0]["losses"][-1], still[0]["losses"][0])
        print(f"{len(still[0]['losses'])} losses and {len(still[0]['experts'])} tensors of experts bit-equal, switches after "
              f"steps {moved[0]['switches']}, loss {still[0]['losses'][0]:.3f} to {still[0]['losses'][-1]:.3f}")
        return moved
