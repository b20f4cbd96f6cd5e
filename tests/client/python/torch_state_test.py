"""State and calls of optimizers for experts, without ranks."""

import types
import unittest

import eplb
import torch
from torch import nn

from eplb.torch import alike, calls, layers, memory_watch, pieces, state
from torch_parts_test import EXPERTS, Listed


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
        return memory_watch.Watch([self.layer], self.state, [*rows, *self.state.tensors(self.layer)])


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


    def test_state_of_one_element_is_watched(self):
        parts = Parts()
        for parameter in parts.layer.parameters():
            parameter.data = parameter.data.flatten()[:1].clone()
        parts.step()
        seen = parts.watch()
        parts.optimizer.state[parts.parameter()]["step"] = torch.tensor(1.0)  # a number is no row
        self.assertTrue(seen.intact())
        parts.optimizer.state[parts.parameter()]["exp_avg"] = torch.ones(1)
        self.assertFalse(seen.intact())

    def test_attributes_that_hold_no_state(self):
        parts = Parts(torch.optim.SGD)
        parts.optimizer.cache = {"all": parts.optimizer.param_groups[0]["params"], "norm": torch.zeros(1), "model": parts.model,
                                 "grads": [parameter.grad for parameter in parts.model.parameters()], "dense": torch.zeros(77)}
        parts.state.expect_understood([parts.layer])
        parts.optimizer.cache["deep"] = [{"er": (None, [torch.zeros_like(parts.parameter())])}]
        with self.assertRaisesRegex(eplb.InvalidArgument, r"experts.*SGD.cache holds a tensor of its size beside `state`"):
            parts.state.expect_understood([parts.layer])


class AlikeTest(unittest.TestCase):
    def test_a_frozen_expert_is_named_as_such_rather_than_by_options_that_it_lacks(self):
        parts = Parts()
        parts.parameter().requires_grad_(False)
        group = parts.optimizer.param_groups[0]
        group["params"] = [each for each in group["params"] if each.requires_grad]
        parts.state.renew()
        with self.assertRaisesRegex(eplb.InvalidArgument, r"experts.1.0.weight\": requires_grad is False and True for 0.0.weight"):
            alike.expect_alike([parts.layer], parts.state)

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

    def test_why_experts_must_stay(self):
        forwards = [0]
        steps = calls.Steps(self.calls, clock=lambda: forwards[0])
        first, second = (optimizer.step for optimizer in self.optimizers)

        def forward():
            forwards[0] += 1

        for number, (events, words) in enumerate((
                ((forward, first, second), ""), ((forward, forward, second, first, first), ""), ((), "2 of 2 attached optimizers"),
                ((forward, first), "1 of 2 attached optimizers have made no step since"),
                ((first, forward, second), ""), ((first, second, forward), "a forward ran"))):
            with self.subTest(number):
                for event in events:
                    event()
                found = steps.why_not_move()
                self.assertTrue(found.startswith(words) and bool(found) == bool(words), found)
                steps.end_boundary()
        self.assertEqual(calls.Steps([]).why_not_move(), "")

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

if __name__ == "__main__":
    unittest.main()
