"""Attached blocks within torch.compile: one graph, no recompile after a switch, counts exact under activation checkpointing."""

import os
import unittest

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # ranks are forked

import eplb  # noqa: E402
import numpy as np  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch._dynamo.utils  # noqa: E402
import torch_attach_test as attaching  # noqa: E402
import torch_trainer as trainers  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from eplb.torch import routing  # noqa: E402

EXPERTS, WIDTH, TOKENS, STEPS = 8, 12, 40, 40


def num_graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class Gate(nn.Linear):
    """(weights, indices), [tokens, 2] each."""

    def forward(self, x):
        return super().forward(x).softmax(dim=1).topk(2, dim=1)


class MoE(nn.Module):
    """Tokens travel by slot number, and a token's two experts are added in top-k order."""

    auxiliary = 0.0

    def __init__(self, group):
        super().__init__()
        self.group, self.ep = group, torch.distributed.get_world_size(group)
        self.gate, self.experts = Gate(WIDTH, EXPERTS), trainers.Experts(EXPERTS // self.ep)

    def forward(self, x):
        weights, slots = self.gate(x)
        chosen = nn.functional.one_hot(slots.reshape(-1), EXPERTS)
        place = (chosen.cumsum(dim=0) - 1).gather(1, slots.reshape(-1, 1))
        mask = chosen.unsqueeze(2) * nn.functional.one_hot(place, 2 * TOKENS)
        leaving = torch.einsum("sec,sm->ecm", mask.type_as(x), x.repeat_interleave(2, dim=0))
        arrived = trainers.AllToAll.apply(self.group, leaving).view(self.ep, -1, *leaving.shape[1:])
        back = trainers.AllToAll.apply(self.group, self.experts(arrived).reshape(leaving.shape))
        return (torch.einsum("sec,ecm->sm", mask.type_as(x), back).view(-1, 2, WIDTH) * weights.unsqueeze(2)).sum(dim=1)


class Block(nn.Module):
    def __init__(self, group, _k, _drop):
        super().__init__()
        self.norm, self.moe = nn.LayerNorm(WIDTH), MoE(group)

    def body(self, x):
        return x + self.moe(self.norm(x))

    def forward(self, x):
        return self.body(x)


class CheckpointInside(Block):
    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False)


class CheckpointAround(Block):
    reentrant = False

    def compile(self, **options):
        self.body = torch.compile(self.body, **options)

    def forward(self, x):
        return checkpoint(self.body, x if x.requires_grad else x.clone().requires_grad_(), use_reentrant=self.reentrant)


class ReentrantAround(CheckpointAround):
    reentrant = True


def check_counts_and_graphs(trainer):
    """Each layer has counted two choices of each token, and no graph is made after the third step."""
    if trainer.attached is not None:
        assert trainer.attached.tokens_per_expert().sum(dim=1).tolist() == [2 * TOKENS] * trainers.LAYERS
        if trainer.step == 2:
            trainer.num_graphs = num_graphs()
        if trainer.step > 2:
            assert num_graphs() == trainer.num_graphs, "a switch, or anything else, made a graph anew"
    assert trainer.step == 0 or num_graphs() > 0


class CompiledTest(attaching.AttachTestCase):
    """Two ranks with a daemon, with and without EPLB."""

    def succeed(self, world, function, *arguments):
        return super().succeed(world, function, *arguments, seconds=5 * ranks.DEADLINE)  # inductor runs g++ for each kernel

    def expect_equal(self, backend, blocks):
        parent = self.directory
        for block in blocks:
            self.directory = parent / block.__name__
            self.directory.mkdir()
            with self.subTest(block=block.__name__):
                attaching.AttachTest.expect_equal(self, steps=STEPS, after=check_counts_and_graphs, block=block,
                                                  compiled={"backend": backend, "fullgraph": True})

    def test_aot_eager(self):
        self.expect_equal("aot_eager", (Block, CheckpointInside, CheckpointAround, ReentrantAround))

    def test_inductor(self):
        self.expect_equal("inductor", (CheckpointInside, CheckpointAround))


class OneProcessTest(unittest.TestCase):
    def expect_exact(self, backend):
        for reentrant, inside in ((None, False), (False, True), (False, False), (True, False)):
            for layout in ("indices", "masks", "map"):
                with self.subTest(reentrant=reentrant, inside=inside, layout=layout):
                    torch._dynamo.reset()
                    self.train(backend, layout, reentrant, inside)

    def train(self, backend, layout, reentrant, inside):
        columns = routing.SlotColumns("moe", EXPERTS, torch.device("cpu"))
        gate = {"indices": Gate, "masks": MaskGate, "map": MapGate}[layout](WIDTH, EXPERTS)
        routing.RouterHook(columns, gate, None)

        def body(x):
            weights, chosen = gate(x)
            return (weights * (chosen if layout == "masks" else chosen + 1)).reshape(x.shape[0], -1).sum(dim=1)

        def run(x):
            return checkpoint(body, x, use_reentrant=reentrant) if inside else body(x)

        compiled, graphs = torch.compile(run, backend=backend, fullgraph=True), 0
        for step in range(5):
            x = torch.randn(TOKENS, WIDTH, requires_grad=True)
            columns.set_slots(np.random.RandomState(step).permutation(EXPERTS))
            columns.ledger.zero_()
            with torch.no_grad():  # an evaluation, which counts nothing
                compiled(x)
            around, forwards = reentrant is not None and not inside, columns.ledger._version
            (checkpoint(compiled, x, use_reentrant=reentrant) if around else compiled(x)).sum().backward()
            self.assertGreater(columns.ledger._version, forwards)  # by which a boundary sees that gradients may wait
            found = columns.counts.tolist()
            graphs = graphs or num_graphs()
            expected = torch.bincount(nn.Linear.forward(gate, x).topk(2, dim=1).indices.reshape(-1), minlength=EXPERTS)
            self.assertEqual(found, expected.tolist())
            self.assertEqual(num_graphs(), graphs)

    def test_counts_are_exact_with_aot_eager(self):
        self.expect_exact("aot_eager")

    def test_counts_are_exact_with_inductor(self):
        self.expect_exact("inductor")


class MapGate(nn.Linear):
    """(probs, routing_map), [tokens, experts] each."""

    def forward(self, x):
        probs = super().forward(x).softmax(dim=1)
        return probs, nn.functional.one_hot(probs.topk(2, dim=1).indices, EXPERTS).sum(dim=1).bool()


class MaskGate(MapGate):
    """(combine weights, dispatch mask), [tokens, experts, 1] each."""

    def forward(self, x):
        probs, chosen = super().forward(x)
        return (probs * chosen).unsqueeze(2), chosen.unsqueeze(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = Gate(WIDTH, EXPERTS), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x):
        return x + self.gate(x)[0].sum() * sum(expert(x) for expert in self.experts)


class AttachAfterTest(unittest.TestCase):
    def test_attach_after_a_compiled_forward_is_refused(self):
        def whole(model):
            return torch.compile(model, backend="eager")

        def in_place(model):
            model.compile(backend="eager")
            return model

        def router(model):
            model.gate.compile(backend="eager")
            return model

        def function(model):
            return torch.compile(lambda x: 2 * model(x), backend="eager")

        for compile_it, holder in ((whole, "the model"), (in_place, "the model"), (router, "gate"), (function, ".lambda.")):
            torch._dynamo.reset()
            model = Model()
            compiled = compile_it(model)
            options = {"experts": "experts", "router": "gate"}
            eplb.torch.attach(model, **options).detach()  # nothing was compiled until now
            compiled(torch.randn(3, WIDTH))
            with self.assertRaisesRegex(eplb.FailedPrecondition, f"the router gate is in a compiled graph of {holder} already, "):
                eplb.torch.attach(model, **options)
            torch._dynamo.reset()
            attached = eplb.torch.attach(model, **options)
            compiled(torch.randn(3, WIDTH))
            self.assertEqual(attached.tokens_per_expert().sum(), 6)
            attached.detach()

    def test_the_graph_of_another_model_without_hooks_is_not_run(self):
        torch._dynamo.reset()
        model, other = Model(), Model()
        attached = eplb.torch.attach(model, experts="experts", router="gate")
        for each in (other, model, other, model):
            each.compile(backend="eager")
            each(torch.randn(3, WIDTH))
        self.assertEqual(attached.tokens_per_expert().sum(), 12)
        attached.detach()


if __name__ == "__main__":
    unittest.main()
