"""Refusals of the adapters of torchtitan and transformers, without these frameworks. tests/frameworks trains the real packages."""

import importlib.util
import os
import types
import unittest
from unittest import mock

import eplb
import eplb.torchtitan
import eplb.transformers
from torch import nn


def trainer(**parts):
    """torchtitan's, with expert parallelism and without a layer. parts: replaced ones; None: without it."""
    dims = types.SimpleNamespace(ep_enabled=True, get_mesh=None, get_optional_mesh=None)
    given = {"model_parts": [nn.Linear(2, 2)], "optimizers": [], "parallel_dims": dims, **parts}
    return types.SimpleNamespace(**{name: part for name, part in given.items() if part is not None})


class Model(nn.Module):
    """One that transformers has distributed."""

    def __init__(self, plan, ep_size=2, mesh=None):
        super().__init__()
        self.experts, self._ep_plan, self._mesh_manager = nn.Linear(2, 2), plan, mesh
        self.config = types.SimpleNamespace(distributed_config=types.SimpleNamespace(ep_size=ep_size))

    def _expand_parallel_plan(self, plan):
        return plan


class DisabledTest(unittest.TestCase):
    def test_nothing_is_done(self):
        model = Model({"experts": "ep_dispatch_experts"}, mesh=types.SimpleNamespace(get_mesh=lambda name: None))
        with mock.patch.dict(os.environ, EPLB_DISABLE="1"), eplb.transformers.attach(model) as attached:
            self.assertIsNone(attached.client)
        self.assertFalse("save_pretrained" in model.__dict__ or model.experts._forward_pre_hooks)


class RefusedTest(unittest.TestCase):
    def refused(self, attach, cases):
        for given, words in cases:
            with self.subTest(words), self.assertRaisesRegex(eplb.InvalidArgument, words):
                attach(given, endpoint="127.0.0.1:1", job="refused")

    def test_torchtitan(self):
        cases = [(trainer(parallel_dims=types.SimpleNamespace(ep_enabled=False)), "set parallelism.expert_parallel_degree"),
                 (trainer(parallel_dims=None), r"has no SimpleNamespace.parallel_dims .*tested with 0.3.0 \(docs/frameworks.md\)"),
                 (trainer(checkpointer=types.SimpleNamespace(enable=True)), "has no SimpleNamespace._should_save")]
        if importlib.util.find_spec("torchtitan") is None:
            cases.append((trainer(), "^torchtitan .not installed. has no torchtitan.models.common.moe.RoutedExperts"))
        self.refused(eplb.torchtitan.attach, cases)

    def test_transformers(self):
        self.refused(eplb.transformers.attach, [
            (nn.Linear(2, 2), "^transformers .* has no Linear._mesh_manager .*tested with 5.23.0"),
            (Model({}), "^Model was loaded without expert parallelism: .*ep_size="),
            (Model({}, ep_size=1, mesh=object()), "^Model was loaded without expert parallelism"),
            (Model({"experts": "grouped_gemm"}, mesh=object()), "^Model: no module of its ep_plan has the style .ep_dispatch_experts."),
            (Model({"experts": "ep_dispatch_experts"}, mesh=object()), "has no object.get_mesh")])


if __name__ == "__main__":
    unittest.main()
