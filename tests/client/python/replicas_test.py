"""Experts in several slots: sums in a fixed order, weights given on, and the norm counted once, by real clients."""

import json
import unittest

import numpy as np
import torch

import eplb
import ranks

# On three GPUs 4, 3 and 3 slots. Expert 0 has three replicas, the primary the last of them; expert 2 two on one GPU.
SLOTS = [[0, 1, 2, 2, 0, 3, 4, 5, 0, 1], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]]
REPLICAS = [[[8, 0, 4], [1, 9], [2, 3], [5], [6], [7]], [[0, 6], [7, 1], [2, 8], [3, 9], [4], [5]]]  # primaries first


def gradient(slot, layer=0):
    return torch.tensor([[0.1 * (slot + 1), -1.0 / (slot + 3)], [float(slot), 1e-3]], dtype=torch.float32) * (layer + 1)


def write_placement(directory, num_gpus):
    padded = [[each + [-1] * (3 - len(each)) for each in layer] for layer in REPLICAS]
    file = directory / "placement.json"
    file.write_text(json.dumps({"format": "eplb.placement.v1", "num_layers": 2, "num_logical_experts": 6, "num_slots": 10,
                                "num_gpus": num_gpus, "num_nodes": 1, "num_groups": 1,
                                "slots_per_gpu": {1: [10], 2: [5, 5], 3: [4, 3, 3]}[num_gpus],
                                "physical_to_logical_map": SLOTS,
                                "logical_to_physical_map": padded,
                                "logical_replica_count": [[len(each) for each in layer] for layer in REPLICAS]}))
    return file


def connected(rank, directory, world, part, state="with_primary", *arguments):
    """part: (client, rows, *arguments) -> the result; rows: layer -> the gradients of this rank's slots."""
    with ranks.connect(directory, rank, world, num_experts=6, num_slots=10, state_placement=state,
                       initial_placement=directory / "placement.json") as client:
        memory = torch.zeros(client.placement.num_local_slots, 16)
        client.register(memory, name="w", layer=0)
        client.register(memory.clone(), name="v", layer=1)
        client.finish_registration()
        first = client.placement.first_local_slot
        rows = {layer: torch.stack([gradient(first + slot, layer) for slot in range(len(memory))]) for layer in range(2)}
        return part(client, rows, *arguments)


def reduced(client, rows):
    client.reduce_gradients(rows)
    return rows[0].numpy()


def reduced_twice(client, rows):
    """Lists of two tensors, of numpy and torch, one of them strided."""
    parts = {layer: [tensor[:, 0].clone().numpy(), torch.cat([tensor, tensor], 2)[:, 1, :2]] for layer, tensor in rows.items()}
    client.reduce_gradients({1: parts[1]})
    client.reduce_gradients({0: parts[0]})
    return np.stack([np.asarray(part) for part in parts[0]], axis=1)


def broadcast(client, rows):
    weights = torch.nn.Parameter(rows[0].bfloat16())
    bytes_ = rows[0].to(torch.uint8)
    client.broadcast_weights({0: [weights, bytes_]})
    return weights.detach().float().numpy(), bytes_.numpy(), weights.is_leaf


def norm(client, rows):
    client.reduce_gradients(rows)
    return client.gradient_norm(rows, dense_squares=2.0), client.expert_squares(rows), client.expert_squares({1: rows[1]})


def refusals(client, rows):
    """Messages of mistakes; nothing is carried."""
    short = {0: rows[0][1:]}
    said = []
    for call in (lambda: client.reduce_gradients(rows[0]), lambda: client.reduce_gradients({0: None}),
                 lambda: client.reduce_gradients({0: rows[0].long()}), lambda: client.broadcast_weights(short),
                 lambda: client.expert_squares({0: rows[0].transpose(0, 1)}), lambda: client.gradient_norm({2: rows[0]}),
                 lambda: client.reduce_gradients({"a": rows[0]})):
        try:
            call()
        except eplb.InvalidArgument as error:
            said.append(str(error))
    return said


def too_early(rank, directory, world):
    with ranks.connect(directory, rank, world, num_slots=12) as client:
        client.reduce_gradients({0: torch.zeros(12, 2)})


class ReplicasTest(ranks.RankTest):
    def job(self, world, part, *arguments, run="succeed"):
        directory = self.directory / f"{world} {part.__name__} {len(list(self.directory.iterdir()))}"
        directory.mkdir()
        write_placement(directory, world)
        return getattr(self, run)(world, connected, directory, world, part, *arguments)

    def sums(self, layer=0):
        """Sum of each expert: the primary's gradient plus the others', in their order."""
        return [sum((gradient(slot, layer) for slot in slots[1:]), gradient(slots[0], layer)) for slots in REPLICAS[layer]]

    def test_gradients_are_summed_at_primaries_in_the_order_of_replicas(self):
        for world in (1, 2, 3):
            for part in (reduced, reduced_twice):
                rows = np.concatenate(self.job(world, part))
                for slot, expert in enumerate(SLOTS[0]):
                    value = self.sums()[expert] if slot == REPLICAS[0][expert][0] else gradient(slot)
                    self.assertEqual(rows[slot].tolist(), value.tolist(), (world, slot))  # to the bit

    def test_weights_of_primaries_are_given_on(self):
        found = self.job(3, broadcast)
        for kind, cast in ((0, torch.Tensor.bfloat16), (1, lambda tensor: tensor.to(torch.uint8))):
            rows = np.concatenate([each[kind] for each in found])
            for slot, expert in enumerate(SLOTS[0]):
                self.assertEqual(rows[slot].tolist(), cast(gradient(REPLICAS[0][expert][0])).tolist())
        self.assertTrue(all(is_leaf for _, _, is_leaf in found))

    def test_an_expert_counts_once_in_the_norm_whatever_the_ranks(self):
        squares = np.array([[float(total.double().pow(2).sum()) for total in self.sums(layer)] for layer in range(2)])
        found = [each for world in (1, 2, 3) for each in self.job(world, norm)]
        for value, both, second in found:
            np.testing.assert_allclose(both, squares, rtol=1e-12)
            self.assertEqual(both.tolist(), found[0][1].tolist())  # to the bit
            self.assertEqual(second.tolist(), [[0.0] * 6, both[1].tolist()])
            self.assertEqual(value, sum(both.flatten().tolist(), 2.0) ** 0.5)

    def test_mistakes_are_named_before_anything_is_carried(self):
        for said in self.job(2, refusals):
            self.assertEqual(len(said), 7, said)
            for text, pattern in zip(said, (
                    "reduce_gradients: Tensor, expected a dict: layer -> tensor",
                    'tensor "reduce_gradients of layer 0, tensor 0": is a NoneType, expected a numpy array or a torch tensor',
                    'tensor "reduce_gradients of layer 0, tensor 0": is int64, expected float32, float64, bfloat16, float16',
                    'tensor "broadcast_weights of layer 0, tensor 0": has shape .*must be the 5 local slots',
                    'tensor "expert_squares of layer 0, tensor 0": has shape .*must be the 5 local slots',
                    'tensor "expert_squares of layer 2, tensor 0": .*layer 2',
                    "layer: 'a', expected an integer")):
                self.assertRegex(text, pattern)

    def test_registration_comes_first(self):
        result, = self.run_ranks(1, too_early, self.directory, 1)
        self.assert_raised(result, "FailedPrecondition", "ReduceGradients was called before RegisterExperts")


if __name__ == "__main__":
    unittest.main()
