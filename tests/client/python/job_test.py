"""Jobs of several processes with a real daemon, which really switch and move the bytes of numpy and torch tensors."""

import unittest

import numpy as np
import torch
import torch.distributed as dist

import eplb
import ranks

STEPS = 3000


def numpy_job(rank, world, directory, endpoint):
    with ranks.connect(directory, rank, world, endpoint=endpoint, job="numpy") as client:
        experts = ranks.Experts(client, ranks.numpy_zeros)
        client.finish_registration()
        switches = ranks.train(client, experts, STEPS)
        received = sum(switch[2] for switch in switches)
        return switches, received, client.placement.digest, client.transport, client.stats


def torch_job(rank, world, directory, endpoint):
    dist.init_process_group("gloo", f"file://{directory}/torch", rank=rank, world_size=world)
    with eplb.Client.connect(eplb.torch_all_gather(), endpoint=endpoint, job="torch", num_layers=2, num_experts=8,
                             num_slots=12, vote_every=2, report_every=4) as client:
        assert (client.options.rank, client.options.world_size, client.options.num_gpus) == (rank, world, world)
        experts = ranks.Experts(client, ranks.torch_zeros)
        rebuilt = []
        for layer in range(2):
            client.register_derived(lambda layer, slots: rebuilt.append((layer, slots.tolist())), name=f"layers.{layer}.scale",
                                    layer=layer)
        switches = ranks.train(client, experts, STEPS, enough=1, counts=torch.from_numpy)  # the first boundary registers
        tables = client.device_tables
        counts = np.asarray(tables.logical_replica_count)
        assert (counts == client.placement.logical_replica_count).all()
        assert (torch.as_tensor(np.array(tables.physical_to_logical_map)).numpy()
                == client.placement.physical_to_logical_map).all()
        return switches, rebuilt, sum(received for _, _, received in switches)


def jobs_of_groups(rank, world, directory):
    """Two jobs beside each other, one after the other in each of two groups."""
    dist.init_process_group("gloo", f"file://{directory}/torch", rank=rank, world_size=world)
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    found = []
    for experts in (4, 8):
        all_gather = eplb.torch_all_gather(groups[rank % 2])
        with eplb.Client.connect(all_gather, num_layers=1 + rank % 2, num_experts=experts) as client:
            found.append((client.options.rank, client.placement.num_layers, client.placement.num_local_slots))
    try:
        eplb.torch_all_gather(groups[1 - rank % 2])
    except eplb.FailedPrecondition as error:
        return found, str(error)


def daemon_meeting(rank, world, directory, endpoint):
    with eplb.Client.connect(endpoint=endpoint, job="meeting", run_id="one", rank=rank, world_size=world, num_layers=2, num_experts=8,
                             vote_every=2, report_every=4) as client:
        experts = ranks.Experts(client, ranks.numpy_zeros)
        return len(ranks.train(client, experts, STEPS, enough=1, counts=np.ndarray.tolist))


def probed(rank, world, directory, forget):
    with ranks.connect(directory, rank, world) as client:
        experts = ranks.Experts(client, ranks.torch_zeros)
        forgotten = torch.tensor([[1.0 * expert for expert in client.placement.local_experts(layer)] for layer in range(2)])

        def probe(layer, slot):
            own = experts.tensors[3 * layer][2][slot]
            return own * 2 if not forget else own * 2 + forgotten[layer, slot]

        client.check_experts(probe)
        experts.verify()
        return client.placement.version


def failing_probe(rank, world, directory):
    with ranks.connect(directory, rank, world) as client:
        ranks.Experts(client, ranks.numpy_zeros)

        def probe(layer, slot):
            if rank == 1:
                raise KeyError(f"no such weight in layer {layer}")
            return slot

        client.check_experts(probe)


def failing_rebuild(rank, world, directory):
    with ranks.connect(directory, rank, world) as client:
        ranks.Experts(client, ranks.numpy_zeros)

        def rebuild(layer, slots):
            raise ZeroDivisionError("no scale")

        client.register_derived(rebuild, name="layers.0.scale", layer=0)
        client.register_derived(lambda layer, slots: None, name="layers.1.scale", layer=1)
        try:
            client.check_experts(lambda layer, slot: slot)
        except ZeroDivisionError as error:
            cause = error.__cause__
        try:
            client.step_boundary(0)
        except eplb.DataLoss as error:
            return type(cause).__name__, str(cause), str(error)


class JobTest(ranks.RankTest):
    def test_numpy_tensors_move_between_four_processes(self):
        daemon = self.start_daemon()
        results = self.succeed(4, numpy_job, 4, self.directory, daemon.endpoint)
        steps = [[switch[:2] for switch in result[0]] for result in results]
        self.assertEqual(len(steps[0]), 2, "no two switches within the steps")
        self.assertEqual(steps, steps[:1] * 4)
        # The second switch may go back to the first placement: rows moved all the same.
        self.assertGreater(sum(received for _, received, _, _, _ in results), 0)
        self.assertEqual(len({digest for _, _, digest, _, _ in results}), 1)
        self.assertEqual({transport for _, _, _, transport, _ in results}, {"host"})
        for *_, stats in results:
            self.assertTrue(stats.connected)
            self.assertEqual(stats.commits, 2)
            self.assertGreater(stats.reports_sent, 0)

    def test_torch_tensors_move_with_replicas_and_derived_ones_are_rebuilt(self):
        daemon = self.start_daemon()
        results = self.succeed(2, torch_job, 2, self.directory, daemon.endpoint)
        self.assertEqual(len(results[0][0]), 1)
        self.assertGreater(sum(result[2] for result in results), 0)
        rebuilt = sum((result[1] for result in results), [])
        self.assertTrue(rebuilt)
        for _, slots in rebuilt:
            self.assertEqual(slots, sorted(set(slots)))

    def test_ranks_meet_through_the_daemon(self):
        daemon = self.start_daemon()
        self.assertEqual(self.succeed(2, daemon_meeting, 2, self.directory, daemon.endpoint), [1, 1])

    def test_groups_of_torch_meet_by_themselves(self):
        for rank, (found, refused) in enumerate(self.succeed(4, jobs_of_groups, 4, self.directory)):
            self.assertEqual(found, [(rank // 2, 1 + rank % 2, 2), (rank // 2, 1 + rank % 2, 4)])
            self.assertEqual(refused, f"rank {rank} is not of the group")

    def test_a_probe_passes_when_all_is_registered(self):
        self.assertEqual(self.succeed(2, probed, 2, self.directory, False), [0, 0])

    def test_a_probe_finds_a_forgotten_tensor(self):
        for result in self.run_ranks(2, probed, 2, self.directory, True):
            self.assert_raised(result, "InvalidArgument", "layer 0", "computes with a tensor that is neither registered")

    def test_what_a_probe_raises_comes_out(self):
        others, own = self.run_ranks(2, failing_probe, 2, self.directory)
        self.assert_raised(own, "KeyError", "no such weight in layer 0")
        self.assert_raised(others, "FailedPrecondition", "rank 1", "no such weight in layer 0")

    def test_what_a_rebuild_raises_comes_out_and_ends_the_run(self):
        for kind, cause, later in self.succeed(2, failing_rebuild, 2, self.directory):
            self.assertEqual(kind, "DataLoss")
            self.assertIn("no scale", cause)
            self.assertIn("no scale", later)


if __name__ == "__main__":
    unittest.main()
