"""Experts that are DTensors: which of them a rank holds, what is refused, and EPLB's order of ranks."""

import contextlib
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import eplb
from eplb import _rows
from eplb.torch import groups, layers, pieces, shards

WORLD = 4


@contextlib.contextmanager
def as_rank(rank, world=WORLD):
    """One rank of a job of which no other exists: collectives do nothing."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def stack(placements, shape=(8, 3, 2), sizes=(2, 2)):
    """A DTensor on a mesh (efsdp, ep)."""
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("efsdp", "ep")[-len(sizes):])
    local, _ = compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)
    return DTensor.from_local(torch.zeros(local), mesh, placements, run_check=False, shape=torch.Size(shape),
                              stride=torch.empty(shape).stride())


STRIDED = (_StridedShard(0, split_factor=2), Shard(0))  # FSDP2 over expert parallelism places a stack so


class ShardTest(unittest.TestCase):
    def test_part_of_each_rank(self):
        for placements, expected, rows in ((STRIDED, [0, 2, 1, 3], 2), ((Shard(0), Shard(0)), [0, 1, 2, 3], 2),
                                           ((Replicate(), Shard(0)), [0, 1, 0, 1], 4)):
            for rank, place in enumerate(expected):
                with self.subTest(placements=placements, rank=rank), as_rank(rank):
                    tensor = stack(placements)
                    found = shards.shard_of("w", tensor)
                    self.assertEqual((found.place, found.parts * rows, shards.rows_of(tensor)), (place, 8, rows))
                    held = pieces.ExpertTensor("w", 0, "weight", [pieces.Piece(nn.Parameter(tensor))], rows)
                    self.assertEqual((held.rows.data_ptr(), len(held.rows)), (tensor.to_local().data_ptr(), rows))
                    self.assertEqual(_rows.rows_of(tensor, "w", rows).num_rows, rows)
        self.assertIsNone(shards.shard_of("w", torch.zeros(2)))

    def test_what_cuts_experts_is_named(self):
        whole = r"is a DTensor of \[8, 3, 2\] placed as .*: only a stack \[experts, \.\.\] that is sharded by its first dimension"
        for placements, shape, words in (((Shard(0), Shard(1)), (8, 3, 2), whole), ((Shard(1), Shard(0)), (8, 3, 2), whole),
                                         ((Partial(), Shard(0)), (8, 3, 2), whole),
                                         ((Shard(0), Shard(0)), (6, 3, 2), "this one holds rows .*: shards must be equal"),
                                         (STRIDED, (6, 3, 2), "shards must be equal")):
            for rank in range(WORLD):
                with self.subTest(placements=placements, shape=shape, rank=rank), as_rank(rank), \
                        self.assertRaisesRegex(eplb.InvalidArgument, words):
                    shards.shard_of("w", stack(placements, shape))

    def find(self, shard, copies=2, experts=nn.ParameterList, shapes=((8, 4, 6), (8, 6, 4))):
        """Finds the layer of a model whose experts are sharded by expert parallelism and, through `shard`, by FSDP2."""
        mesh = init_device_mesh("cpu", (copies, WORLD // copies), mesh_dim_names=("efsdp", "ep"))
        model = nn.Module()
        model.moe = nn.Module()
        model.moe.gate, model.moe.experts = nn.Linear(6, 8), nn.Module()
        for number, shape in enumerate(shapes):
            model.moe.experts.register_parameter(f"w{'ab'[number]}", nn.Parameter(
                distribute_tensor(torch.zeros(shape), mesh["ep"], [Shard(0)])))
        shard(model, mesh)
        return layers.find_layers([model], "*.experts", "gate")[0]

    def test_layers_are_counted_by_what_a_rank_holds(self):
        for rank, (place, copies) in ((1, (2, 2)), (3, (3, 1))):  # torch caches a mesh for the first rank that makes it
            with self.subTest(rank=rank, copies=copies), as_rank(rank):
                layer = self.find(lambda model, mesh: fully_shard(model.moe.experts, mesh=mesh["efsdp"]), copies)
                self.assertEqual((layer.num_local_slots, layer.shard.place, layer.shard.parts), (2, place, 4))
        with as_rank(3):
            layer = self.find(lambda model, mesh: None)
            self.assertEqual((layer.num_local_slots, layer.shard.place, layer.shard.parts), (4, 1, 2))

    def test_layers_that_cannot_move_are_named(self):
        def by_columns(model, mesh):
            fully_shard(model.moe.experts, mesh=mesh["efsdp"], shard_placement_fn=lambda parameter: Shard(1))

        def one_alone(model, mesh):
            model.moe.experts.wb = nn.Parameter(distribute_tensor(torch.zeros(8, 6, 4), mesh["ep"], [Replicate()]))

        def modules(model, mesh):
            model.moe.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
            for expert in model.moe.experts:
                fully_shard(expert, mesh=mesh["efsdp"])

        for change, words in ((by_columns, r"moe.experts.wa.*placed as S\(1\)"), (modules, "moe.experts.0.(bias|weight).*is a DTensor"),
                              (one_alone, "moe.experts has wa in part 1 of 2, wb in part 0 of 1, expected the same part of each")):
            with self.subTest(words=words), as_rank(1), self.assertRaisesRegex(eplb.InvalidArgument, words):
                self.find(change)


def place(ep, **named):
    return {"ep": list(ep), "edp": None, "pp": [0, 1], "etp": [0, 1], "first": 0, "is_sharded": False, **named}


def part(number, parts, **named):
    return place((number, parts), is_sharded=True, **named)


class OrderTest(unittest.TestCase):
    def test_ranks_and_their_experts(self):
        plain = [place((0, 2)), place((1, 2)), place((0, 2), first=2), place((1, 2), first=2)]
        strided = [place((0, 2)), place((0, 2), first=1), place((1, 2)), place((1, 2), first=1)]
        stages = [part(number, 2, pp=[stage, 2]) for stage in (0, 1) for number in (1, 0)]
        for places, expected, beside in (
                (plain, [0, 1, 2, 3], [[0, 1], [0, 1], [2, 3], [2, 3]]), (strided, [0, 2, 1, 3], [[0, 2], [1, 3], [0, 2], [1, 3]]),
                ([part(number, 4) for number in (0, 2, 1, 3)], [0, 2, 1, 3], [[0, 2, 1, 3]] * 4),
                ([part(number, 2) for number in (1, 0, 0, 1)], [1, 0, 2, 3], [[1, 0], [1, 0], [2, 3], [2, 3]]),
                (stages, [1, 0, 3, 2], [[1, 0], [1, 0], [3, 2], [3, 2]])):
            with self.subTest(places=places):
                found = groups.coordinates_of(places)
                self.assertEqual([each.rank for each in found], expected)
                self.assertEqual([groups.ranks_beside(found, rank) for rank in range(4)], beside)

    def test_parts_that_are_not_all_experts_are_named(self):
        with self.assertRaisesRegex(eplb.FailedPrecondition, r"hold the parts \[0, 1, 1, 1\] of 2: expected each part on as many"):
            groups.coordinates_of([part(number, 2) for number in (0, 1, 1, 1)])
        with self.assertRaisesRegex(eplb.FailedPrecondition, "8 expert-model x 0 expert-data x 1 pipeline = 0 ranks, the job has 4"):
            groups.coordinates_of([part(number, 8) for number in range(4)])

    def test_order_comes_from_the_shards_rather_than_from_the_group(self):
        """Ranks (efsdp, ep): rank 2 is the first of its EP group, and holds part 1."""
        for rank, outside, inside in ((2, [1, 4], [1, 4]), (3, [3, 4], [3, 4])):
            with self.subTest(rank=rank), as_rank(rank):
                mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("efsdp", "ep"))
                over_both = shards.shard_of("w", stack(STRIDED))
                self.assertEqual(groups.place_in(ep_group=mesh["ep"], shard=over_both)["ep"], inside)
                # FSDP2 over plain local stacks: the mesh of their DTensors has no EP ranks.
                local = DTensor.from_local(torch.zeros(2, 3), mesh["efsdp"], [Shard(0)], run_check=False)
                self.assertEqual(groups.place_in(ep_group=mesh["ep"], shard=shards.shard_of("w", local))["ep"], outside)


if __name__ == "__main__":
    unittest.main()
