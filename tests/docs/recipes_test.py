"""The blocks of the pages about frameworks and serving engines, run where the framework can be had or something stands for it."""

import importlib.metadata
import os
import pathlib
import sys
import tomllib
import types
import unittest

from walkthrough import blocks_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["EPLB_BUILD"])
os.environ.setdefault("EPLB_LIBRARY", str(BUILD / "lib" / "libeplb.so.0"))
sys.path.insert(0, str(ROOT / "client/python"))
LANGUAGES = ("toml", "python", "text")
BLOCK_SECONDS = 120


def blocks(page, language):
    return [block for block in blocks_of((ROOT / "docs" / page).read_text(encoding="utf-8"), LANGUAGES)
            if block.language == language]


class ServingEnginesTest(unittest.TestCase):
    """The page's lines beside modules that have the engines' names."""

    def stand_in(self, name, **attributes):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                module = sys.modules[path] = types.ModuleType(path)
                module.__path__ = []
                self.addCleanup(sys.modules.pop, path, None)
                if end > 1:
                    setattr(sys.modules[".".join(parts[:end - 1])], parts[end - 1], module)
        sys.modules[name].__dict__.update(attributes)
        return sys.modules[name]

    def setUp(self):
        class AbstractEplbPolicy:
            __abstractmethods__ = frozenset({"rebalance_experts"})

            @classmethod
            def rebalance_experts(cls, weight, num_replicas, num_groups, num_nodes, num_ranks) -> tuple:
                """Of the abstract class."""

        self.policies = {"default": None}
        self.stand_in("vllm.distributed.eplb.policy", EPLB_POLICIES=self.policies, AbstractEplbPolicy=AbstractEplbPolicy)
        self.algorithms = self.stand_in("sglang.srt.eplb.eplb_algorithms", rebalance_experts=lambda **given: "own")
        self.stand_in("sglang.srt.eplb.expert_location", get_global_expert_location_metadata=lambda: None)

    def test_entry_points_are_functions_that_register(self):
        groups = {}
        for block in blocks("serving-engines.md", "toml"):
            for group, points in tomllib.loads(block.code)["project"]["entry-points"].items():
                for name, value in points.items():
                    importlib.metadata.EntryPoint(name, value, group).load()()
                    groups[group] = name
        self.assertEqual(groups, {"vllm.general_plugins": "eplb", "sglang.srt.plugins": "eplb"})
        self.assertEqual(self.policies["default"].__module__, "eplb.vllm")
        self.assertEqual(self.algorithms.rebalance_experts.__module__, "eplb.sglang")

    def test_functions_with_settings_register(self):
        with_settings, launcher, with_incumbent = blocks("serving-engines.md", "python")
        names = {}
        exec(compile(with_settings.code, "docs/serving-engines.md", "exec"), names)
        names["register"]()
        self.assertEqual((self.policies["default"].policy, self.policies["default"].effort), ("incremental", "fast"))
        exec(compile(with_incumbent.code, "docs/serving-engines.md", "exec"), {})
        self.assertEqual(self.algorithms.rebalance_experts.__module__, "eplb.sglang")
        del self.algorithms.rebalance_experts._eplb_own

        started = []
        self.stand_in("sglang.launch_server", run_server=started.append)
        self.stand_in("sglang.srt.server_args", prepare_server_args=lambda arguments: arguments)
        for name in ("__mp_main__", "__main__"):  # as Python names the main file in a process that it spawns
            self.algorithms.rebalance_experts = lambda **given: "own"
            exec(compile(launcher.code, "docs/serving-engines.md", "exec"), {"__name__": name})
            self.assertEqual(self.algorithms.rebalance_experts.__module__, "eplb.sglang")
        self.assertEqual(len(started), 1)


if __name__ == "__main__":
    unittest.main()
