"""The parts of eplb.torch, each by itself, and one rank alone: what is found, turned, counted, renamed, adopted and refused."""

import copy
import types
import unittest

import eplb
import numpy as np
import torch
from torch import nn

import ranks
from eplb.torch import alike, calls, groups, layers, pieces, routing, state, state_dicts, watch

EXPERTS = 4


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
        second.other = first.experts  # where the pattern does not look
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
        layers.mark(moe.experts)
        self.refused("experts is attached already", moe)
        layers.find_layers([copy.deepcopy(moe)], "experts", "gate")
        layers.unmark(moe.experts)
        self.assertFalse(layers.is_marked(moe.experts))


class RoutingTest(unittest.TestCase):
    def setUp(self):
        self.columns = routing.SlotColumns("moe", EXPERTS, torch.device("cpu"))
        self.slots = np.array([2, 0, 3, 1])
        self.columns.set_slots(self.slots)
        self.turn = routing.ByShape()

    def test_probabilities_and_a_map(self):
        probs = torch.rand(6, EXPERTS)
        chosen = probs > 0.5
        turned = self.turn((probs, chosen), self.columns)
        self.assertTrue(torch.equal(turned[0], probs[:, self.slots]) and torch.equal(turned[1], chosen[:, self.slots]))
        self.assertEqual(self.columns.counts.tolist(), chosen.sum(dim=0).tolist())

    def test_weights_and_indices_also_of_no_expert(self):
        weights, indices = torch.rand(3, 2), torch.tensor([[0, 1], [2, 3], [-1, 2]], dtype=torch.int32)
        turned = self.turn([weights, indices, torch.tensor(0.1)], self.columns)
        self.assertIs(turned[0], weights)
        self.assertEqual((turned[1].tolist(), turned[1].dtype), ([[1, 3], [0, 2], [-1, 0]], torch.int32))
        self.assertEqual(self.columns.counts.tolist(), [1, 1, 2, 1])

    def test_indices_outside_are_of_no_expert(self):
        given = torch.tensor([[0, -1], [EXPERTS, EXPERTS + 7], [-2, -100]])
        turned = self.turn((torch.rand(3, 2), given), self.columns)[1]
        self.assertEqual(turned.tolist(), [[1, -1], [-1, -1], [-1, -1]])
        self.assertEqual(self.columns.counts.tolist(), [1, 0, 0, 0])

    def test_integers_that_may_be_a_map_are_refused(self):
        chosen = nn.functional.one_hot(torch.tensor([0, 3, 2]), EXPERTS)
        for output in ((torch.rand(3, EXPERTS), chosen), (chosen, torch.rand(3, EXPERTS))):
            with self.assertRaisesRegex(eplb.FailedPrecondition, r"moe gave .*int64 \[3, 4\].*give attach a `turn`"):
                self.turn(output, self.columns)
        self.assertEqual(self.columns.counts.sum(), 0)

    def test_masks_whose_other_dimensions_are_as_large_as_the_experts(self):
        for shape in ((5, EXPERTS, 3), (EXPERTS, EXPERTS, 3), (5, EXPERTS, EXPERTS)):
            combine = torch.rand(shape)
            auxiliary, turned, mask, counts = self.turn((torch.tensor(1.0), combine, combine > 0.5, torch.arange(EXPERTS)),
                                                        self.columns)
            self.assertTrue(torch.equal(turned, combine[:, self.slots]) and torch.equal(mask, turned > 0.5))
            self.assertEqual(counts.tolist(), [0, 1, 2, 3])

    def test_an_output_that_says_nothing_is_shown(self):
        for output in (torch.rand(5, EXPERTS), (torch.rand(5, 2), torch.zeros(5, 2, dtype=torch.int64), torch.rand(5, EXPERTS)),
                       {"logits": torch.rand(5, EXPERTS)}):
            with self.assertRaisesRegex(eplb.FailedPrecondition, r"router moe gave .*\[5, 4\].*give attach a `turn`"):
                self.turn(output, self.columns)

    def test_a_turn_of_ones_own_and_recomputation(self):
        router = nn.Linear(3, EXPERTS)

        def turn(output, columns):
            columns.count_columns(output > 0, 1)
            return columns.in_slot_order(output, 1)

        hook = routing.RouterHook(self.columns, router, turn)
        x = torch.randn(5, 3)
        with torch.no_grad():  # as the first run of a checkpointed part
            router(x)
        self.assertEqual(self.columns.counts.sum(), 0)
        plain = router(x)
        counted = self.columns.counts.tolist()
        router.eval()
        router(x)
        self.assertEqual(self.columns.counts.tolist(), counted)
        hook.remove()
        self.assertTrue(torch.equal(plain, router(x)[:, self.slots]))
        self.assertEqual(counted, (router(x) > 0).sum(dim=0).tolist())


class NamesTest(unittest.TestCase):
    """Rank 1 of 2: slots 2 and 3."""

    def names(self, moe, slots, is_global, first=2):
        model = nn.Module()
        model.moe = moe
        layer = layers.find_layers([model], "*.experts", "gate")[0]
        names = state_dicts.names_of(layer, first, is_global, lambda: np.array(slots))
        names.hook(layer)
        return model

    def test_global_numbers_are_those_of_the_experts(self):
        moe = Listed([2, 3])
        here = [moe.experts[2][0].weight.clone(), moe.experts[3][0].weight.clone()]
        model = self.names(moe, [2, 3, 1, 0], True)
        state = model.state_dict()
        self.assertEqual(sorted(key for key in state if key.endswith("0.weight")),
                         ["moe.experts.0.0.weight", "moe.experts.1.0.weight"])
        self.assertTrue(torch.equal(state["moe.experts.1.0.weight"], here[0]))
        state = {key: value.clone() for key, value in state.items()}
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        model.load_state_dict(state)
        self.assertTrue(torch.equal(moe.experts[2][0].weight, here[0]) and torch.equal(moe.experts[3][0].weight, here[1]))
        del state["moe.experts.1.0.weight"]
        with self.assertRaisesRegex(eplb.FailedPrecondition, r"not given the expert.*\(expert 1\).*static_order"):
            model.load_state_dict(state)

    def test_unmoved_entries_keep_their_order_and_their_memory(self):
        plain = list(Listed([2, 3]).state_dict())
        moe = Listed([2, 3])
        moe.experts[2][0].weight.data = torch.stack([moe.experts[2][0].weight.detach()] * 2)[0]
        model = self.names(moe, [0, 1, 2, 3], True)
        state = model.state_dict()
        self.assertEqual([key.replace("moe.", "", 1) for key in state], plain)
        value = state["moe.experts.2.0.weight"]
        self.assertEqual(value.storage().nbytes(), value.numel() * value.element_size())
        value.fill_(7)
        self.assertTrue((moe.experts[2][0].weight == 7).all())

    def test_numbers_of_a_rank_name_experts_of_that_rank_alone(self):
        model = self.names(Listed([0, 1]), [0, 1, 3, 2], False)
        weight = model.moe.experts[0][0].weight
        self.assertTrue(torch.equal(model.state_dict()["moe.experts.1.0.weight"], weight))
        model = self.names(Listed([0, 1]), [0, 2, 1, 3], False)
        with self.assertRaisesRegex(eplb.FailedPrecondition, r"moe.experts: state_dict .*\(expert 1\).*with attached.static_order"):
            model.state_dict()

    def test_stacks_are_reordered_within_a_rank(self):
        moe = nn.Module()
        moe.experts, moe.gate = Stacked(), nn.Linear(3, EXPERTS)
        model = self.names(moe, [2, 0, 1, 3], True, first=0)
        state, here = model.state_dict(), moe.experts.w1.detach().clone()
        self.assertTrue(torch.equal(state["moe.experts.w1"][2], here[0]) and torch.equal(state["moe.experts.w1"][0], here[1]))
        nn.init.zeros_(moe.experts.w1)
        model.load_state_dict(state)
        self.assertTrue(torch.equal(moe.experts.w1, here))

    def test_a_copy_of_the_module_keeps_the_names_that_it_was_copied_with(self):
        slots = [0, 1, 3, 2]
        model = self.names(Listed([0, 1]), slots, False)
        copied = copy.deepcopy(model)
        slots[:] = [0, 1, 2, 3]
        self.assertTrue(torch.equal(copied.state_dict()["moe.experts.1.0.weight"], copied.moe.experts[0][0].weight))
        self.assertTrue(torch.equal(model.state_dict()["moe.experts.0.0.weight"], model.moe.experts[0][0].weight))


class Sharded(torch.Tensor):
    """Stands in for a DTensor: torch 1.13 has none."""

    def to_local(self):
        return self.as_subclass(torch.Tensor)


def sharded(tensor, dim):
    placement = types.SimpleNamespace(is_replicate=lambda: False, is_shard=lambda asked: asked == dim)
    found = tensor.as_subclass(Sharded)
    found.placements = (placement,)
    return found


class PiecesTest(unittest.TestCase):
    def test_a_shard_of_whole_experts_is_registered_by_its_local_tensor(self):
        tensor = torch.randn(4, 6)
        found = pieces.ExpertTensor("w", 0, "weight", [pieces.Piece(sharded(tensor, 0))], 4)
        self.assertEqual((found.rows.data_ptr(), type(found.rows)), (tensor.data_ptr(), torch.Tensor))
        for given in ([sharded(tensor, 1)], [sharded(torch.randn(6), 0) for _ in range(4)]):
            with self.assertRaisesRegex(eplb.InvalidArgument, "is a DTensor"):
                pieces.ExpertTensor("w", 0, "weight", [pieces.Piece(each) for each in given], 4)

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
        states[1]["exp_avg"].data = torch.ones(3)  # of the trainer's object itself
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
            self.assertEqual(told, ["0", words])


class Parts:
    """One layer of single experts, and the state of its optimizers."""

    def __init__(self, make=torch.optim.AdamW, **options):
        self.model = nn.Module()
        self.model.moe = Listed()
        self.layer = layers.find_layers([self.model], "*.experts", "gate")[0]
        self.optimizer = make(self.model.parameters(), lr=0.1, **options)
        self.state = state.OptimizerState([self.optimizer])

    def parameter(self, expert=1):
        return self.model.moe.experts[expert][0].weight

    def step(self):
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        self.optimizer.step()

    def watch(self):
        rows = [pieces.ExpertTensor(key, 0, "weight", [pieces.Piece(each) for each in family.parameters], EXPERTS)
                for key, family in self.layer.families.items()]
        return watch.Watch([self.layer], self.state, [*rows, *self.state.tensors(self.layer)])


class StateTest(unittest.TestCase):
    def test_parameters_that_come_and_go_after_it_was_made(self):
        parts = Parts()
        parts.layer.index = 0
        parts.step()
        seen = parts.watch()
        self.assertTrue(seen.intact())
        group = parts.optimizer.param_groups[0]
        index = next(i for i, each in enumerate(group["params"]) if each is parts.parameter())
        parts.optimizer.param_groups.append({**group, "params": [group["params"].pop(index)], "lr": 0.1})
        self.assertFalse(seen.intact(fully=False))
        self.assertEqual((seen.adopt(), seen.intact()), ([], True))
        parts.optimizer.param_groups[1]["params"].clear()
        with self.assertRaisesRegex(eplb.InvalidArgument, r"moe.experts.0.weight.*no optimizer has it in param_groups"):
            seen.adopt()

    def test_a_frozen_expert_is_not_waited_for_and_a_later_thaw_is_named(self):
        parts = Parts()
        frozen = [expert[0].bias for expert in parts.model.moe.experts]
        for each in frozen:
            each.requires_grad_(False)
        self.assertEqual(parts.state.missing([parts.layer]), "moe.experts.0.0.weight")
        parts.step()
        self.assertEqual(parts.state.missing([parts.layer]), "")
        seen = parts.watch()
        seen.expect_trained_as_before()
        frozen[2].requires_grad_(True)
        with self.assertRaisesRegex(eplb.InvalidArgument, r"experts.2.0.bias\": requires_grad was False at attach and is True"):
            seen.expect_trained_as_before()

    def test_an_expert_in_an_optimizer_after_registration(self):
        parts = Parts()
        for parameter in parts.layer.parameters():
            parameter.requires_grad_(False)
        parts.optimizer.param_groups[0]["params"] = list(parts.model.moe.gate.parameters())
        parts.state.renew()
        parts.step()
        seen = parts.watch()
        parts.optimizer.add_param_group({"params": list(parts.layer.parameters())})
        for parameter in parts.layer.parameters():
            parameter.grad = torch.ones_like(parameter)
        parts.optimizer.step()
        with self.assertRaisesRegex(eplb.InvalidArgument, "has come into the optimizer's state after registration"):
            seen.adopt()

    def test_which_optimizers_keep_nothing(self):
        parameter = nn.Parameter(torch.zeros(2))
        for make, options, keeps in ((torch.optim.SGD, {}, False), (torch.optim.SGD, {"momentum": 0.9}, True),
                                     (torch.optim.RMSprop, {}, True), (torch.optim.AdamW, {}, True)):
            optimizer = make([parameter], lr=0.1, **options)
            self.assertEqual(state.keeps_state(optimizer, optimizer.param_groups), keeps, (make, options))


class AlikeTest(unittest.TestCase):
    def test_options_by_expert_are_refused_and_those_of_all_may_change(self):
        parts = Parts(weight_decay=0.1)
        parts.step()
        alike.expect_alike([parts.layer], parts.state)
        group = parts.optimizer.param_groups[0]
        own = group["params"].pop(next(i for i, each in enumerate(group["params"]) if each is parts.parameter()))
        parts.optimizer.param_groups.append({**group, "params": [own], "name": "of its own"})
        parts.state.renew()
        alike.expect_alike([parts.layer], parts.state)
        parts.optimizer.param_groups[1]["weight_decay"] = 0.0
        with self.assertRaisesRegex(eplb.InvalidArgument, r"experts.1.0.weight\": optimizer's weight_decay is 0.0 and 0.1 for 0.0."):
            alike.expect_alike([parts.layer], parts.state)
        self.assertTrue(Parts().watch().intact())

    def test_a_scheduler_changes_all_alike(self):
        parts = Parts()
        parts.step()
        seen, scheduler = parts.watch(), torch.optim.lr_scheduler.StepLR(parts.optimizer, 1)
        scheduler.step()
        self.assertTrue(seen.intact())

    def test_ranks_that_differ(self):
        found = []
        for change in (lambda _: None, lambda parts: parts.parameter(0).requires_grad_(False)):
            parts = Parts()
            change(parts)
            found.append(alike.traits_of([parts.layer], parts.state))
        alike.expect_alike_on_ranks([found[0], found[0]])
        with self.assertRaisesRegex(eplb.InvalidArgument, "0.weight\": requires_grad is False on rank 2 and True on rank 0"):
            alike.expect_alike_on_ranks([found[0], found[0], found[1]])


class StepsTest(unittest.TestCase):
    def setUp(self):
        self.optimizers = [torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1) for _ in range(2)]
        self.calls = [calls.OptimizerCalls(each) for each in self.optimizers]

    def test_it_follows_the_last_of_all_in_any_order(self):
        fired = []
        steps = calls.Steps(self.calls, lambda: (fired.append(1), steps.end_boundary()))
        first, second = self.optimizers
        for optimizer, expected in ((second, 0), (first, 1), (first, 1), (first, 1), (second, 2)):
            optimizer.step()
            self.assertEqual(len(fired), expected)
        for each in self.calls:
            each.remove()
        first.step()
        second.step()
        self.assertEqual(len(fired), 2)

    def test_boundaries_without_any_step(self):
        steps = calls.Steps(self.calls)
        for _ in range(3):
            steps.end_boundary()
        steps.expect_some(4)
        with self.assertRaisesRegex(eplb.FailedPrecondition, "no attached optimizer made a step in 3 boundaries"):
            steps.expect_some(3)
        self.optimizers[1].step()
        steps.end_boundary()
        steps.expect_some(1)
        torch.optim.lr_scheduler.StepLR(self.optimizers[0], 1)  # wraps what stands in for the step
        steps.end_boundary()
        with self.assertRaises(eplb.FailedPrecondition):
            steps.expect_some(1)
        self.optimizers[1].__dict__["step"] = types.MethodType(torch.optim.SGD.step, self.optimizers[1])
        if not hasattr(self.optimizers[1], "register_step_post_hook"):
            steps.expect_some(1)  # its steps are not heard
        unseen = calls.Steps([])
        unseen.end_boundary()
        unseen.expect_some(1)


class Model(nn.Module):
    """experts: a module of a layer's; its router gives weights and indices."""

    class Gate(nn.Linear):
        def forward(self, x):
            return super().forward(x).softmax(dim=1).topk(2, dim=1)

    def __init__(self):
        super().__init__()
        self.gate, self.experts = Model.Gate(3, EXPERTS), nn.ModuleList(single() for _ in range(EXPERTS))

    def forward(self, x):
        weights, chosen = self.gate(x)
        return sum(weights[:, i:i + 1] * torch.stack([self.experts[e](row) for e, row in zip(chosen[:, i].tolist(), x)])
                   for i in range(2))


def alone(_, run):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    attached = eplb.torch.attach(model, optimizer, experts="experts", router="gate", vote_every=2, report_every=2)

    def step():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        model(torch.randn(8, 3))
        optimizer.step()

    return run(model, optimizer, attached, step)


def go_wrong(how):
    def run(model, optimizer, attached, step):
        for _ in range(2):
            step()
            attached.step_boundary()
        parameter = model.experts[1][0].weight
        how(model, optimizer, parameter)
        try:
            for _ in range(2):
                attached.step_boundary()
        except eplb.InvalidArgument as error:
            return str(error), attached.client.closed
        return "", attached.num_adopted
    return run


def replace_parameter(model, _optimizer, parameter):
    model.experts[1][0].weight = nn.Parameter(parameter.detach().clone())


def detached_leaves_nothing(model, optimizer, attached, step):
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    step()
    attached.step_boundary()
    scheduler.step()
    values = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert any(not torch.equal(before[name], values[name]) for name in before)
    attached.detach()
    attached.detach()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, values[name])
        assert parameter.data.storage().size() == parameter.numel(), f"{name} is a part of other memory"
        assert optimizer.state[parameter]["exp_avg"].storage().size() == parameter.numel()
    assert not any(module._forward_hooks or module._forward_pre_hooks or module._state_dict_hooks
                   or module._load_state_dict_pre_hooks for module in model.modules())
    assert not {"state_dict", "load_state_dict"} & set(optimizer.__dict__)
    again = eplb.torch.attach(model, optimizer, experts=nn.ModuleList, router=lambda around: around.gate, boundary="optimizer")
    step()
    assert again.last_boundary.version == again.client.placement.version and again.tokens_per_expert().sum() == 0
    model(torch.randn(8, 3))
    assert again.tokens_per_expert().sum() == 16  # two choices of each token, since the boundary took the counts
    again.check()
    again.check_experts()
    again.detach()


def another_optimizer(model, optimizer, attached, step):
    step()
    attached.step_boundary()
    for _ in range(63):  # as of steps that a scaler skips
        attached.step_boundary()
    step()
    attached.step_boundary()
    other = torch.optim.AdamW(model.parameters())
    try:
        for _ in range(64):
            other.step()
            attached.step_boundary()
    except eplb.FailedPrecondition as error:
        attached.client.close()
        assert attached.client.closed
        attached.detach()
        return str(error)
    return ""


def frozen_later(model, optimizer, attached, step):
    for _ in range(2):
        step()
        attached.step_boundary()
    model.experts[2][0].weight.requires_grad_(False)
    with attached.static_order():  # as in an evaluation
        model.state_dict()
    try:
        attached.step_boundary()
    except eplb.InvalidArgument as error:
        assert attached.client.closed
        return str(error)
    return ""


def an_expert_without_gradients(model, optimizer, attached, step):
    reasons = []
    for _ in range(17):
        for parameter in (*model.gate.parameters(), *model.experts[1].parameters()):
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        reasons.append(attached.step_boundary().reason)
    assert set(reasons[:15]) == {""} and reasons[15] == reasons[16], reasons
    step()
    assert attached.step_boundary().reason == ""
    attached.check()
    return reasons[16]


class OneRankTest(ranks.RankTest):
    def test_another_optimizer_trains(self):
        self.assertIn("no attached optimizer made a step in 64 boundaries", self.of(another_optimizer))

    def test_an_expert_that_is_frozen_between_boundaries(self):
        self.assertIn("experts.2.0.weight\": requires_grad was True at attach and is False", self.of(frozen_later))

    def test_an_expert_without_state_is_named(self):
        self.assertEqual(self.of(an_expert_without_gradients), "rank 0 waits for the optimizer's state of experts.0.0.weight")

    def of(self, run):
        return self.succeed(1, alone, run)[0]

    def test_detached_leaves_nothing(self):
        self.of(detached_leaves_nothing)

    def test_what_cannot_be_adopted_ends_the_run_with_its_name(self):
        for how, words in (
                (lambda model, *_: model.to(torch.float64), "float64 [5, 3] on cpu in slot 0 now"),
                (replace_parameter, "experts.1.0.weight\": is another Parameter object"),
                (lambda _, optimizer, parameter: optimizer.state[parameter].update(extra=torch.zeros(5, 3)),
                 "layers.0.0.weight.extra\": has come into the optimizer's state"),
                (lambda _, optimizer, parameter: optimizer.state[parameter].pop("exp_avg"),
                 "layers.0.0.weight.exp_avg\": was registered and is no longer")):
            text, closed = self.of(go_wrong(how))
            self.assertIn(words, text)
            self.assertTrue(closed)

    def test_what_is_adopted(self):
        def other_moment(_model, optimizer, parameter):
            optimizer.state[parameter]["exp_avg"] = optimizer.state[parameter]["exp_avg"].clone()

        def other_memory(_model, optimizer, parameter):
            optimizer.state[parameter]["exp_avg"].data = torch.zeros(5, 3)

        def other_data(_model, _optimizer, parameter):
            parameter.data = parameter.data.clone()

        for how in (other_moment, other_memory, other_data):
            self.assertEqual(self.of(go_wrong(how)), ("", 1))


if __name__ == "__main__":
    unittest.main()
