"""What register takes and refuses, what record takes, and what a client of one process shows."""

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

    def test_shared_rows_are_refused(self):
        self.client.register(torch.zeros(1, 6).expand(4, 6), name="w", layer=0)
        with self.assertRaisesRegex(eplb.InvalidArgument, "row_stride is 0: a tensor that all experts share"):
            self.client.finish_registration()

    def test_layers_are_checked(self):
        self.client.register(np.zeros((4, 2)), name="w", layer=1)
        with self.assertRaisesRegex(eplb.InvalidArgument, "layer 1 is not in 0..0"):
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
        self.assertFalse(self.client.step_boundary(0).voted)
        result = self.client.step_boundary(1)
        self.assertEqual((result.voted, result.switched, result.version, result.reason), (True, False, 0, ""))
        self.assertGreater(result.pause_seconds, 0)
        self.assertEqual(self.client.stats.votes, 1)
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
                                 ({"start_deadline": "soon"}, "start_deadline: 'soon', expected seconds"),
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
