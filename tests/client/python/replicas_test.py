"""Experts in several slots: sums in a fixed order, weights given on, and the norm counted once."""

import types
import unittest

import numpy as np
import torch
import torch.distributed as dist

import eplb
import ranks
from eplb.replicas import Replicas, slot_bounds

# GPUs of 4, 3 and 3 slots. Expert 0 has three replicas, the primary the last of them; expert 2 two on one GPU.
SLOTS = [[0, 1, 2, 2, 0, 3, 4, 5, 0, 1], [0, 1, 2, 3, 4, 5, -1, -1, -1, -1]]
PRIMARY = {(0, 0): 8}


def placed(num_gpus, version=0):
    slots = np.array(SLOTS, np.int32)
    replicas = np.full((2, 6, 5), -1, np.int32)
    for layer in range(2):
        for expert in range(6):
            found = np.flatnonzero(slots[layer] == expert).tolist()
            primary = PRIMARY.get((layer, expert), found[0])
            found = [primary] + [slot for slot in found if slot != primary]
            replicas[layer, expert, :len(found)] = found
    view = types.SimpleNamespace(num_layers=2, num_experts=6, num_slots=10, num_gpus=num_gpus, version=version,
                                 logical_to_physical_map=replicas, logical_replica_count=(replicas >= 0).sum(2))
    return types.SimpleNamespace(placement=view)


def gradient(slot):
    return torch.tensor([[0.1 * (slot + 1), -1.0 / (slot + 3)], [float(slot), 1e-3]], dtype=torch.float32)


def local(rank, world):
    bounds = slot_bounds(10, world)
    return range(bounds[rank], bounds[rank + 1])


def join(rank, world, directory):
    dist.init_process_group("gloo", f"file://{directory}/torch", rank=rank, world_size=world)


def reduced(rank, world, directory, to_all):
    join(rank, world, directory)
    rows = torch.stack([gradient(slot) for slot in local(rank, world)])
    Replicas(placed(world)).reduce_gradients(0, rows, to_all=to_all)
    return rows.numpy()


def broadcast(rank, world, directory):
    join(rank, world, directory)
    rows = torch.stack([gradient(slot) for slot in local(rank, world)]).bfloat16()
    Replicas(placed(world)).broadcast_weights(0, rows)
    return rows.float().numpy()


def norm(rank, world, directory):
    join(rank, world, directory)
    replicas = Replicas(placed(world))
    rows = {layer: [torch.stack([gradient(slot) * (layer + 1) for slot in local(rank, world)])] for layer in range(2)}
    for layer in range(2):
        replicas.reduce_gradients(layer, rows[layer][0])
    return replicas.gradient_norm(rows, dense_squares=2.0), replicas.expert_squares(rows).numpy()


def with_a_client(rank, world, directory):
    """Real replicas of a real client, through a switch of placements."""
    join(rank, world, directory)
    with eplb.Client.connect(eplb.torch_all_gather(), num_layers=2, num_experts=8, num_slots=12) as client:
        weights = torch.zeros(6, 3)
        replicas = Replicas(client)
        experts = client.placement.local_experts(0)
        first = client.placement.first_local_slot
        for slot, expert in enumerate(experts):
            primary = client.placement.replicas(0, int(expert))[0] == first + slot
            weights[slot] = 10 + expert if primary else -1
        replicas.broadcast_weights(0, weights)
        return weights[:, 0].tolist() == [10 + expert for expert in experts]


def wrong_group(rank, world, directory):
    join(rank, world, directory)
    group = dist.new_group([0])
    if rank == 0:
        Replicas(placed(2), group)


def data_parallel_groups(rank, world, directory):
    """Two EP groups of two GPUs, and the groups across them instead of the EP groups. returns: what it says; 0: nothing."""
    join(rank, world, directory)
    groups = [dist.new_group([ep_group, ep_group + 2]) for ep_group in range(2)]
    client = placed(2)
    client.placement.first_local_slot = 5 * (rank % 2)
    try:
        Replicas(client, groups[rank % 2])
    except eplb.InvalidArgument as error:
        return str(error)
    return ""


def of_parameters(rank, world, directory):
    join(rank, world, directory)
    replicas = Replicas(placed(world))
    weights = torch.nn.Parameter(torch.stack([gradient(slot) for slot in local(rank, world)]))
    replicas.broadcast_weights(0, weights)
    given = weights.detach().clone()
    replicas.reduce_gradients(0, weights, to_all=True)
    squares = replicas.expert_squares({0: [weights]})
    return given.numpy(), weights.is_leaf and not squares.requires_grad


def as_the_documents_say(rank, world, directory, of_layer):
    """of_layer: makes of a layer's tensor what is given."""
    join(rank, world, directory)
    replicas = eplb.replicas.Replicas(placed(world))
    gradients = {layer: torch.stack([gradient(slot) * (layer + 1) for slot in local(rank, world)]) for layer in range(2)}
    given = {layer: of_layer(tensor) for layer, tensor in gradients.items()}
    for layer in range(2):
        replicas.reduce_gradients(layer, given[layer])
    norm = replicas.gradient_norm(given, 2.0)
    for layer in range(2):
        replicas.broadcast_weights(layer, given[layer])
    return norm, [tensor.tolist() for tensor in gradients.values()]


def other_rows(rank, world, directory, calls):
    """Every rank makes the call that is its own; what they say."""
    join(rank, world, directory)
    rows = torch.ones(len(local(rank, world)), 2)
    try:
        calls[rank](Replicas(placed(world)), rows)
    except eplb.InvalidArgument as error:
        return str(error)
    return ""


def layers_out_of_range(rank, world, directory):
    """On the last rank alone: a collective would wait for the others."""
    join(rank, world, directory)
    replicas = Replicas(placed(world))
    rows = torch.zeros(len(local(rank, world)), 2)
    said = []
    for layer in (-1, 2) if rank == world - 1 else ():
        for call in (lambda: replicas.reduce_gradients(layer, rows), lambda: replicas.broadcast_weights(layer, rows),
                     lambda: replicas.expert_squares({0: [rows], layer: [rows]}),
                     lambda: replicas.gradient_norm({layer: [rows]})):
            try:
                call()
            except eplb.InvalidArgument as error:
                said.append(str(error))
    return said


class ReplicasTest(ranks.RankTest):
    def expected(self, layer=0, factor=1):
        """Of each expert: the primary's gradient plus the others', in their order."""
        sums = {}
        for expert, slots in enumerate(placed(1).placement.logical_to_physical_map[layer].tolist()):
            total, *others = [gradient(slot) * factor for slot in slots if slot >= 0]
            for other in others:
                total = total + other
            sums[expert] = total
        return sums

    def test_gradients_are_summed_at_primaries_in_the_order_of_replicas(self):
        sums = self.expected()
        for world in (1, 2, 3):
            rows = np.concatenate(self.succeed(world, reduced, world, self.directory / f"{world}", False)
                                  if (self.directory / f"{world}").mkdir() is None else [])
            for slot, expert in enumerate(SLOTS[0]):
                primary = placed(1).placement.logical_to_physical_map[0, expert, 0]
                value = sums[expert] if slot == primary else gradient(slot)
                self.assertEqual(rows[slot].tolist(), value.tolist(), (world, slot))  # to the bit

    def test_all_replicas_get_the_sum(self):
        sums = self.expected()
        rows = np.concatenate(self.succeed(3, reduced, 3, self.directory, True))
        for slot, expert in enumerate(SLOTS[0]):
            self.assertEqual(rows[slot].tolist(), sums[expert].tolist())

    def test_weights_of_primaries_are_given_on(self):
        rows = np.concatenate(self.succeed(3, broadcast, 3, self.directory))
        for slot, expert in enumerate(SLOTS[0]):
            primary = int(placed(1).placement.logical_to_physical_map[0, expert, 0])
            self.assertEqual(rows[slot].tolist(), gradient(primary).bfloat16().float().tolist())

    def test_an_expert_counts_once_in_the_norm_whatever_the_ranks(self):
        squares = [[float(total.double().pow(2).sum()) for total in self.expected(layer, layer + 1).values()]
                   for layer in range(2)]
        norms = set()
        for world in (1, 2, 3):
            (self.directory / f"{world}").mkdir()
            for value, found in self.succeed(world, norm, world, self.directory / f"{world}"):
                norms.add(value)
                self.assertEqual(found.tolist(), squares)
        self.assertEqual(norms, {sum(sum(squares, []), 2.0) ** 0.5})

    def test_replicas_of_a_client(self):
        self.assertEqual(self.succeed(2, with_a_client, 2, self.directory), [True, True])

    def test_a_group_of_another_size_is_refused(self):
        result, _ = self.run_ranks(2, wrong_group, 2, self.directory)
        self.assert_raised(result, "InvalidArgument", "the group has 1 ranks, an EP group has 2 GPUs")

    def test_a_group_that_is_not_the_ep_group_is_refused_where_the_slots_differ(self):
        said = self.succeed(4, data_parallel_groups, 4, self.directory)
        why = ("rank {} of the group would hold the slots from {} on, this client holds those from {} on: the group is not its "
               "EP group in the order of GPUs")
        self.assertEqual(said, ["", why.format(0, 0, 5), why.format(1, 5, 0), ""])

    def test_parameters_of_a_module(self):
        found = self.succeed(3, of_parameters, 3, self.directory)
        rows = np.concatenate([given for given, _ in found])
        for slot, expert in enumerate(SLOTS[0]):
            primary = int(placed(1).placement.logical_to_physical_map[0, expert, 0])
            self.assertEqual(rows[slot].tolist(), gradient(primary).tolist())
        self.assertEqual([plain for _, plain in found], [True] * 3)

    def test_layers_out_of_range_are_refused_before_any_collective(self):
        found = self.succeed(2, layers_out_of_range, 2, self.directory)
        self.assertEqual(found, [[], [f"layer {layer}: the placement has layers 0..1" for layer in (-1, 2) for _ in range(4)]])

    def test_a_layer_is_a_tensor_or_a_list_of_tensors(self):
        as_tensor, as_list = [
            self.succeed(2, as_the_documents_say, 2, self.inside(name), of_layer)
            for name, of_layer in (("tensor", lambda tensor: tensor), ("list", lambda tensor: [tensor]))]
        self.assertEqual(as_tensor, as_list)
        squares = [float(total.double().pow(2).sum()) for layer in range(2) for total in self.expected(layer, layer + 1).values()]
        self.assertEqual([norm for norm, _ in as_tensor], [sum(squares, 2.0) ** 0.5] * 2)

    def test_ranks_that_differ_in_rows_are_stopped_before_they_carry_any(self):
        def reduce(replicas, rows):
            replicas.reduce_gradients(0, rows)

        for name, other, said in (
                ("type", lambda replicas, rows: replicas.reduce_gradients(0, rows.half()), "reduce_gradients of layer 0, float16 [2]"),
                ("shape", lambda replicas, rows: replicas.reduce_gradients(0, rows[:, :1]), "reduce_gradients of layer 0, float32 [1]"),
                ("call", lambda replicas, rows: replicas.broadcast_weights(0, rows), "broadcast_weights of layer 0, float32 [2]"),
                ("all", lambda replicas, rows: replicas.reduce_gradients(0, rows, to_all=True), "reduce_gradients to all of layer 0")):
            found = self.succeed(3, other_rows, 3, self.inside(name), [reduce, reduce, other])
            self.assertEqual(found, found[:1] * 3)
            self.assertIn("rank 0 of the group came with reduce_gradients of layer 0, float32 [2] a slot, rank 2 with " + said, found[0])

    def test_what_is_no_tensor_is_named(self):
        found = self.succeed(1, other_rows, 1, self.directory, [lambda replicas, rows: replicas.reduce_gradients(0, None)])
        self.assertEqual(found, ["layer 0: rows are NoneType, expected a tensor [local slots, ..]; where experts have no gradient, "
                                 "give zeros"])

    def inside(self, name):
        (self.directory / name).mkdir()
        return self.directory / name

    def test_bounds(self):
        self.assertEqual(slot_bounds(10, 3), [0, 4, 7, 10])
        self.assertEqual(slot_bounds(8, 2), [0, 4, 8])


if __name__ == "__main__":
    unittest.main()
