"""client.carry and client.static_order: rows go elsewhere and back between two steps, and the current version stays."""

import unittest

import numpy as np
import torch

import eplb
import ranks
from checkpoint_test import write_placement
from eplb import checkpoint

ORDER = [3, 1, 4, 0, 5, 7, 2, 6]


def connected(rank, directory, world, part, options):
    """part: (client, experts) -> the result. Experts verify their rows by where these are."""
    options = {"initial_placement": str(write_placement(directory, world, ORDER)), "num_gpus": world, **options}
    with ranks.connect(directory, rank, world, **options) as client:
        experts = ranks.Experts(client, ranks.torch_zeros)
        experts.verify()
        return part(client, experts)


def verify_where_rows_are(client, experts):
    experts.placement = client.row_placement
    experts.verify()
    experts.placement = client.placement


def there_and_back(client, experts):
    before = client.placement.physical_to_logical_map.copy()
    digest, version = client.placement.digest, client.placement.version
    target = np.stack([np.arange(8)[::-1], np.roll(np.arange(8), 3)])
    for given in (target, target.tolist(), torch.from_numpy(target.copy())):
        client.carry(given)
        assert (client.row_placement.physical_to_logical_map == target).all()
        assert (client.placement.physical_to_logical_map == before).all() and client.placement.digest == digest
        assert client.row_placement.version == version and client.row_placement.digest != digest
        verify_where_rows_are(client, experts)
        client.carry()
        assert client.row_placement.digest == digest
        experts.verify()
    client.carry("static")
    client.carry(client.placement)
    experts.verify()
    ranks.train(client, experts, 4)
    return client.stats.commits


def in_static_order(client, experts):
    """A trainer's own checkpoint code sees the static order, and that a failure of it leaves all as it was."""
    first = client.placement.first_local_slot
    with client.static_order():
        held = [client.row_placement.local_experts(layer).tolist() for layer in range(2)]
        assert held == [list(range(first, first + client.placement.num_local_slots))] * 2, held
        verify_where_rows_are(client, experts)
        refused = []
        for call in (lambda: client.step_boundary(0), lambda: client.record(0, np.ones(8, int)),
                     lambda: client.check_experts(lambda layer, slot: 1), lambda: client.reduce_gradients({})):
            try:
                call()
            except eplb.FailedPrecondition as error:
                refused.append(str(error))
        with client.static_order():  # inside another one: it ends where it began
            pass
        assert client.row_placement.local_experts(0).tolist() == held[0]
    experts.verify()
    try:
        with client.static_order():
            raise KeyError("no disk")
    except KeyError:
        pass
    experts.verify()
    ranks.train(client, experts, 4)
    return refused


def saved_while_carried(client, experts, path):
    with client.static_order():
        checkpoint.save(path, client)
    for _, _, tensor in experts.tensors:
        tensor.zero_()
    checkpoint.load(path, client)
    experts.verify()
    for _, _, tensor in experts.tensors:
        tensor.zero_()
    with client.static_order():
        checkpoint.load(path, client)
    experts.verify()
    return checkpoint.read_fields(path)["placement_digest"] == client.placement.digest


def refusals(client, experts):
    right = np.tile(np.arange(8), (2, 1))
    double = right.copy()
    double[1, 3] = 4
    said = []
    for wrong in (double, right[:1], right.T, "dynamic", 1.5, right + 1, right[:, ::-1]):
        try:
            client.carry(wrong if client.options.rank == 1 else right)
            said.append("")
        except eplb.Error as error:
            said.append(f"{type(error).__name__}: {error}")
        assert client.row_placement.digest == client.placement.digest
        experts.verify()
    ranks.train(client, experts, 2)
    return said


def other_primaries(client, experts):
    plan = eplb.placement.plan(np.ones((2, 8)), num_slots=8, num_gpus=client.placement.num_gpus)
    client.carry(plan)
    verify_where_rows_are(client, experts)
    client.carry()
    return client.row_placement.digest == client.placement.digest


class CarryTest(ranks.RankTest):
    def connected(self, world, part, *more, **options):
        return self.succeed(world, connected, self.directory, world,
                            (lambda client, experts: part(client, experts, *more)), options)

    def test_rows_go_there_and_back_and_training_goes_on(self):
        self.connected(2, there_and_back)

    def test_a_placement_of_a_policy_is_a_target(self):
        self.assertEqual(self.connected(2, other_primaries), [True] * 2)

    def test_static_order_is_left_for_where_rows_were(self):
        for refused in self.connected(2, in_static_order):
            self.assertEqual([text.split(":")[0] for text in refused],
                             ["StepBoundary", "Record", "CheckExperts", "ReduceGradients"])
            for text in refused:
                self.assertRegex(text, "rows of the experts were carried to placement [0-9a-f]{64}, the current version is 0; "
                                       "carry them back first$")

    def test_a_checkpoint_does_not_depend_on_where_rows_are(self):
        self.assertEqual(self.connected(2, saved_while_carried, self.directory / "checkpoint"), [True] * 2)

    def test_what_cannot_be_carried_is_told_to_all_ranks(self):
        others, wrong = self.connected(2, refusals)
        for text, expected in zip(wrong, (
                "placement: layer 1: expert 3 is in no slot", "placement: shape [1, 8], expected [2 layers, 8 slots]",
                "placement: shape [8, 2], expected", "placement: 'dynamic', expected \"static\", integers",
                "expected integers [layers, slots]", "placement: layer 0 slot 7 holds 8, expected an expert",
                "FailedPrecondition: carry: the placement differs: rank"), strict=True):
            self.assertIn(expected, text)
        for text in others[:-1]:
            self.assertEqual(text, "FailedPrecondition: carry: rank 1 cannot carry its rows, and its error has the reason; nothing "
                                   "was moved")
        self.assertEqual(others[-1], wrong[-1])


if __name__ == "__main__":
    unittest.main()
