"""client.carry and client.static_order: rows go elsewhere and back between two steps, and the current version stays."""

import os
import pathlib
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


def load_in_static_order(client, experts):
    """Rows that are written in static order are those of their experts afterwards."""
    with client.static_order():
        experts.placement, experts.updates = client.row_placement, 5
        experts._fill()
        experts.placement = client.placement
    experts.verify()


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


def moved_away(client, experts):
    client.finish_registration()
    kept = experts.tensors[0][2].clone()
    experts.tensors[0][2].data = kept
    client.carry("static")


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
                self.assertRegex(text, "rows of the experts were carried to placement [0-9a-f]{64}, version 0 is in force; "
                                       "carry them back first$")

    def test_rows_loaded_in_static_order_are_their_experts(self):
        self.connected(4, load_in_static_order)

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
            self.assertEqual(text, "FailedPrecondition: carry: rank 1 cannot carry its rows, and its error tells why; nothing "
                                   "was moved")
        self.assertEqual(others[-1], wrong[-1])

    def test_memory_that_was_exchanged_is_named(self):
        for result in self.run_ranks(1, connected, self.directory, 1, moved_away, {}):
            self.assert_raised(result, "InvalidArgument", "layers.0.weight", "it was registered at")

    def test_replicas_get_their_experts_rows_and_a_switched_off_client_does_nothing(self):
        def replicas(rank, directory):
            with ranks.connect(directory, rank, 2, num_slots=12, num_gpus=2) as client:
                experts = ranks.Experts(client, ranks.numpy_zeros)
                client.carry(np.tile([7, 7, 7, 7, 7, 6, 5, 4, 3, 2, 1, 0], (2, 1)))
                verify_where_rows_are(client, experts)
                client.carry()
                experts.verify()

        self.succeed(2, replicas, self.directory)

    def test_a_path_of_that_word_is_a_file(self):
        before = os.getcwd()
        os.chdir(self.directory)
        self.addCleanup(os.chdir, before)
        write_placement(self.directory, 1, ORDER).rename("static")

        def first(rank, initial):
            with ranks.connect(self.directory, rank, 1, initial_placement=initial, all_gather=lambda own: [own]) as client:
                return client.placement.local_experts(0).tolist()

        for initial, expected in (("./static", ORDER), (pathlib.Path("static"), ORDER), ("static", list(range(8)))):
            self.assertEqual(self.succeed(1, first, initial), [expected])

    def test_a_job_that_the_daemon_knows_starts_in_static_order_by_a_word(self):
        daemon = self.start_daemon()

        def start(rank, run, initial):
            with ranks.connect(self.directory, rank, 2, endpoint=daemon.endpoint, job="known", run_id=run,
                               all_gather=ranks.store_all_gather(self.directory, rank, 2, name=run),
                               initial_placement=initial, require_daemon=True) as client:
                experts = ranks.Experts(client, ranks.numpy_zeros)
                first = client.placement.physical_to_logical_map.tolist()
                version = client.placement.version
                ranks.train(client, experts, 400, enough=1)
                return first, version, client.placement.version

        static = [list(range(8))] * 2
        (first, version, moved), _ = self.succeed(2, start, "run-1", None)
        self.assertEqual((first, version), (static, 0))
        self.assertGreater(moved, 0)
        (first, version, _), _ = self.succeed(2, start, "run-2", None)
        self.assertNotEqual(first, static)
        (first, version, _), _ = self.succeed(2, start, "run-3", "static")
        self.assertEqual(first, static)
        self.assertGreater(version, moved)


if __name__ == "__main__":
    unittest.main()
