"""Tensors that register and record accept and refuse, and the views of a client of one process."""

import gc
import os
import subprocess
import sys
import unittest

import numpy as np
import torch

import eplb
from eplb import views
from eplb._arguments import digest_of


def lone_client(**options):
    return eplb.Client.connect(**{**dict(num_layers=1, num_experts=4, vote_every=2), **options})


class RegisterTest(unittest.TestCase):
    def setUp(self):
        self.client = lone_client()
        self.addCleanup(self.client.close)

    def rows(self, tensor):
        self.client.register(tensor, name=f"tensor {len(self.client.registered.entries)}", layer=0)
        rows = self.client.registered.entries[-1].rows
        return rows.num_rows, rows.row_bytes, rows.row_stride, rows.device

    def refused(self, pattern, tensor, **how):
        with self.assertRaisesRegex(eplb.InvalidArgument, f"^tensor \"w\": .*{pattern}"):
            self.client.register(tensor, **{**dict(name="w", layer=0), **how})

    def test_rows_of_numpy_and_torch(self):
        for make in (lambda *shape: np.zeros(shape, np.float32), lambda *shape: torch.zeros(shape)):
            self.assertEqual(self.rows(make(4, 3, 5)), (4, 60, 60, "cpu"))
            self.assertEqual(self.rows(make(8, 3)[::2]), (4, 12, 24, "cpu"))
            self.assertEqual(self.rows(make(4, 9)[:, 3:6]), (4, 12, 36, "cpu"))
            self.assertEqual(self.rows(make(4, 3, 5).swapaxes(1, 2)), (4, 60, 60, "cpu"))  # each row is one piece all the same
            self.assertEqual(self.rows(make(4)), (4, 4, 4, "cpu"))
        self.assertEqual(self.rows(torch.zeros(4, 2, dtype=torch.bfloat16)), (4, 4, 4, "cpu"))
        self.assertEqual(self.rows(torch.nn.Parameter(torch.zeros(4, 2))), (4, 8, 8, "cpu"))
        self.assertEqual(self.rows(np.zeros(4, [("scale", "f4"), ("zero", "i1")])), (4, 5, 5, "cpu"))

    def test_views_without_contiguous_rows_are_refused(self):
        for make in (lambda *shape: np.zeros(shape, np.float32), lambda *shape: torch.zeros(shape)):
            self.refused("non-contiguous view: the bytes of a slot are not one piece", make(4, 6)[:, ::2])
            self.refused("non-contiguous view", make(6, 4).swapaxes(0, 1))
        self.refused("non-contiguous view", torch.zeros(4, 1).expand(4, 6))
        self.refused("slots in falling order", np.zeros((4, 6))[::-1])

    def test_what_is_no_tensor_of_local_slots_is_refused(self):
        self.refused("is a list", [1, 2, 3, 4])
        self.refused(r"shape \[3, 2\], its first dimension must be the 4 local slots", np.zeros((3, 2)))
        self.refused(r"shape \[\]", torch.zeros(()))
        self.refused("Python objects", np.zeros((4, 2), object))
        frozen = np.zeros((4, 2))
        frozen.flags.writeable = False
        self.refused("read-only", frozen)
        self.refused("torch.sparse_coo", torch.zeros(4, 2).to_sparse())
        self.refused("on device meta", torch.zeros(4, 2, device="meta"))
        self.refused("quantized", torch.quantize_per_tensor(torch.zeros(4, 2), 0.1, 0, torch.qint8))
        self.refused("role 'grad', expected", np.zeros((4, 2)), role="grad")

    def test_names_are_distinct(self):
        self.client.register(np.zeros((4, 2)), name="w", layer=0)
        self.refused("registered twice", np.zeros((4, 2)))
        with self.assertRaisesRegex(eplb.InvalidArgument, "tensor name '': expected text"):
            self.client.register(np.zeros((4, 2)), name="", layer=0)

    def test_the_library_finds_what_only_all_tensors_together_show(self):
        memory = np.zeros((4, 8), np.float32)
        self.client.register(memory, name="whole", layer=0)
        self.client.register(memory[:, :2], name="part", layer=0)
        with self.assertRaisesRegex(eplb.InvalidArgument, "(?s)(whole.*part|part.*whole)"):
            self.client.finish_registration()

    def test_layers_are_not_cut(self):
        self.refused("layer: 4294967296 does not fit into 32 bits", np.zeros((4, 2)), layer=1 << 32)
        self.refused("layer: 0.0, expected an integer", np.zeros((4, 2)), layer=0.0)
        with self.assertRaisesRegex(eplb.InvalidArgument, "^tensor \"w\": layer: 4294967296 does not fit"):
            self.client.register_derived(print, name="w", layer=1 << 32)
        self.client.register(np.zeros((4, 2)), name="w", layer=np.int64(0))
        self.assertEqual(type(self.client.registered.entries[0].layer), int)

    def test_registered_tensors_are_kept(self):
        self.client.register(np.ones((4, 1000)), name="w", layer=0)
        gc.collect()
        self.assertEqual(self.client.registered.entries[0].rows.tensor.sum(), 4000)


class Replicate:
    def __str__(self):
        return "Replicate()"


class Partial:
    def __str__(self):
        return "Partial(sum)"


class Shard:
    def __init__(self, dim):
        self.dim = dim

    def __str__(self):
        return f"Shard(dim={self.dim})"


class Distributed(torch.Tensor):
    """A stand-in for torch.distributed.tensor.DTensor: no storage, the shape on all ranks, a piece of this one."""

    @staticmethod
    def __new__(cls, piece, shape, *placements):
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=piece.dtype)
        self.piece, self.placements, self.device_mesh = piece, placements, object()
        return self

    def to_local(self):
        return self.piece.view_as(self.piece)

    def data_ptr(self):
        return 0

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        if function is torch.Tensor.detach:
            return arguments[0]
        return super().__torch_function__(function, types, arguments, named or {})

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        raise NotImplementedError(str(function))


class DistributedTensorTest(unittest.TestCase):
    """A client of four local slots of eight."""

    def setUp(self):
        self.client = lone_client()
        self.addCleanup(self.client.close)

    def test_a_piece_of_whole_experts_is_registered_and_watched(self):
        sharded = Distributed(torch.zeros(4, 3), (8, 3), Shard(0), Replicate())
        self.client.register(sharded, name="sharded", layer=0)
        self.client.register(Distributed(torch.zeros(4, 2), (4, 2), Replicate()), name="whole", layer=0)
        rows = self.client.registered.entries[0].rows
        self.assertEqual((rows.base, rows.row_bytes), (sharded.piece.data_ptr(), 12))
        self.assertIs(type(rows.tensor), torch.Tensor)
        self.client.finish_registration()
        self.client.step_boundary(0)
        sharded.piece = torch.zeros(4, 3)
        with self.assertRaisesRegex(eplb.InvalidArgument, "^tensor \"sharded\": lies at .*it was registered at"):
            self.client.step_boundary(1)

    def test_other_pieces_are_refused_with_the_way_out(self):
        for piece, shape, placements, words in (
                (torch.zeros(8, 3), (8, 6), [Shard(1)], r"\(Shard\(dim=1\)\), and Shard\(dim=1\) cuts experts into pieces"),
                (torch.zeros(2, 3), (8, 3), [Shard(0), Shard(0)], r"piece on this rank is \[2, 3\] of \[8, 3\], expected the"),
                (torch.zeros(4, 3), (4, 3), [Replicate(), Partial()], r"\(Replicate\(\), Partial\(sum\)\), and Partial")):
            with self.assertRaisesRegex(eplb.InvalidArgument, "^tensor \"w\": DTensor: register .to_local\\(\\).*" + words):
                self.client.register(Distributed(piece, shape, *placements), name="w", layer=0)
        with self.assertRaisesRegex(eplb.InvalidArgument, "list of DTensors: register .to_local"):
            self.client.register([Distributed(torch.zeros(3), (6,), Shard(0))] * 4, name="w", layer=0)

    def test_a_tensor_without_storage_is_still_that(self):
        freed = torch.zeros(4, 3)
        freed.storage().resize_(0)
        with self.assertRaisesRegex(eplb.InvalidArgument, "^tensor \"w\": has no memory: it was freed"):
            self.client.register(freed, name="w", layer=0)

    def test_check_looks_at_the_piece(self):
        from eplb import check

        module = torch.nn.Module()
        self.client._placement.num_experts = self.client._placement.num_slots = 8
        experts = Distributed(torch.zeros(4, 3, 2), (8, 3, 2), Shard(0))
        # Attributes of a module, which would not take a stand-in for a parameter.
        gate = Distributed(torch.zeros(4, 3), (8, 3), Shard(0))
        module.named_parameters = lambda: iter([("experts", experts), ("gate", gate)])
        module.parameters = lambda: (each for _, each in module.named_parameters())
        self.assertEqual([each.name for each in check.find_unregistered(self.client, module)], ["experts"])
        self.client.register(experts, name="experts", layer=0)
        self.client.check(module)


class ListTest(unittest.TestCase):
    """One tensor for each local slot."""

    def setUp(self):
        self.client = lone_client()
        self.addCleanup(self.client.close)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(3, 2) for _ in range(4))
        self.weights = [each.weight for each in self.experts]

    def refused(self, pattern, tensors):
        before = [each.data_ptr() for each in self.weights]
        with self.assertRaisesRegex(eplb.InvalidArgument, f"^tensor \"w\": .*{pattern}"):
            self.client.register(tensors, name="w", layer=0)
        self.assertEqual([each.data_ptr() for each in self.weights], before)

    def test_parameters_become_rows_of_one_memory_and_keep_their_values(self):
        before = [each.detach().clone() for each in self.weights]
        self.client.register(self.weights, name="w", layer=0)
        rows = self.client.registered.entries[0].rows
        self.assertEqual((rows.num_rows, rows.row_bytes, rows.row_stride), (4, 24, 24))
        self.assertEqual(tuple(rows.tensor.shape), (4, 2, 3))
        for i, (weight, old) in enumerate(zip(self.weights, before)):
            self.assertEqual(weight.data_ptr(), rows.base + i * rows.row_stride)
            self.assertTrue(torch.equal(weight, old))
        optimizer = torch.optim.SGD(self.experts.parameters(), lr=1.0)
        self.experts[2](torch.ones(5, 3)).sum().backward()
        optimizer.step()
        self.assertTrue(torch.equal(rows.tensor[2], before[2] - 5))

    def test_rows_of_one_memory_are_taken_as_they_are(self):
        memory = torch.zeros(4, 10)
        self.client.register([row[2:5] for row in memory], name="apart", layer=0)
        rows = self.client.registered.entries[0].rows
        self.assertEqual((rows.base, rows.row_bytes, rows.row_stride), (memory.data_ptr() + 8, 12, 40))
        self.client.register(self.weights, name="w", layer=0)
        with lone_client() as again:
            again.register(self.weights, name="w", layer=0)
            self.assertEqual(again.registered.entries[0].rows.base, self.client.registered.entries[1].rows.base)

    def test_other_memory_of_one_expert_is_seen_and_named(self):
        for exchange in (lambda: self.experts.to(torch.float64).to(torch.float32),
                         lambda: setattr(self.weights[2], "data", self.weights[2].data.clone())):
            with lone_client() as client:
                client.register(self.weights, name="w", layer=0)
                client.step_boundary(0)
                exchange()
                with self.assertRaisesRegex(eplb.InvalidArgument, r"^tensor \"w\[[02]\]\": lies at 0x\w+ now, it was"):
                    client.step_boundary(1)

    def test_optimizer_state_in_a_dict_keeps_its_place(self):
        optimizer = torch.optim.Adam(self.experts.parameters())
        for parameter in self.experts.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        self.client.register(self.weights, name="w", layer=0)
        self.client.register([each.bias for each in self.experts], name="b", layer=0)
        for name in ("weight", "bias"):
            for key in ("exp_avg", "exp_avg_sq"):
                self.client.register([optimizer.state[getattr(each, name)][key] for each in self.experts],
                                     name=f"{name}.{key}", layer=0, role="state")
        optimizer.step()
        found = self.client.registered.entries[2].rows.tensor
        self.assertTrue(torch.equal(found[3], optimizer.state[self.weights[3]]["exp_avg"]))
        self.assertGreater(float(found[3].sum()), 0)
        self.client.check(self.experts, optimizer)

    def test_what_is_no_list_of_experts_is_refused_and_nothing_is_changed(self):
        self.refused("is a list of 3 tensors, expected one for each of the 4 local slots", self.weights[:3])
        self.refused("is a list that holds ndarray, expected one torch tensor", [np.zeros(3)] * 4)
        self.refused(r"experts of float32 \[2, 3\] and of float32 \[2, 4\], in local slot 3",
                     [*self.weights[:3], torch.zeros(2, 4)])
        self.refused(r"experts of float32 \[2, 3\] and of float64 \[2, 3\]", [*self.weights[:3], torch.zeros(2, 3).double()])
        self.refused("one tensor for two local slots", [*self.weights[:3], self.weights[0]])
        self.refused("on device meta", [*self.weights[:3], torch.zeros(2, 3, device="meta")])
        flat = torch.zeros(30)
        self.refused("in local slot 3 a view of a larger buffer", [*self.weights[:3], flat[5:11].view(2, 3)])


class OneProcessTest(unittest.TestCase):
    def setUp(self):
        self.client = lone_client(num_slots=6, num_groups=1)
        self.addCleanup(self.client.close)
        self.weight = torch.zeros(6, 2)
        self.client.register(self.weight, name="w", layer=0)

    def test_counts_are_integers_of_any_kind(self):
        for counts in ([1, 2, 3, 4], (1, 2, 3, 4), np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4], np.int32),
                       np.arange(8)[::2], torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 4], dtype=torch.int32)):
            self.client.record(0, counts)
        self.client.record(np.int64(0), np.array([1, 2, 3, 4]))
        self.client.step_boundary(np.int64(0))
        for wrong in ([1.5, 2, 3, 4], torch.zeros(4), [[1, 2, 3, 4]], ["a"], [True] * 4, [[1], [1, 2]], None,
                      torch.ones(4, dtype=torch.bfloat16)):
            self.assertRaisesRegex(eplb.InvalidArgument, r"^counts: .*expected integers \[experts\]", self.client.record, 0,
                                   wrong)
        for layer, message in ((1 << 32, "layer: 4294967296 does not fit into 32 bits"),
                               (0.0, "layer: 0.0, expected an integer")):
            self.assertRaisesRegex(eplb.InvalidArgument, message, self.client.record, layer, [1, 2, 3, 4])
        self.assertRaisesRegex(eplb.InvalidArgument, "step: 1.0, expected an integer", self.client.step_boundary, 1.0)
        self.assertRaisesRegex(eplb.InvalidArgument, "3", self.client.record, 0, [1, 2, 3])
        self.assertRaisesRegex(eplb.InvalidArgument, "layer 1", self.client.record, 1, [1, 2, 3, 4])

    def test_the_placement_is_read_only_and_outlives_the_client(self):
        view = self.client.placement
        self.assertIs(view, self.client.placement)
        self.assertEqual((view.num_layers, view.num_experts, view.num_slots, view.num_gpus), (1, 4, 6, 1))
        self.assertEqual((view.first_local_slot, view.num_local_slots, view.max_replicas, view.version), (0, 6, 3, 0))
        self.assertEqual(view.physical_to_logical_map.tolist(), [[0, 1, 2, 3, 0, 1]])
        self.assertEqual(view.logical_replica_count.tolist(), [[2, 2, 1, 1]])
        self.assertEqual((view.replicas(0, 0), view.replicas(0, 3)), ((0, 4), (3,)))
        self.assertEqual(view.local_experts(0).tolist(), [0, 1, 2, 3, 0, 1])
        self.assertRegex(view.digest, "^[0-9a-f]{64}$")
        for array in (view.physical_to_logical_map, view.logical_to_physical_map, view.logical_replica_count):
            self.assertEqual(array.dtype, np.int32)
            with self.assertRaises(ValueError):
                array[0] = 0
            with self.assertRaises(ValueError):
                array.flags.writeable = True
        client = lone_client()
        kept = client.placement.physical_to_logical_map
        client.close()
        del client
        gc.collect()
        self.assertEqual(kept.tolist(), [[0, 1, 2, 3]])

    def test_what_a_client_shows(self):
        self.assertEqual(self.client.transport, "")
        self.assertRaisesRegex(eplb.FailedPrecondition, "before finish_registration", lambda: self.client.device_tables)
        self.client.finish_registration()
        self.assertEqual(self.client.transport, "host")
        self.assertTrue(self.client.run_id)
        tables = self.client.device_tables
        self.assertEqual(np.asarray(tables.replicas).tolist(), [[0, 4, 1, 5, 2, 3]])
        self.assertEqual(np.asarray(tables.first_replica).tolist(), [[0, 2, 4, 5, 6]])
        self.assertEqual(np.asarray(tables.thresholds).dtype, np.uint32)
        self.assertFalse(hasattr(tables.replicas, "__cuda_array_interface__"))
        with self.assertRaises(ValueError):
            np.asarray(tables.replicas)[0] = 0
        self.assertTrue(self.client.step_boundary(0).voted)  # the first of a run
        result = self.client.step_boundary(1)
        self.assertEqual((result.voted, result.switched, result.version, result.reason), (True, False, 0, ""))
        self.assertGreater(result.pause_seconds, 0)
        self.assertEqual(self.client.stats.votes, 2)
        self.assertFalse(self.client.stats.connected)

    def test_options_in_one_object(self):
        with eplb.Client(eplb.Options(num_layers=2, num_experts=4, first_step=7)) as client:
            for layer in range(2):
                client.register(np.zeros((4, 2)), name=f"{layer}", layer=layer)
            self.assertRaisesRegex(eplb.FailedPrecondition, "StepBoundary of step 0, expected 7", client.step_boundary, 0)
            self.assertTrue(client.step_boundary(7).voted)

    def test_tables_in_gpu_memory_show_themselves_as_such(self):
        table = views.DeviceTable(self.client._handle, 4096, (2, 3), "int32", on_gpu=True)
        self.assertEqual(table.__cuda_array_interface__,
                         {"shape": (2, 3), "typestr": "<i4", "data": (4096, False), "version": 3})
        self.assertFalse(hasattr(table, "__array_interface__"))

    def test_options_are_checked(self):
        for options, message in (({"num_layer": 2}, "option num_layer: there is none of this name, perhaps num_layers"),
                                 ({"num_layers": "two"}, "num_layers: 'two', expected an integer"),
                                 ({"num_layers": 2.0}, "num_layers: 2.0, expected an integer"),
                                 ({"num_layers": 1 << 40}, "num_layers: 1099511627776 does not fit into 32 bits"),
                                 ({"job": 5}, "job: 5, expected text"), ({"job": "a/b"}, "job"),
                                 ({"start_deadline": "soon"}, "start_deadline: 'soon', expected a number"),
                                 ({"polcy": 1}, "option polcy: there is none of this name; eplb.options.Options has the names"),
                                 ({"state_placement": ["a"]}, r"state_placement: \['a'\], expected one of with_primary"),
                                 ({"all_gather": 3}, "^all_gather: 3, expected a callable: bytes -> the bytes of all ranks$"),
                                 ({"state_placement": "all"}, "state_placement: 'all', expected one of with_primary"),
                                 ({"reduce": "leaf"}, "reduce"), ({"world_size": 2}, "all_gather: missing")):
            with self.subTest(options), self.assertRaisesRegex(eplb.InvalidArgument, message):
                lone_client(**options)

    def test_calls_after_close(self):
        self.client.finish_registration()
        self.client.close()
        self.client.close()
        for call, name in ((lambda: self.client.record(0, [1, 2, 3, 4]), "record"),
                           (lambda: self.client.step_boundary(0), "step_boundary"),
                           (lambda: self.client.register(self.weight, name="x", layer=0), "register"),
                           (lambda: self.client.register_derived(print, name="x", layer=0), "register_derived"),
                           (self.client.finish_registration, "finish_registration"),
                           (lambda: self.client.check_experts(lambda layer, slot: 0), "check_experts"),
                           (lambda: self.client.record_step_time(1), "record_step_time"),
                           (lambda: self.client.record_split(0, [0] * 6), "record_split"),
                           (lambda: self.client.check_counts(0, [1, 2, 3, 4]), "check_counts"),
                           (lambda: self.client.reduce_gradients({}), "reduce_gradients"),
                           (lambda: self.client.broadcast_weights({}), "broadcast_weights"),
                           (lambda: self.client.expert_squares({}), "expert_squares")):
            with self.assertRaisesRegex(eplb.FailedPrecondition, f"^{name} was called after close$"):
                call()
        self.assertEqual(self.client.placement.version, 0)
        self.assertEqual(self.client.registered.entries, [])
        ids = np.array([[0, 1], [2, 3]])
        self.assertEqual(self.client.count_tokens(ids).tolist(), [1, 1, 1, 1, 0])
        held = self.client.placement.physical_to_logical_map[0]
        self.assertEqual(held[self.client.route_tokens(0, ids)].tolist(), ids.tolist())
        self.client.set_split_options(slack=0.5)
        self.assertEqual(self.client.split(0, [1, 2, 3, 4]).peak, 10)

    def test_a_placement_counts_in_words(self):
        with lone_client() as client:
            self.assertEqual(repr(client.placement), "<eplb.PlacementView: version 0, 1 layer of 4 experts in 4 slots on 1 GPU, "
                                                     "this rank's slots 0..3>")

    def test_no_reason_is_the_normal_end(self):
        self.assertRaisesRegex(eplb.InvalidArgument, "reason: 5, expected text", self.client.close, 5)
        self.assertFalse(self.client.closed)
        self.client.close(None)
        self.assertTrue(self.client.closed)

    def test_registration_ends_once(self):
        self.client.finish_registration()
        self.assertRaisesRegex(eplb.FailedPrecondition, "finish_registration was called after finish_registration",
                               self.client.finish_registration)
        self.assertRaisesRegex(eplb.FailedPrecondition, "register was called after finish_registration",
                               self.client.register, self.weight, name="x", layer=0)

    def test_a_disabled_client_does_nothing(self):
        code = ("import eplb, numpy as np\n"
                "client = eplb.Client.connect(num_layers=1, num_experts=4, vote_every=2)\n"
                "client.register(np.zeros((4, 2)), name='w', layer=0)\n"
                "assert not any(client.step_boundary(step).voted for step in (0, 5, 1))\n"
                "client.record(0, [1, 2, 3, 4]); print(client.placement.version, client.device_tables.replicas.shape)\n")
        done = subprocess.run([sys.executable, "-B", "-c", code], env={**os.environ, "EPLB_DISABLE": "1"}, text=True,
                              capture_output=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, "0 (1, 4)\n"), done.stderr)


class ProbeTest(unittest.TestCase):
    def test_every_bit_counts(self):
        values = [0.37, 0.91, -0.0, 0.0, np.float32(3.7), np.float64(3.5), 0, 1, -1, np.int32(7), b"\0", b"", np.zeros(2),
                  np.zeros(3), torch.tensor(0.37), torch.tensor(0.91), torch.zeros(2, dtype=torch.bfloat16)]
        digests = [digest_of(each) for each in values]
        self.assertEqual(len(set(digests)), len(values))
        self.assertTrue(all(0 <= each < 1 << 64 for each in digests))
        self.assertEqual(digest_of(0.5), digest_of(np.float16(0.5)))
        self.assertEqual((digest_of(np.int32(7)), digest_of((1 << 64) + 7)), (7, 7))

    def test_what_has_no_bits_to_compare_is_refused(self):
        for wrong, kind in ((None, "NoneType"), ("text", "str"), (True, "bool"), (np.bool_(True), "bool_?"), (1j, "complex"),
                            ([1, 2], "list"), (np.array([None]), r"object \[1\]")):
            with self.assertRaisesRegex(eplb.InvalidArgument, f"^probe: it gave {kind}, expected an integer, a float, bytes"):
                digest_of(wrong)

    def test_floats_of_a_probe_find_a_forgotten_tensor(self):
        weight, forgotten = torch.arange(1.0, 5), torch.tensor([0.1, 0.2, 0.3, 0.4])
        with lone_client() as client:
            client.register(weight, name="w", layer=0)
            client.check_experts(lambda layer, slot: weight[slot].item() / 1e6)
            with self.assertRaisesRegex(eplb.InvalidArgument, "computes with a tensor that is neither registered"):
                client.check_experts(lambda layer, slot: (3 * weight[slot] + forgotten[slot]).item())
            with self.assertRaisesRegex(eplb.InvalidArgument, "probe: it gave NoneType"):
                client.check_experts(lambda layer, slot: None)


@unittest.skipUnless(torch.cuda.is_available(), "there is no GPU")
class GpuTest(unittest.TestCase):
    def test_tensors_of_a_gpu_move_and_tables_are_there(self):
        client = lone_client()
        weight = torch.arange(8.0, device="cuda").view(4, 2)
        client.register(weight, name="w", layer=0)
        with self.assertRaisesRegex(eplb.InvalidArgument, "is on cpu, tensor \"w\" is on cuda:0"):
            client.register(torch.zeros(4, 2), name="x", layer=0)
        client.check_experts(lambda layer, slot: weight[slot] * 2)
        self.assertEqual(weight.flatten().tolist(), list(range(8)))
        table = torch.as_tensor(client.device_tables.physical_to_logical_map, device="cuda")
        self.assertEqual(table.tolist(), [[0, 1, 2, 3]])
        stream = torch.cuda.Stream()
        client.step_boundary(0, stream)
        with torch.cuda.stream(stream):
            client.record(0, torch.tensor([1, 2, 3, 4], device="cuda"))
            client.step_boundary(1)
        client.close()


if __name__ == "__main__":
    unittest.main()
