"""eplb.torch attached on one rank: what is adopted, what ends the run by name, what detach leaves."""

import unittest

import eplb
import torch
from torch import nn

import ranks
from torch_parts_test import EXPERTS, single


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
    attached = eplb.torch.attach(model, optimizer, experts="experts", router="gate", vote_every=2, report_every=2,
                                  check_batch=torch.randn(8, 3))

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
    with attached.static_order():  # a trainer saves as before
        optimizer.state_dict()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, values[name])
        assert parameter.data.storage().size() == parameter.numel(), f"{name} is a part of other memory"
        assert optimizer.state[parameter]["exp_avg"].storage().size() == parameter.numel()
    assert not any(module._forward_hooks or module._forward_pre_hooks or module._state_dict_hooks
                   or module._load_state_dict_pre_hooks for module in model.modules())
    assert not {"state_dict", "load_state_dict"} & set(optimizer.__dict__)
    again = eplb.torch.attach(model, optimizer, experts=nn.ModuleList, router=lambda around: around.gate, boundary="optimizer",
                               check_batch=False)
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
        model(torch.randn(8, 3))
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
                (lambda _, optimizer, parameter: optimizer.state[parameter].update(late=[torch.zeros(5, 3)]),
                 "experts.1.0.weight.late\": the optimizer's state is a list"),
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
