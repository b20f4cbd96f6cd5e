"""Optimizers that shard over the expert-data ranks: masters and moments follow experts, wherever they are cut."""

import copy
import unittest

import training  # finds the adapter's and the tests' modules

import torch
from bit_equal import BitEqualTest, count_by_logical_id
from eplb_megatron_sharded import expect_cover
from training import Training, eplb


def verified(this):
    """Once after the first steps: nothing is forgotten, and what the check moves comes back as it was."""
    count_by_logical_id(this)
    if this.next_step == 4:
        this.balancer.check()
        this.balancer.check_experts()


def loads_late(this):
    """State of other memory and equal values, as a checkpoint that is loaded late gives."""
    count_by_logical_id(this)
    if this.next_step in (6, 15):
        inner = training.distributed.inner_of(this.optimizer.chained_optimizers[1])
        inner.load_state_dict(copy.deepcopy(inner.state_dict()))


def whole_or_cut(rank, world, directory, sharding):
    """How many parameters of experts this rank holds whole, in part and not at all."""
    this = Training(rank, world, directory, "held", ep=2, experts="TEGroupedMLP", sharding=sharding)
    held = {id(model): updated.numel() for model, _, updated in this.optimizer.chained_optimizers[1].held()}
    sizes = [(each.numel(), held.get(id(each), 0)) for name, each in this.model.named_parameters() if ".experts." in name]
    return [sum(mine == size for size, mine in sizes), sum(0 < mine < size for size, mine in sizes),
            sum(mine == 0 for _, mine in sizes)]


def in_place(rank, world, directory, endpoint):
    """Weights stay at their offsets in DDP's buffer, which is gathered as a whole."""
    this = Training(rank, world, directory, "place", ep=2, experts="SequentialMLP", sharding="distributed")
    buffer = this.optimizer.chained_optimizers[1].buffers[0]

    def offsets():
        return [(each.data_ptr() - buffer.param_data.data_ptr()) // each.element_size() for each in buffer.params]

    before = offsets()
    this.attach(endpoint=endpoint, job="place").run(30)
    assert this.switches, "no switch"
    return offsets() == before and before == [buffer.param_index_map[each][0] for each in buffer.params]


def late_state(rank, world, directory, sharding):
    this = Training(rank, world, directory, "late", ep=2, experts="TEGroupedMLP", sharding=sharding).attach().run(2)
    this.balancer.check()
    inner = training.distributed.inner_of(this.optimizer.chained_optimizers[1])
    for main in inner.state:
        inner.state[main]["max_exp_avg_sq"] = torch.zeros_like(main)
    this.balancer.check()


def own_checkpoint(rank, world, directory):
    this = Training(rank, world, directory, "own", ep=2, experts="TEGroupedMLP", sharding="distributed").attach().run(2)
    this.balancer.save(directory / "checkpoint")


class ShardingTest(BitEqualTest):
    def sharded(self, world, sharding, steps=30, **options):
        return self.bit_equal(world, steps=steps, after=verified, sharding=sharding, **options)

    # ---- expert-data size 1: each shard is a whole parameter ----

    def test_distributed_sequential_mlp_on_two_ranks(self):
        self.sharded(2, "distributed", steps=50, ep=2, experts="SequentialMLP", add_bias_linear=True)

    def test_distributed_grouped_mlp_on_two_ranks(self):
        self.sharded(2, "distributed", steps=50, ep=2, experts="GroupedMLP")

    def test_distributed_te_grouped_mlp_on_four_ranks(self):
        self.sharded(4, "distributed", ep=4, experts="TEGroupedMLP")

    def test_distributed_float32(self):
        self.sharded(2, "distributed", steps=50, ep=2, experts="TEGroupedMLP", params_dtype=torch.float32)

    def test_distributed_with_masters_in_the_inner_optimizer(self):
        self.sharded(2, "distributed+precision_aware", steps=50, ep=2, experts="TEGroupedMLP")

    # ---- expert-data size 2: shards begin and end within experts, or hold some and not others ----

    def test_distributed_sequential_mlp_in_two_ep_groups(self):
        # Copies of an expert are neighbours here, so that EPLB's ranks are not torch's.
        self.sharded(4, "distributed", ep=2, order="dp-ep", experts="SequentialMLP", add_bias_linear=True)

    def test_distributed_grouped_mlp_in_two_ep_groups(self):
        self.sharded(4, "distributed", ep=2, experts="GroupedMLP")

    def test_distributed_te_grouped_mlp_whose_weights_are_gathered_late(self):
        self.sharded(4, "distributed+overlap", ep=2, experts="TEGroupedMLP")

    def test_distributed_in_two_ep_groups_with_masters_in_the_inner_optimizer(self):
        self.sharded(4, "distributed+precision_aware", ep=2, experts="TEGroupedMLP")

    def test_layer_wise(self):
        self.sharded(4, "layer_wise", ep=2, experts="SequentialMLP")

    def test_zero_of_torch(self):
        self.sharded(4, "zero", ep=2, experts="TEGroupedMLP", params_dtype=torch.float32)

    def test_what_a_rank_holds_in_these_tests(self):
        whole, cut, none = zip(*self.succeed(4, whole_or_cut, 4, self.directory, "distributed"))
        self.assertTrue(all(whole) and all(cut) and all(none), (whole, cut, none))
        (self.directory / "held").unlink()
        self.assertEqual(self.succeed(4, whole_or_cut, 4, self.directory, "layer_wise"), [[8, 0, 8]] * 4)

    # ---- what else must hold ----

    def test_state_that_is_loaded_late_is_taken_over(self):
        self.bit_equal(4, steps=30, after=loads_late, sharding="distributed", ep=4, experts="TEGroupedMLP")

    def test_shards_of_state_that_are_loaded_late_are_carried(self):
        self.bit_equal(4, steps=30, after=loads_late, sharding="distributed", ep=2, experts="TEGroupedMLP")

    def test_weights_stay_in_their_buffer(self):
        daemon = self.start_daemon()
        self.assertEqual(self.succeed(2, in_place, 2, self.directory, daemon.endpoint), [True, True])

    def test_forgotten_state_is_found(self):
        for result in self.run_ranks(4, late_state, 4, self.directory, "layer_wise"):
            self.assert_raised(result, "InvalidArgument", "check: state that the optimizer made after everything was registered "
                               "stays behind", "layers.0.linear_fc1.weight.max_exp_avg_sq")

    def test_eplbs_own_checkpoint_has_no_shards(self):
        for result in self.run_ranks(4, own_checkpoint, 4, self.directory):
            self.assert_raised(result, "InvalidArgument", "save: masters and moments are in shards over the expert-data ranks",
                               "balancer.static_order()")
        self.assertFalse((self.directory / "checkpoint").exists())


class CoverTest(unittest.TestCase):
    """Four experts of 10 elements."""

    def test_each_element_once(self):
        for by_rank in ([[[0, 40]]], [[[0, 13]], [[13, 40]]], [[[10, 20], [30, 40]], [[0, 10], [20, 30]]]):
            expect_cover("w", (4, 10), by_rank)

    def test_what_nobody_updates(self):
        with self.assertRaisesRegex(eplb.InvalidArgument, "tensor \"w\": no optimizer of this rank updates it"):
            expect_cover("w", (4, 10), [[]])
        with self.assertRaisesRegex(eplb.InvalidArgument, "no optimizer of its 2 expert-data ranks updates elements from 13 on, of "
                                                          "4 local experts of 10 elements"):
            expect_cover("w", (4, 10), [[[0, 13]], [[20, 40]]])

    def test_what_two_ranks_update(self):
        with self.assertRaisesRegex(eplb.InvalidArgument, "elements 10..19 of 4 local experts are updated on more than one "
                                                          "expert-data rank.*--num-distributed-optimizer-instances 1"):
            expect_cover("w", (4, 10), [[[0, 20]], [[10, 40]]])


if __name__ == "__main__":
    unittest.main()
