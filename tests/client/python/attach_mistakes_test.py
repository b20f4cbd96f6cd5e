"""Mistakes of trainers that are attached: each is refused, or found by name before a second step is trained on moved experts.

Ranks are forked once for a table of mistakes, and make them one after the other.
"""

import os
import pathlib
import tempfile
import time
import unittest

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import eplb  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from checkpoint_test import write_placement  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torch_trainer import Gather, Scatter  # noqa: E402

EXPERTS, WIDTH, HIDDEN, TOKENS, WORLD = 8, 6, 10, 16, 4


class Gate(nn.Linear):
    def forward(self, x):
        return super().forward(x).softmax(dim=-1).topk(2, dim=-1)


class PlainGate(nn.Module):
    """A router that has no parameter by which the number of experts could be seen."""

    def forward(self, x):
        return torch.cat([x, -x], dim=1)[:, :EXPERTS].softmax(dim=-1).topk(2, dim=-1)


class Stack(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.w1, self.w2 = (nn.Parameter(torch.stack(each)) for each in zip(*weights))

    def one(self, slot, x):
        return nn.functional.gelu(x @ self.w1[slot]) @ self.w2[slot]


class Single(nn.Module):
    def __init__(self, w1, w2):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(w1), nn.Parameter(w2)


class List(nn.ModuleList):
    def __init__(self, weights):
        super().__init__(Single(*each) for each in weights)

    def one(self, slot, x):
        return nn.functional.gelu(x @ self[slot].w1) @ self[slot].w2


def in_order(number, ranks_in_group):
    """Returns (rank in the group, local slot) of a number that the router gives."""
    return divmod(number, EXPERTS // ranks_in_group)


def reversed_order(number, ranks_in_group):
    return in_order(EXPERTS - 1 - number, ranks_in_group)


def round_robin(number, ranks_in_group):
    return number % ranks_in_group, number // ranks_in_group


class MoE(nn.Module):
    def __init__(self, layer, group, place, make_experts, gate):
        super().__init__()
        self.group, rank, size = group, dist.get_rank(group), dist.get_world_size(group)
        self.slots = {number: place(number, size)[1] for number in range(EXPERTS) if place(number, size)[0] == rank}
        generators = [torch.Generator().manual_seed(100 * layer + number) for number in sorted(self.slots, key=self.slots.get)]
        self.gate = gate()
        self.experts = make_experts([(torch.randn(WIDTH, HIDDEN, generator=each) * 0.4, torch.randn(HIDDEN, WIDTH, generator=each) * 0.4)
                                     for each in generators])

    def forward(self, x):
        weights, chosen = self.gate(x)
        xs, ws = Gather.apply(self.group, x), Gather.apply(self.group, weights)
        chosen = Gather.apply(self.group, chosen)
        out = torch.zeros_like(xs)
        for number, slot in self.slots.items():
            out = out + ((chosen == number) * ws).sum(dim=1, keepdim=True) * self.experts.one(slot, xs)
        return x + Scatter.apply(self.group, out)


class Trainer:
    """A rank. ep: ranks of an EP group, which are neighbours."""

    def __init__(self, ep=WORLD, place=in_order, experts=Stack, gate=lambda: Gate(WIDTH, EXPERTS), make=torch.optim.AdamW):
        ep_groups = [dist.new_group(list(range(first, first + ep))) for first in range(0, WORLD, ep)]
        self.ep_group = ep_groups[dist.get_rank() // ep]
        torch.manual_seed(3)
        self.model = nn.Sequential(*(MoE(layer, self.ep_group, place, experts, gate) for layer in range(2)))
        self.optimizer = make(self.model.parameters(), lr=0.01)
        self.step, self.reasons = 0, []

    def batch(self):
        generator = torch.Generator().manual_seed(10 * self.step + dist.get_rank())
        return torch.randn(TOKENS, WIDTH, generator=generator) + torch.eye(WIDTH)[0]

    def attach(self, **options):
        given = {"ep_group": self.ep_group, "experts": "*.experts", "router": "gate", "vote_every": 2, "report_every": 4,
                 "check_batch": False, **options}
        self.attached = eplb.torch.attach(self.model, self.optimizer, **given)
        return self

    def backward(self):
        loss = (self.model(self.batch()) - 1).square().mean()
        loss.backward()

    def train(self, steps=1, optimizer=None, after=lambda: None):
        """Trains until the first switch, or so many steps. after: ahead of each boundary. returns: itself."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.backward()
            (optimizer or self.optimizer).step()
            after()
            if self.boundary().switched:
                break
        return self

    def boundary(self, pause=0.0):
        """Ends a step. The pause lets a daemon decide beside the steps."""
        time.sleep(pause)
        self.step += 1
        result = self.attached.step_boundary()
        self.reasons.append(result.reason)
        return result


class Lamb(torch.optim.AdamW):
    pass


class Shampoo(torch.optim.AdamW):
    """Keeps lists and nested dicts. Its name tells no more than those of others."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("factors", [torch.eye(each) for each in parameter.shape])


class Nested(torch.optim.AdamW):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("moments", {"third": torch.zeros_like(parameter)})


class Beside(torch.optim.SGD):
    """Keeps moments in an attribute, and nothing in `state`."""

    def __init__(self, parameters, lr, keyed=True):
        super().__init__(parameters, lr=lr)
        own = self.param_groups[0]["params"]
        self.moments = {each: torch.zeros(each.numel()) for each in own} if keyed else [torch.zeros_like(each) for each in own]


def without_ep_group():
    Trainer(ep=2).attach(ep_group=None)


def without_ep_group_and_a_router_that_shows_nothing():
    trainer = Trainer(ep=2, gate=PlainGate)
    trainer.attach(ep_group=None, check_batch=trainer.batch())


def another_order(place):
    def run():
        trainer = Trainer(place=place)
        trainer.attach(check_batch=trainer.batch())
    return run


def wrong_number_of_local_experts():
    Trainer().attach(num_local_experts=1)


def wrong_number_of_local_experts_with_a_batch():
    trainer = Trainer()
    trainer.attach(num_local_experts=1, check_batch=(trainer.batch(),))


def a_list_for_a_group():
    Trainer().attach(ep_group=[0, 1])


def one_parameter_in_two_models():
    trainer, second = Trainer(), Trainer()
    for layer, other in zip(trainer.model, second.model):
        other.experts.w1 = layer.experts.w1
    trainer.attach().train()
    del second


def trained_by(make, experts=Stack):
    def run():
        Trainer(make=make, experts=experts).attach().train()
    return run


def experts_whose_outputs_are_0():
    trainer = Trainer()
    for layer in trainer.model:
        nn.init.zeros_(layer.experts.w2)
    trainer.attach(check_batch=trainer.batch())


def a_forward_that_is_not_repeatable():
    trainer, calls = Trainer(), []

    def forward():
        calls.append(0)
        return trainer.model(trainer.batch()) * (1 + len(calls))

    trainer.attach(check_batch=forward)


def a_batch_on_one_rank():
    trainer = Trainer()
    trainer.attach(check_batch=trainer.batch() if dist.get_rank() == 1 else None)


def an_option_on_one_rank():
    Trainer().attach(**{} if dist.get_rank() else {"vote_every": "2"})


def moved_at_once():
    with tempfile.TemporaryDirectory() as directory:
        placement = write_placement(pathlib.Path(directory), WORLD, list(range(EXPERTS)))
        Trainer().attach(check_batch=None, initial_placement=placement)


def uneven_shards():
    trainer, mesh = Trainer(ep=1), init_device_mesh("cpu", (WORLD,))
    for layer in trainer.model:
        for name, parameter in list(layer.experts.named_parameters()):
            setattr(layer.experts, name, nn.Parameter(distribute_tensor(parameter.data[:6], mesh, [Shard(0)])))
    trainer.attach()


# A mistake, the error on the rank where it is made, and words of its message on all ranks.
REFUSED = (
    (without_ep_group, "InvalidArgument", "router of 0.experts: its weight is float32 [8, 6]", "16 experts that 4 ranks of ep_group"),
    (without_ep_group_and_a_router_that_shows_nothing, "InvalidArgument", "check_forward: with moved experts the outputs differ"),
    (another_order(reversed_order), "InvalidArgument", "in 0.experts, 1.experts: rank r of ep_group must hold experts r * n"),
    (another_order(round_robin), "InvalidArgument", "in 0.experts, 1.experts: rank r of ep_group must hold experts r * n"),
    (wrong_number_of_local_experts, "InvalidArgument", "no dimension of its parameters is the 4 experts"),
    (wrong_number_of_local_experts_with_a_batch, "InvalidArgument", "check_forward: with moved experts the outputs differ"),
    (a_list_for_a_group, "InvalidArgument", "ep_group is a list, expected a ProcessGroup"),
    (one_parameter_in_two_models, "InvalidArgument", ".experts: a Stack outside of the model has the same experts"),
    (trained_by(Lamb), "InvalidArgument", "0.experts.w1", "Lamb updates it by norms over several experts"),
    (trained_by(torch.optim.Adafactor), "InvalidArgument", "Adafactor updates it by norms over several experts"),
    (trained_by(Shampoo, List), "InvalidArgument", "0.experts.0.w1.factors", "the optimizer's state is a list"),
    (trained_by(Nested), "InvalidArgument", "0.experts.w1.moments", "the optimizer's state is a dict"),
    (trained_by(Beside), "InvalidArgument", "0.experts.w1", "Beside.moments holds a tensor of its size beside `state`"),
    (trained_by(lambda given, lr: Beside(given, lr, keyed=False), List), "InvalidArgument", "Beside.moments holds a tensor"),
    (a_batch_on_one_rank, "FailedPrecondition", "check_batch: rank 1 was given another than rank 0"),
    (an_option_on_one_rank, "InvalidArgument", "vote_every: '2', expected an integer"),
    (moved_at_once, "InvalidArgument", "initial_placement: experts would move at once, and no batch has shown yet"),
    (uneven_shards, "InvalidArgument", "0.experts.w1", "shards must be equal"),
    (experts_whose_outputs_are_0, "FailedPrecondition", "the outputs do not depend on which expert computes"),
    (a_forward_that_is_not_repeatable, "FailedPrecondition", "two forwards with one batch differ"))


def healthy(batch_of, **trainer_options):
    """Attaches a trainer without a mistake, and expects that its check passes and leaves no trace."""
    def run():
        trainer = Trainer(**trainer_options)
        trainer.model.register_buffer("seen", torch.zeros(1))

        def draw(*_):
            trainer.model.seen += torch.rand(1)

        handle = trainer.model[1].register_forward_hook(draw)
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        random = torch.get_rng_state()
        trainer.attach(check_batch=batch_of(trainer))
        assert torch.equal(random, torch.get_rng_state()) and trainer.model[0].training
        assert not trainer.attached.tokens_per_expert().any()
        trainer.attached.check_forward(batch_of(trainer), tolerance=0)
        trainer.attached.detach()
        for name, value in trainer.model.state_dict().items():
            assert torch.equal(value, before[name]), name
        handle.remove()
    return run


def trained_in_eval_mode():
    """Tokens count, because gradients are on."""
    trainer = Trainer()
    trainer.model.eval()
    trainer.attach(check_batch=trainer.batch())
    trainer.backward()
    assert int(trainer.attached.tokens_per_expert().sum()) == 2 * 2 * TOKENS
    trainer.attached.detach()


HEALTHY = (trained_in_eval_mode,
           healthy(lambda trainer: trainer.batch(), ep=2),
           healthy(lambda trainer: [trainer.batch()], experts=List, make=Lamb),
           healthy(lambda trainer: {"input": trainer.batch()}, gate=PlainGate),
           healthy(lambda trainer: lambda: {"loss": (trainer.model(trainer.batch()), None)}))


def before_the_step(trainer, steps):
    for _ in range(steps):
        trainer.optimizer.zero_grad()
        trainer.backward()
        trainer.boundary(0.05)
        trainer.optimizer.step()


def at_each_micro_batch(trainer, steps):
    """The optimizer steps behind the last one."""
    trainer.optimizer.zero_grad()
    for _ in range(steps):
        trainer.backward()
        trainer.boundary(0.05)
    trainer.optimizer.step()


def by_another_optimizer(trainer, steps):
    other = torch.optim.AdamW(trainer.model.parameters(), lr=0.01)
    trainer.train(steps, optimizer=other, after=lambda: time.sleep(0.05))


def held(mistake, words):
    """Makes a mistake for some steps in which nothing may move, then trains right until the first switch. returns: the
    number of steps until then."""
    def run(endpoint):
        trainer = Trainer().attach(endpoint=endpoint, job=mistake.__name__, first_step=0)
        trainer.train()
        mistake(trainer, 24)
        assert trainer.attached.client.placement.version == 0, trainer.reasons
        expected = f"VOTED_NO: rank {trainer.attached.client.options.rank}: {words}"
        refused = [reason for reason in trainer.reasons if reason]
        assert len(refused) > 4 and set(refused[1:]) == {expected}, trainer.reasons
        trainer.train(200, after=lambda: time.sleep(0.05))
        version = trainer.attached.client.placement.version
        trainer.attached.detach()
        assert version, trainer.reasons
    return run


def unverified(place, error=None):
    """Trains some steps before a batch has shown where experts are, in which nothing may move. error: words of what the check
    finds; None: it passes, and experts move."""
    def run(endpoint):
        trainer = Trainer(place=place).attach(endpoint=endpoint, job=f"unverified-{place.__name__}", check_batch=None)
        trainer.train(25, after=lambda: time.sleep(0.05))
        refused = {reason for reason in trainer.reasons if reason}
        assert len(refused) == 1 and "no batch has shown yet that expert e is in slot e" in refused.pop(), trainer.reasons
        try:
            trainer.attached.check_forward(trainer.batch())
            assert error is None, "the check has passed"
        except eplb.InvalidArgument as failure:
            assert error is not None and error in str(failure), failure
            trainer.train(8)
        else:
            trainer.train(200, after=lambda: time.sleep(0.05))
        version = trainer.attached.client.placement.version
        trainer.attached.detach()
        assert bool(version) == (error is None), trainer.reasons
    return run


def a_rate_of_its_own(trainer):
    """On one rank a scheduler changes it after attach."""
    if dist.get_rank() == 1:
        trainer.optimizer.param_groups[0]["lr"] = 0.02


def rates_by_expert(trainer):
    """The last expert's group gets another rate after attach."""
    trainer.optimizer.param_groups[1]["lr"] = 0.02


def grouped(parameters, lr):
    parameters = list(parameters)
    return torch.optim.AdamW([{"params": parameters[:-1]}, {"params": parameters[-1:]}], lr=lr)


def a_second_model(trainer):
    """Is made after the first step of the first one."""
    trainer.second = Trainer()
    trainer.second.model[0].experts = trainer.model[0].experts


def found_at_the_switch(mistake, **options):
    """Makes a mistake after the first step. The boundary that switches must name it."""
    def run(endpoint):
        trainer = Trainer(**options).attach(endpoint=endpoint, job=mistake.__name__)
        trainer.train()
        mistake(trainer)
        try:
            trainer.train(200, after=lambda: time.sleep(0.05))
        finally:
            assert trainer.attached.client.closed and trainer.attached.client.placement.version == 1
            assert not any(trainer.reasons), trainer.reasons
    return run


# Mistakes in the course of a training that vote no, and those that the first switch finds, with words of the error.
HELD = (unverified(in_order), *(unverified(place, "in 0.experts, 1.experts: rank r of ep_group must hold experts r * n")
                                for place in (reversed_order, round_robin)),
        held(before_the_step, "a forward ran between the optimizer's step and the boundary, and its gradients would not move"),
        held(at_each_micro_batch, "the optimizer has made no step since the last boundary"),
        held(by_another_optimizer, "the optimizer has made no step since the last boundary"))
FOUND = ((found_at_the_switch(a_rate_of_its_own), "optimizer's lr is 0.02 on rank 1 and 0.01 on rank 0"),
         (found_at_the_switch(rates_by_expert, experts=List, make=grouped), "optimizer's lr is 0.02 and 0.01 for 0.w2"),
         (found_at_the_switch(a_second_model), "0.experts: a MoE outside of the model has the same experts"))


def make_in_turn(rank, directory, mistakes, *arguments):
    dist.init_process_group("gloo", f"file://{directory}/gloo", rank=rank, world_size=WORLD)
    failures = []
    for mistake in mistakes:
        try:
            failures.append(mistake(*arguments))
        except Exception as error:
            failures.append(ranks.Failure(error))
    dist.destroy_process_group()
    return failures


class MistakesTest(ranks.RankTest):
    def make(self, mistakes, *arguments):
        """Returns, for each mistake, what each rank raised."""
        return list(zip(*self.succeed(WORLD, make_in_turn, self.directory, mistakes, *arguments)))

    def expect_no_failure(self, made):
        for number, failures in enumerate(made):
            for failure in failures:
                self.assertIsNone(failure, f"number {number}")

    def start(self):
        return f"127.0.0.1:{self.start_daemon().grpc_port}"


class RefusedTest(MistakesTest):
    def test_nothing_moves_and_the_mistake_is_named(self):
        made = self.make([mistake for mistake, *_ in REFUSED] + list(HEALTHY))
        for number, (mistake, kind, *words) in enumerate(REFUSED):
            with self.subTest(f"{number}: {mistake.__qualname__}"):
                for failure in made[number]:
                    self.assertIsInstance(failure, ranks.Failure)
                    self.assertTrue({kind, "FailedPrecondition"} & set(failure.classes), failure)
                    for word in words:
                        self.assertIn(word, failure.text)
        self.expect_no_failure(made[len(REFUSED):])


class DetectedTest(MistakesTest):
    def test_experts_stay_while_gradients_may_wait(self):
        self.expect_no_failure(self.make(HELD, self.start()))

    def test_the_first_switch_names_the_mistake(self):
        made = self.make([mistake for mistake, _ in FOUND], self.start())
        for (_, words), failures in zip(FOUND, made):
            for failure in failures:
                self.assertIsInstance(failure, ranks.Failure, words)
                self.assertIn(words, failure.text)


if __name__ == "__main__":
    unittest.main()
