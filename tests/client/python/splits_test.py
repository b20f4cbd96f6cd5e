"""The exact split of a batch, by a client's ranks and without one, in numpy and torch."""

import copy
import dataclasses
import gc
import pickle
import unittest

import numpy as np
import torch

import eplb
import ranks
from eplb import placement

EXPERTS, TOP_K, TOKENS, SLOTS = 8, 2, 300, 12


def ids_of(rank, dtype="int64"):
    """Expert 0 and 1 most; each token's two choices differ."""
    first = np.random.RandomState(rank).choice(EXPERTS, TOKENS, p=[.4, .3, .1, .1, .05, .03, .01, .01])
    return np.stack([first, (first + 1 + rank) % EXPERTS], axis=1).astype(dtype)


def counts_of(world):
    return np.stack([np.bincount(ids_of(rank).flatten(), minlength=EXPERTS) for rank in range(world)])


def tokens_of_gpus(quotas, num_gpus):
    return np.asarray(quotas).reshape(num_gpus, -1).sum(axis=1)


def split_and_routed(rank, directory, world):
    """returns: (quotas, own, tokens that came to each slot, split's repr) of layer 1."""
    with ranks.connect(directory, rank, world, num_slots=SLOTS) as client:
        ranks.Experts(client, ranks.numpy_zeros)
        client.finish_registration()
        counts, ids = counts_of(world), ids_of(rank)
        client.check_counts(1, counts)
        split = client.split(1, counts)
        assert type(split.quotas) is np.ndarray and split.version == client.placement.version
        assert split.quotas.sum() == counts.sum() and split.own.sum() == counts[rank].sum()
        assert split.peak == tokens_of_gpus(split.quotas, world).max() and split.mean == counts.sum() / world
        assert split.balancedness == split.mean / split.peak and split.peak <= split.equal_peak
        held = client.placement.physical_to_logical_map[1]
        for tensor in (torch.from_numpy(counts), torch.from_numpy(counts).int()):
            same = client.split(1, tensor)
            assert isinstance(same.quotas, torch.Tensor) and same.quotas.dtype == torch.int64
            assert same.quotas.tolist() == split.quotas.tolist() and same.own.tolist() == split.own.tolist()
        slots = client.route_tokens(1, ids, split=split)
        assert (held[slots] == ids).all()
        for made in (torch.from_numpy(ids), torch.from_numpy(ids).int()):
            routed = client.route_tokens(1, made, split=split)
            assert routed.dtype == made.dtype and routed.tolist() == slots.tolist()
        # The same in the order of a stream, of which host memory has none.
        client.prepare_split(max_tokens=TOKENS, top_k=TOP_K, split_on_gpu=rank == 0)  # no effect in host memory
        for made, gathered in ((ids, counts), (torch.from_numpy(ids).int(), torch.from_numpy(counts))):
            row = client.count_for(1, made)
            assert type(row) is type(made) and row.tolist() == counts[rank].tolist()
            replaced = made + 0
            client.count_for(1, replaced)
            routed = client.route_from(1, gathered, slots=replaced)
            assert routed is replaced and routed.dtype == made.dtype and routed.tolist() == slots.tolist()
            try:
                client.route_from(1, gathered)
                raise AssertionError("the slots were routed as ids")
            except eplb.FailedPrecondition as error:
                assert "before its count_for, which each call needs" in str(error), error
        assert not client._counted
        figures = client.split_figures
        assert (figures.batches, figures.late, figures.refused, figures.drawn, figures.peak) == (2, 0, 0, 0, split.peak), figures
        # Counts in the same pass, in place; padding takes no quota.
        padding = np.arange(TOKENS) % 5 == 0
        mine = np.bincount(ids[~padding].flatten(), minlength=EXPERTS)
        alone = client.split(1, mine, before=np.zeros(EXPERTS, int), mine=mine)
        counters, written = np.zeros(EXPERTS + 1, np.int64), ids.copy()
        assert client.route_tokens(1, written, slots=written, counters=counters, is_padding=padding, split=alone) is written
        assert counters[:-1].tolist() == mine.tolist() and (written[padding] == -1).all()
        prefix = client.split(1, counts.sum(axis=0), before=counts[:rank].sum(axis=0), mine=counts[rank])
        assert prefix.quotas.tolist() == split.quotas.tolist() and prefix.own.sum() == split.own.sum()
        assert (held[client.route_tokens(1, ids, split=prefix)] == ids).all()
        assert client.split(1, counts.sum(axis=0)).own is None
        return split.quotas, split.own, np.bincount(slots.flatten(), minlength=SLOTS), repr(split)


class ClientSplitTest(ranks.RankTest):
    def test_ranks_meet_the_quotas_without_talking(self):
        answers = self.succeed(3, split_and_routed, self.directory, 3)
        quotas = answers[0][0]
        for each, own, came, _ in answers:
            self.assertEqual(each.tolist(), quotas.tolist())
            self.assertEqual(came.tolist(), own.tolist())
        self.assertEqual(sum(came for _, _, came, _ in answers).tolist(), quotas.tolist())
        self.assertRegex(answers[0][3], r"^Split\(layer=1, peak=\d+\.0, .*tight_gpus=\(.+\), version=0\)$")

    def test_options_hold_and_mistakes_are_named(self):
        with eplb.Client.connect(num_layers=1, num_experts=EXPERTS) as client:
            counts = np.arange(EXPERTS)
            quotas = np.arange(EXPERTS).tolist()
            for said, call in (
                    ("counts: shape \\[1, 1, 8\\], expected", lambda: client.split(0, counts[None, None])),
                    ("counts: float64 \\[8\\], expected integers", lambda: client.split(0, counts * 1.0)),
                    ("counts: list, expected integers", lambda: client.split(0, [[1], [2, 3]])),
                    ("layer 0: expert 3 has -3 tokens", lambda: client.split(0, np.where(counts == 3, -3, counts))),
                    ("layer: 'a', expected an integer", lambda: client.split("a", counts)),
                    ("mine: shape \\[3\\], expected \\[8\\]", lambda: client.split(0, counts, before=counts, mine=[1, 2, 3])),
                    ("counts: 5, expected integers \\[experts\\] or", lambda: client.split(0, 5)),
                    ("slack: 'x', expected a number", lambda: client.set_split_options(slack="x")),
                    ("speeds: shape \\[1, 1\\], expected", lambda: client.set_split_options(speeds=[[1]])),
                    ("split: dict, expected what client.split", lambda: client.route_tokens(0, ids_of(0), split={})),
                    ("split: it has no own quotas", lambda: client.route_tokens(0, ids_of(0), split=client.split(0, counts)))):
                with self.assertRaisesRegex(eplb.InvalidArgument, said):
                    call()
                self.assertEqual(client.split(0, counts).quotas.tolist(), quotas)
            client.set_split_options(speeds=[0.5], slack=0.25)
            self.assertEqual(client.split(0, counts).peak, 2 * counts.sum())
            for said, call in (
                    ("prepare_split was called before register_experts", lambda: client.prepare_split(max_tokens=9, top_k=TOP_K)),
                    ("count_for was called before prepare_split", lambda: client.count_for(0, ids_of(0))),
                    ("route_from of layer 0 was called before its count_for", lambda: client.route_from(0, counts[None]))):
                with self.assertRaisesRegex(eplb.FailedPrecondition, said):
                    call()


class OfflineSplitTest(unittest.TestCase):
    MAP = [[0, 1, 2, 0], [0, 1, 0, 2]]

    def test_a_map_is_split(self):
        split = eplb.split(self.MAP, [10, 6, 0], layer=1, num_gpus=2)
        self.assertEqual(split.quotas.tolist(), [2, 6, 8, 0])
        self.assertEqual((split.peak, split.mean, split.balancedness, split.equal_peak), (8, 8, 1, 11))
        self.assertEqual((split.tight_gpus, split.own, split.version), ((0, 1), None, 0))

    def test_no_tokens_have_no_balancedness(self):
        split = eplb.split(self.MAP, [0, 0, 0], num_gpus=2)
        self.assertEqual((split.peak, split.balancedness), (0, None))

    def test_own_quotas_of_all_sources_sum_to_the_quotas(self):
        counts = [[9, 1, 0], [1, 5, 0]]
        parts = [eplb.split(self.MAP, torch.tensor(counts), layer=1, num_gpus=2, gpu=gpu) for gpu in range(2)]
        self.assertEqual(sum(part.own for part in parts).tolist(), parts[0].quotas.tolist())
        self.assertIsNone(eplb.split(self.MAP, counts, layer=1, num_gpus=2).own)

    def test_a_plan_and_a_clients_placement_are_split(self):
        load = np.random.RandomState(3).randint(1, 900, (2, EXPERTS))
        plan = placement.plan(load, num_slots=SLOTS, num_gpus=4)
        splitter = eplb.Splitter(plan)
        for layer in range(2):
            split = splitter.split(layer, load[layer])
            self.assertGreaterEqual(split.balancedness, plan.balancedness[layer] - 1e-12)
            self.assertEqual(split.peak, tokens_of_gpus(split.quotas, 4).max())
            self.assertAlmostEqual(split.equal_peak, plan.max_gpu_load[layer], delta=SLOTS // 4)  # whole tokens
        with eplb.Client.connect(num_layers=1, num_experts=EXPERTS) as client:
            self.assertEqual(eplb.split(client.placement, np.arange(EXPERTS)).quotas.tolist(), list(range(EXPERTS)))

    def test_speeds_and_slack(self):
        self.assertEqual(eplb.split([[0, 0]], [9], num_gpus=2, speeds=[1, .5]).quotas.tolist(), [6, 3])
        self.assertEqual(eplb.split(self.MAP, [100, 52, 50], layer=1, num_gpus=2, slack=.02).quotas.tolist(),
                         [50, 52, 50, 50])
        self.assertEqual(eplb.split([[0, -1]], [9], num_gpus=2, speeds=[1, 0]).quotas.tolist(), [9, 0])

    def test_mistakes_are_named(self):
        for said, call in (
                ("num_gpus: missing; the placement does not have it", lambda: eplb.split(self.MAP, [1, 2, 3])),
                ("placement: shape \\[4\\], expected \\[layers, slots\\]", lambda: eplb.split(self.MAP[0], [1, 2, 3], num_gpus=2)),
                ("placement: layer 0 slot 1 holds -7, expected an expert, or -1 for none",
                 lambda: eplb.split([[0, -7, 1, 2]], [1, 2, 3], num_gpus=2)),
                ("placement: layer 0: expert 3 is in no slot", lambda: eplb.split([[0, 1, 2, 9]], [1] * 10, num_gpus=2)),
                ("placement: layer 1: expert 2 is in no slot",
                 lambda: eplb.split([[0, 1, 2, 0], [0, 1, 1, 0]], [1, 2, 3], num_gpus=2)),
                ("placement: no slot holds an expert", lambda: eplb.split([[-1, -1]], [1], num_gpus=2)),
                ("layer 0: expert 1 has -2 tokens", lambda: eplb.split(self.MAP, [1, -2, 3], num_gpus=2)),
                ("gpu: 1 is given, but counts \\[experts\\] do not show", lambda: eplb.split(self.MAP, [1, 2, 3], num_gpus=2, gpu=1)),
                ("slack: an integer of 1329 bits is above a double's range",
                 lambda: eplb.split(self.MAP, [1, 2, 3], num_gpus=2, slack=10**400)),
                ("placement: layer 0, slot 0: expert 2147483648 does not fit into 32 bits",
                 lambda: eplb.split([[2**31, 1, 2, 3]], [1] * 4, num_gpus=2)),
                ("counts: 9223372036854775808 does not fit into 64 bits",
                 lambda: eplb.split(self.MAP, np.array([1, 2**63, 3], np.uint64), num_gpus=2)),
                ("placement: 18446744073709551615 does not fit into 64 bits",
                 lambda: eplb.split(np.array([[0, 2**64 - 1]], np.uint64), [1], num_gpus=2))):
            with self.subTest(said), self.assertRaisesRegex(eplb.InvalidArgument, said):
                call()

    def test_a_placement_is_not_split_over_another_number_of_gpus(self):
        plan = placement.plan(np.arange(16).reshape(2, 8), num_slots=SLOTS, num_gpus=4, num_nodes=2)
        counts = np.arange(8)
        for said, given in (("num_gpus is 3, the placement has 4", {"num_gpus": 3}),
                            ("num_nodes is 4, the placement has 2", {"num_nodes": 4})):
            with self.subTest(said), self.assertRaisesRegex(eplb.InvalidArgument, f"^{said}$"):
                eplb.split(plan, counts, **given)
        self.assertEqual(eplb.split(plan, counts, num_gpus=4, num_nodes=2), eplb.split(plan, counts))
        with eplb.Client.connect(num_layers=1, num_experts=8) as client:
            self.assertRaisesRegex(eplb.InvalidArgument, "^num_gpus is 2, the placement has 1$", eplb.split, client.placement,
                                   counts, num_gpus=2)
        by_hand = dataclasses.replace(plan, num_gpus=None, num_nodes=1)
        self.assertEqual(eplb.split(by_hand, counts, num_gpus=4, num_nodes=2), eplb.split(plan, counts))

    def test_a_plan_whose_maps_do_not_fit_is_refused(self):
        plan = placement.plan(np.arange(16).reshape(2, 8), num_slots=SLOTS, num_gpus=4)
        for replicas in (plan.logical_to_physical_map[:1], plan.logical_to_physical_map[0]):
            with self.assertRaisesRegex(eplb.InvalidArgument, r"^placement: logical_to_physical_map has shape .*\[2, experts, X\]$"):
                eplb.split(dataclasses.replace(plan, logical_to_physical_map=replicas), np.arange(8))

    def test_a_splitter_is_not_pickled(self):
        self.assertRaisesRegex(TypeError, "^a Splitter is memory of this process and cannot be pickled", pickle.dumps,
                               eplb.Splitter(self.MAP, num_gpus=2))

    def test_a_copy_outlives_the_splitter_that_it_was_made_of(self):
        for copied in (copy.copy, copy.deepcopy):
            splitter = eplb.Splitter(self.MAP, num_gpus=2)
            again = copied(splitter)
            del splitter
            gc.collect()
            eplb.Splitter([[0, 1]], num_gpus=2)  # takes the memory that was freed
            self.assertEqual(again.split(1, [10, 6, 0]).quotas.tolist(), [2, 6, 8, 0])

    def test_splits_are_compared_by_the_values_of_their_arrays(self):
        counts = [[9, 1, 0], [1, 5, 0]]
        one, same, other = (eplb.split(self.MAP, given, layer=1, num_gpus=2, gpu=gpu)
                            for given, gpu in ((counts, 0), (torch.tensor(counts), 0), (counts, 1)))
        self.assertTrue(one == same and not one != same)
        self.assertFalse(one == other or one == "a split")
        self.assertNotEqual(eplb.split(self.MAP, counts, layer=1, num_gpus=2), one, "no own quotas")
        with self.assertRaises(TypeError):
            hash(one)


if __name__ == "__main__":
    unittest.main()
