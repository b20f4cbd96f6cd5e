"""The parts of eplb.torch, each by itself: what is found, turned, counted, renamed, adopted and refused."""

import contextlib
import copy
import ctypes
import json
import types
import unittest
from unittest import mock

import eplb
import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from eplb.torch import forward_check, groups, layers, layout, pieces, probe, routing, state_dicts, turn

EXPERTS = 4
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, INTERNAL = 8, 9, 13  # eplb_code


def single(width=3):
    return nn.Sequential(nn.Linear(width, 5), nn.Linear(5, width))


class Listed(nn.Module):
    """numbers: of the experts that this rank has, in a list of all."""

    def __init__(self, numbers=None):
        super().__init__()
        own = range(EXPERTS) if numbers is None else numbers
        self.experts = nn.ModuleList(single() if number in own else None for number in range(max(own) + 1))
        self.gate = nn.Linear(3, EXPERTS)


class Numbered(nn.Module):
    def __init__(self):
        super().__init__()
        for number in range(EXPERTS):
            self.register_parameter(f"weight{number}", nn.Parameter(torch.randn(5, 3)))


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(EXPERTS, 5, 3)), nn.Parameter(torch.randn(EXPERTS, 3, 5))


class LayersTest(unittest.TestCase):
    def find(self, experts, given=None, **named):
        model = nn.Module()
        model.moe = nn.Module()
        model.moe.experts, model.moe.gate = experts, nn.Linear(3, EXPERTS)
        return layers.find_layers([model], "*.experts", "gate", given, **named)[0]

    def test_lists_of_modules_numbers_and_stacks(self):
        listed = self.find(Listed().experts)
        self.assertEqual((listed.name, listed.num_local_slots, sorted(listed.families)),
                         ("moe.experts", 4, ["0.bias", "0.weight", "1.bias", "1.weight"]))
        self.assertEqual(listed.families["1.bias"].names, ["0.1.bias", "1.1.bias", "2.1.bias", "3.1.bias"])
        numbered = self.find(Numbered())
        self.assertEqual((numbered.num_local_slots, numbered.families["weight"].names), (4, [f"weight{i}" for i in range(4)]))
        stacked = self.find(Stacked())
        self.assertEqual((stacked.num_local_slots, stacked.families["w1"].is_stacked), (4, True))

    def test_what_cannot_be_found_is_named(self):
        odd = Listed()
        odd.experts.extra = nn.Parameter(torch.zeros(3))
        with self.assertRaisesRegex(eplb.InvalidArgument, "moe.experts has the parameter extra beside one module"):
            self.find(odd.experts)
        stacked = Stacked()
        stacked.w3 = nn.Parameter(torch.zeros(7, 2))
        with self.assertRaisesRegex(eplb.InvalidArgument, "w3 for 7 experts.*give num_local_experts"):
            self.find(stacked)
        stacked = Stacked()
        stacked.register_buffer("scale", torch.zeros(4))
        with self.assertRaisesRegex(eplb.InvalidArgument, "has the buffer scale"):
            self.find(stacked)
        with self.assertRaisesRegex(eplb.InvalidArgument, "no module around .*experts has a \"router\""):
            layers.find_layers([Listed()], "experts", "router")

    def refused(self, words, *chunks, router="gate", given=None):
        with self.assertRaisesRegex(eplb.InvalidArgument, words):
            layers.find_layers(chunks, "*experts", router, given)

    def test_experts_under_two_names(self):
        first, second = Listed(), Listed()
        second.experts = first.experts
        self.refused("0.experts and 1.experts are one module of experts", nn.Sequential(first, second))
        self.refused("chunk 0: 0.experts and chunk 1: 0.experts are one", nn.Sequential(first), nn.Sequential(second))
        second = nn.Module()
        second.other = first.experts  # a name that the pattern does not match
        self.refused("0.other and 1.experts are one module", nn.Sequential(second, first))

    def test_one_router_of_two_layers(self):
        first, second = Listed(), Listed()
        second.gate = first.gate
        self.refused("router: 0.experts and 1.experts have one router, 0.gate", nn.Sequential(first, second))
        outside = nn.Linear(3, EXPERTS)
        self.refused("have one router, Linear", nn.Sequential(Listed(), Listed()), router=lambda _: outside)

    def test_a_parameter_of_experts_that_is_tied(self):
        moe, dense = Listed(), nn.Linear(3, 5)
        dense.weight = moe.experts[2][0].weight
        self.refused("0.weight and 1.experts.2.0.weight are one parameter", nn.Sequential(dense, moe))
        moe = Listed()
        moe.experts[3] = moe.experts[1]
        self.refused("experts.1.0.weight and experts.3.0.weight are one", moe)

    def test_numbers_that_may_be_of_experts_or_of_stacks(self):
        class Stacks(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.w0, self.w1 = nn.Parameter(torch.randn(size, 4, 4)), nn.Parameter(torch.randn(size, 4, 4))

        class Inside(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.parts = nn.ModuleList(nn.Linear(4, size) for _ in range(2))

        for make, words in ((Stacks, "its 2 numbered parameters may be one expert each, or stacks of 2 by their"),
                            (Inside, "its 2 numbered modules may be one expert each, or stacks of 2 by their")):
            for given in (None, 2):
                with self.assertRaisesRegex(eplb.InvalidArgument, words):
                    self.find(make(2), given)
            for given, slots, is_stacked in ((None, 2, False), (2, 2, False), (4, 4, True)):
                found = self.find(make(4), given)
                self.assertEqual((found.num_local_slots, {each.is_stacked for each in found.families.values()}),
                                 (slots, {is_stacked}))
        self.assertEqual(self.find(Inside(2).parts).num_local_slots, 2)

    def test_a_mark_is_of_one_module(self):
        moe = Listed()
        layers.attached_experts.add(moe.experts)
        self.refused("experts is attached already", moe)
        layers.find_layers([copy.deepcopy(moe)], "experts", "gate")
        layers.attached_experts.discard(moe.experts)
        self.assertFalse(moe.experts in layers.attached_experts)


class LayoutTest(unittest.TestCase):
    def test_a_router_shows_the_number_of_experts(self):
        model = nn.Module()
        model.moe = Listed()
        layer = layers.find_layers([model], "*.experts", "gate")[0]
        layout.expect_routers_of([layer], EXPERTS, 1)
        with self.assertRaisesRegex(eplb.InvalidArgument, r"router of moe.experts: its weight is float32 \[4, 3\].*the 8 experts that 2 "):
            layout.expect_routers_of([layer], 8, 2)
        for shows_nothing in (nn.Identity(), nn.LayerNorm(5)):
            layer.router = shows_nothing
            layout.expect_routers_of([layer], 8, 2)

    def test_ranks_with_other_numbers_of_experts_are_named(self):
        layout.expect_equal_shares([(0, {"a": 2}), (1, {"a": 3}), (0, {"a": 2})])
        with self.assertRaisesRegex(eplb.InvalidArgument, "b: rank 0 holds 3 experts and rank 2 holds 2"):
            layout.expect_equal_shares([(0, {"a": 2, "b": 3}), (0, {"a": 2, "b": 3}), (0, {"a": 2, "b": 2})])

    def test_shuffles_move_all_experts_but_one_and_commute_with_no_other_order(self):
        for experts in (2, 3, 4, 8, 9):
            orders = [np.arange(experts)[::-1], np.arange(experts).reshape(-1, 2 if experts % 2 == 0 else 3).T.flatten()]
            for slots in forward_check.shuffled_experts(5, experts):
                self.assertEqual(sorted(slots), list(range(experts)))
                self.assertEqual(int((slots == np.arange(experts)).sum()), int(experts > 2))
                for order in orders if experts > 3 else ():
                    self.assertFalse((slots[order] == order[slots]).all(), (slots, order))


class ProbeTest(unittest.TestCase):
    def test_ranks_with_other_numbers_of_tokens_call_experts_with_equal_inputs(self):
        seen = []
        for tokens in (2, 5):
            moe = Listed()
            moe.experts.load_state_dict(seen[0][0].experts.state_dict() if seen else moe.experts.state_dict())
            layer = layers.find_layers([moe], "experts", "gate")[0]
            layer.index = 0
            seen.append((moe, probe.SeenInputs([layer])))
            moe.experts[1](torch.zeros(tokens, 3))
        sent = []
        for _, inputs in seen:
            inputs.agree(types.SimpleNamespace(objects=lambda mine: sent.append(mine) or [mine]))
        for _, inputs in seen:
            inputs.agree(types.SimpleNamespace(objects=lambda _: json.loads(json.dumps(sent))))
        outputs = [inputs.probe(0, 2) for _, inputs in seen]
        self.assertEqual(outputs[0].shape, (2, 3))
        self.assertTrue(torch.equal(*outputs))


class RoutingTest(unittest.TestCase):
    def setUp(self):
        self.columns = routing.SlotColumns("moe", EXPERTS, torch.device("cpu"))
        self.slots = np.array([2, 0, 3, 1])  # the expert in each slot
        self.columns.set_slots(self.slots)

    def turn(self, output, num_tokens=None):
        return routing.turn_by_shape(output, self.columns, num_tokens)

    def test_probabilities_and_a_map(self):
        probs = torch.rand(6, EXPERTS)
        chosen = probs > 0.5
        turned = self.turn((probs, chosen))
        self.assertTrue(torch.equal(turned[0], probs[:, self.slots]) and torch.equal(turned[1], chosen[:, self.slots]))
        self.assertEqual(self.columns.counts.tolist(), chosen.sum(dim=0).tolist())

    def test_weights_and_indices_of_every_type(self):
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            self.columns.ledger.zero_()
            none = torch.tensor(-1).to(dtype).item()
            given = torch.tensor([[0, 1], [2, 3], [none, 2], [EXPERTS, EXPERTS + 7], [100, 0]]).to(dtype)
            for indices in (given, given.t().contiguous().t()):
                weights = torch.rand(5, 2)
                turned = self.turn([weights, indices, torch.tensor(0.1)])
                self.assertIs(turned[0], weights)
                self.assertEqual((turned[1].tolist(), turned[1].dtype),
                                 ([[1, 3], [0, 2], [none, 0], [EXPERTS, EXPERTS + 7], [100, 1]], dtype))
            self.assertEqual(self.columns.counts.tolist(), [4, 2, 4, 2])

    def test_integers_that_may_be_a_map_are_refused(self):
        chosen = nn.functional.one_hot(torch.tensor([0, 3, 2]), EXPERTS)
        for output in ((torch.rand(3, EXPERTS), chosen), (chosen, torch.rand(3, EXPERTS))):
            with self.assertRaisesRegex(eplb.FailedPrecondition, r"moe gave .*int64 \[3, 4\].*give attach a `turn`"):
                self.turn(output)
        self.assertEqual(self.columns.counts.sum(), 0)

    def test_expert_choice_is_refused(self):
        class ExpertChoice(nn.Linear):
            def forward(self, x):
                return super().forward(x).softmax(dim=-1).transpose(-1, -2).topk(3, dim=-1)

        router = ExpertChoice(3, EXPERTS)
        routing.RouterHook(self.columns, router, None)
        for shape in ((6, 3), (2, 6, 3)):
            for call in (router, lambda x: router(x=x)):
                with self.assertRaisesRegex(eplb.FailedPrecondition, r"router moe gave .* for \d+ tokens: one row for each of 4 experts "
                                                                     r"holds numbers of tokens, as of an expert-choice router"):
                    call(torch.rand(shape))
        indices = torch.zeros(EXPERTS, 3, dtype=torch.int64)
        for tokens in (EXPERTS, None):  # tokens that are as many as experts, and an unknown number
            self.turn((torch.rand(EXPERTS, 3), indices), tokens)

    def test_masks_whose_other_dimensions_are_as_large_as_the_experts(self):
        for shape in ((5, EXPERTS, 3), (EXPERTS, EXPERTS, 3), (5, EXPERTS, EXPERTS)):
            self.columns.ledger.zero_()
            combine = torch.rand(shape)
            auxiliary, turned, mask, counts = self.turn((torch.tensor(1.0), combine, combine > 0.5, torch.arange(EXPERTS)))
            self.assertTrue(torch.equal(turned, combine[:, self.slots]) and torch.equal(mask, turned > 0.5))
            self.assertEqual(counts.tolist(), [0, 1, 2, 3])
            self.assertEqual(self.columns.counts.tolist(), (combine > 0.5).sum(dim=(0, 2)).tolist())

    def test_masks_of_other_layouts(self):
        for dim, shape in ((0, (EXPERTS, 5, 3)), (2, (5, 3, EXPERTS))):
            combine = torch.rand(shape)
            turned = self.turn((combine, combine > 0.5))
            self.assertTrue(torch.equal(turned[0], combine.index_select(dim, torch.from_numpy(self.slots))))
            self.assertTrue(torch.equal(turned[1], turned[0] > 0.5))

    def test_an_output_that_says_nothing_is_shown(self):
        for output in (torch.rand(5, EXPERTS), (torch.rand(5, 2), torch.zeros(5, 2, dtype=torch.int64), torch.rand(5, EXPERTS)),
                       {"logits": torch.rand(5, EXPERTS)}):
            with self.assertRaisesRegex(eplb.FailedPrecondition, r"router moe gave .*\[5, 4\].*give attach a `turn`"):
                self.turn(output)

    def test_devices_turn_and_count_as_the_pass_of_the_library(self):
        ids, mask = torch.randint(-2, EXPERTS + 3, (50, 2)), torch.rand(7, EXPERTS, 3) > 0.5
        for chosen, dim in ((ids, 0), (ids.int(), 0), (mask, 1), (mask.movedim(1, 0), 0), (mask.movedim(1, 2), 2), (mask[:0], 1)):
            other = self.columns.ledger.clone()
            for run in (turn.WITH_GRADIENTS, turn.WITHOUT_GRADIENTS, turn.NOT_COUNTED):
                expected = turn.turn(chosen, self.columns._table, self.columns.ledger, dim, run)
                found = turn._on_device(chosen, self.columns._table, other, dim, run)
                self.assertTrue(torch.equal(expected, found) and expected.dtype == found.dtype and found.is_contiguous())
                self.assertEqual(self.columns.ledger[1:EXPERTS + 1].tolist(), other[1:EXPERTS + 1].tolist())
                self.assertEqual(self.columns.ledger[-2:].tolist(), other[-2:].tolist())
            self.columns.ledger.zero_()

    def kernel(self, entry):
        """Calls `entry` where a CUDA tensor would call the kernel of libeplb."""
        stream = types.SimpleNamespace(cuda_stream=5)
        return (mock.patch.object(turn, "_has_kernel", lambda chosen: chosen.device not in turn._without_kernel),
                mock.patch.object(torch.cuda, "current_stream", lambda device: stream),
                mock.patch.object(turn._library, "load", lambda: types.SimpleNamespace(
                    eplb_turn_tokens_on_gpu=entry, eplb_last_message=lambda: b"no driver")))

    def test_the_kernel_gets_what_the_pass_over_host_memory_gets(self):
        library, weights = turn._library.load(), []

        def entry(choices, slots, weight, turned, device, stream):
            self.assertEqual((device, stream), (0, 5))
            weights.append(None if weight is None else ctypes.c_int64.from_address(weight).value)
            if weights[-1] == 0:
                choices._obj.counters = None
            return library.eplb_turn_tokens(choices, slots, turned)

        ids = torch.randint(-2, EXPERTS + 3, (50, 2))
        for chosen in (ids, ids.int().t()):
            ledgers = [turn.new_ledger(EXPERTS, ids.device) for _ in range(3)]
            for run in (turn.WITH_GRADIENTS, turn.WITHOUT_GRADIENTS, turn.NOT_COUNTED):
                expected = turn._on_device(chosen, self.columns._table, ledgers[0], 0, run)
                with contextlib.ExitStack() as patches:
                    for patch in self.kernel(entry):
                        patches.enter_context(patch)
                    found = turn._on_device(chosen, self.columns._table, ledgers[1], 0, run)
                    turn._count_on_device(chosen, ledgers[2], 0, run)
                self.assertTrue(torch.equal(expected, found) and found.is_contiguous())
                for ledger in ledgers[1:]:
                    self.assertEqual(ledger[1:EXPERTS + 1].tolist(), ledgers[0][1:EXPERTS + 1].tolist())
                    self.assertEqual(ledger[-2:].tolist(), ledgers[0][-2:].tolist())
        self.assertEqual(weights, 2 * [1, 1, None, None])

    def test_without_a_kernel_torchs_operators_turn_and_say_so_once(self):
        ids = torch.randint(-2, EXPERTS + 3, (50, 2))
        expected = turn.turn(ids, self.columns._table, self.columns.ledger, 0, turn.WITH_GRADIENTS)
        for code in (RESOURCE_EXHAUSTED, FAILED_PRECONDITION, INTERNAL):
            calls, other = [], turn.new_ledger(EXPERTS, ids.device)
            with self.subTest(code=code), contextlib.ExitStack() as patches, self.assertLogs("eplb", "WARNING") as log:
                patches.callback(turn._without_kernel.clear)
                for patch in self.kernel(lambda *call: calls.append(call) or code):
                    patches.enter_context(patch)
                for _ in range(2):
                    found = turn._on_device(ids, self.columns._table, other, 0, turn.WITH_GRADIENTS)
                self.assertTrue(torch.equal(found, expected))
                self.assertEqual(other[1:EXPERTS + 1].tolist(), (2 * self.columns.ledger[1:EXPERTS + 1]).tolist())
                self.assertEqual((len(calls), len(log.output)), (1, 1))
                self.assertIn("on cpu choices are turned by torch's operators, not by a kernel: no driver", log.output[0])

    def test_counts_on_a_device_load_its_kernels(self):
        loaded = []
        with contextlib.ExitStack() as patches:
            for patch in self.kernel(lambda choices, *call: loaded.append(choices._obj.num_tokens) or 0):
                patches.enter_context(patch)
            routing.TokenCounts(3, EXPERTS, torch.device("cpu"))
        self.assertEqual(loaded, [0])

    def test_counts_of_several_steps_are_read_together(self):
        counts = routing.TokenCounts(2, EXPERTS, torch.device("cpu"))
        routers = [nn.Linear(3, EXPERTS) for _ in counts.ledgers]
        for router, ledger in zip(routers, counts.ledgers):
            columns = routing.SlotColumns("moe", EXPERTS, ledger.device, ledger)
            routing.RouterHook(columns, router, lambda output, columns: columns.count_and_turn(output.argmax(dim=1)))
        x = torch.randn(5, 3)
        for reentrant in (False, True):  # the first step leaves no trace in the second
            checkpoint(lambda x: (routers[0](x) + x[:, 0]).sum(), x.requires_grad_(), use_reentrant=reentrant).backward()
            counts.end_step()
        with torch.no_grad():
            routers[1](x)
        self.assertEqual(counts.now().sum(dim=1).tolist(), [10, 0])
        self.assertEqual(counts.read().sum(axis=1).tolist(), [10, 0])
        self.assertEqual(counts.silences(), ["", "ran without gradients"])
        self.assertEqual((counts.read().any(), counts.silences()), (False, ["got no call"] * 2))

    def test_a_turn_of_ones_own_and_gradients(self):
        router = nn.Linear(3, EXPERTS)

        def own(output, columns):
            columns.count_columns(output > 0, 1)
            return columns.in_slot_order(output, 1)

        hook = routing.RouterHook(self.columns, router, own)
        x = torch.randn(5, 3)
        with torch.no_grad():
            router(x)
        self.assertEqual(self.columns.counts.sum(), 0)
        plain = router(x)
        counted = self.columns.counts.tolist()
        router.eval()  # actors of RL train in eval mode
        router(x)
        self.assertEqual(self.columns.counts.tolist(), [2 * each for each in counted])
        hook.remove()
        self.assertTrue(torch.equal(plain, router(x)[:, self.slots]))
        self.assertEqual(counted, (router(x) > 0).sum(dim=0).tolist())


class StateDictsTest(unittest.TestCase):
    def hooked(self, experts, is_static):
        model = nn.Module()
        model.moe = nn.Module()
        model.moe.experts, model.moe.gate = experts, nn.Linear(3, EXPERTS)
        layer = layers.find_layers([model], "*.experts", "gate")[0]
        state_dicts.hooks_of(layer, lambda: None if is_static[0] else [1, 0])
        return model

    def test_unmoved_entries_keep_their_order_and_their_memory(self):
        moe = Listed([2, 3])
        plain = list(moe.experts.state_dict())
        moe.experts[2][0].weight.data = torch.stack([moe.experts[2][0].weight.detach()] * 2)[0]
        state = self.hooked(moe.experts, [True]).moe.experts.state_dict()
        self.assertEqual(list(state), plain)
        value = state["2.0.weight"]
        self.assertEqual(value.untyped_storage().nbytes(), value.numel() * value.element_size())
        value.fill_(7)
        self.assertTrue((moe.experts[2][0].weight == 7).all())

    def test_moved_experts_are_neither_saved_nor_loaded(self):
        for experts in (Listed([2, 3]).experts, Stacked()):
            is_static = [True]
            model = self.hooked(experts, is_static)
            whole = model.state_dict()
            is_static[0] = False
            parts = [model, experts, *((experts[2], experts[2][0]) if isinstance(experts, nn.ModuleList) else ())]
            for part in parts:
                with self.assertRaisesRegex(eplb.FailedPrecondition, "moe.experts: state_dict would .*with attached.static_order"):
                    part.state_dict()
            with self.assertRaisesRegex(eplb.FailedPrecondition, "load_state_dict would .*with attached.static_order"):
                model.load_state_dict(whole)
            is_static[0] = True
            model.load_state_dict(whole)

    def test_code_that_copies_newer_state_dicts_into_an_older_one_cannot_overwrite_moved_weights(self):
        """torchtitan's ModelWrapper keeps the first state dict, whose memory is that of the parameters."""
        is_static, experts = [True], Stacked()
        model = self.hooked(experts, is_static)
        kept, before = model.state_dict(), experts.w1.detach().clone()
        is_static[0] = False
        with self.assertRaises(eplb.FailedPrecondition):
            for name, value in model.state_dict().items():
                kept[name].copy_(value)
        self.assertTrue(torch.equal(experts.w1, before))

    def test_a_copy_of_the_module_knows_where_experts_were_when_it_was_made(self):
        is_static = [False]
        model = self.hooked(Listed().experts, is_static)
        copied = copy.deepcopy(model)
        is_static[0] = True
        model.state_dict()
        with self.assertRaises(eplb.FailedPrecondition):
            copied.state_dict()


class PiecesTest(unittest.TestCase):
    def test_what_replaced_a_piece_is_adopted_or_named(self):
        parameters = [nn.Parameter(torch.randn(3)) for _ in range(4)]
        found = pieces.ExpertTensor("w", 0, "weight", [pieces.Piece(each) for each in parameters], 4)
        self.assertFalse(found.adopt())
        swapped = parameters[2].data, parameters[1].data
        values = [each.clone() for each in swapped]
        parameters[1].data, parameters[2].data = swapped  # rows of this very memory
        self.assertTrue(found.adopt() and found.in_place())
        self.assertTrue(torch.equal(parameters[1], values[0]) and torch.equal(found.rows[2], values[1]))
        for other in (torch.zeros(3, dtype=torch.float64), torch.zeros(2)):
            parameters[3].data = other
            with self.assertRaisesRegex(eplb.InvalidArgument, r"tensor \"w\": is float(64|32) \[.\] on cpu in slot 3 now"):
                found.adopt()


    def test_a_view_of_a_larger_buffer_is_refused_and_rows_of_one_stay(self):
        def made(parameters):
            return pieces.ExpertTensor("w", 0, "weight", [pieces.Piece(each) for each in parameters], len(parameters))

        buffer = torch.randn(20)
        for starts in ((0, 3, 9), (3, 0, 6)):
            with self.assertRaisesRegex(eplb.InvalidArgument, "\"w\": has in local slot 0 a view of a larger buffer"):
                made([nn.Parameter(buffer[start:start + 3]) for start in starts])
        parameters = [nn.Parameter(buffer[start:start + 3]) for start in (1, 6, 11)]
        found = made(parameters)
        found.rows.fill_(7.0)
        found.release()
        parameters[1].data.fill_(8.0)
        self.assertEqual([buffer[start:start + 3].tolist() for start in (1, 6, 11)], [[7.0] * 3, [8.0] * 3, [7.0] * 3])

    def test_what_was_stacked_before_stays_and_is_released(self):
        parameters = [nn.Parameter(torch.randn(3)) for _ in range(4)]
        first, second = (pieces.ExpertTensor("w", 0, "weight", list(map(pieces.Piece, parameters)), 4)
                         for _ in range(2))
        self.assertEqual(first.addresses, second.addresses)
        second.release()
        self.assertEqual([each.data.storage().size() for each in parameters], [3] * 4)

    def test_state_of_a_checkpoint_may_be_parts_of_what_was_loaded(self):
        loaded = torch.arange(12.0).view(4, 3)
        states = [{"exp_avg": loaded[i]} for i in (2, 0, 3, 1)]
        found = pieces.ExpertTensor("w.exp_avg", 0, "state", [
            pieces.Piece(state["exp_avg"], lambda state=state: state, "exp_avg") for state in states], 4)
        self.assertEqual(found.rows[:, 0].tolist(), [6.0, 0.0, 9.0, 3.0])
        states[1]["exp_avg"].data = torch.ones(3)  # change of the trainer's object itself
        self.assertTrue(found.adopt() and found.in_place())
        self.assertEqual(found.rows[1].tolist(), [1.0] * 3)


class Mesh:
    """Stands in for a DeviceMesh."""

    mesh_dim_names = ("pp", "ep")

    def get_group(self, name):
        return f"group of {name}"


class GroupsTest(unittest.TestCase):
    def test_a_mesh_gives_groups_by_names(self):
        self.assertEqual(groups.groups_of_mesh(Mesh()), {"ep_group": "group of ep", "pp_group": "group of pp"})
        with self.assertRaisesRegex(eplb.InvalidArgument, r"named \[\], expected \"ep\""):
            groups.groups_of_mesh(object())

    def test_whatever_fails_on_one_rank_is_told_to_all(self):
        for error, words in ((OSError("disk full"), "OSError: disk full"), (KeyError("w"), "KeyError: 'w'"),
                             (eplb.InvalidArgument("no gate"), "no gate"), (ValueError(), "ValueError: ")):
            told = []

            def gather(data):
                told.append(data.decode())
                return [data]

            def fail():
                raise error

            with self.assertRaises(type(error)):
                groups.InEplbOrder(gather, 0, 1).together(fail)
            self.assertEqual(told[0], "0")
            self.assertEqual(json.loads(told[1]), {"error": words})

if __name__ == "__main__":
    unittest.main()
