"""The blocks of the pages about frameworks and serving engines, run where the framework can be had or something stands for it."""

import importlib.metadata
import os
import pathlib
import re
import sys
import time
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["EPLB_BUILD"])
os.environ.setdefault("EPLB_LIBRARY", str(BUILD / "lib" / "libeplb.so.0"))
os.environ.setdefault("EPLB_BIN", str(BUILD / "bin"))
os.environ.setdefault("EPLB_DATA", str(ROOT / "tests/data"))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
sys.path[:0] = [str(ROOT / each) for each in ("client/python", "tests/client/python")]

import engine_stand_ins  # noqa: E402
import ranks  # noqa: E402
import recipe_models as models  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from walkthrough import blocks_of  # noqa: E402

LANGUAGES = ("toml", "python", "text")
STEPS, SWITCHES = 40, 2  # a daemon gets time until there were so many switches; one must have been
ENDPOINT = "127.0.0.1:29610"  # as the pages say it


def blocks(page, language):
    """The blocks of a page, or of one section of it: "PAGE.md#HEADING"."""
    name, _, heading = page.partition("#")
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    if heading:
        text = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[1]
    return [block for block in blocks_of(text, LANGUAGES) if block.language == language]


class ServingEnginesTest(unittest.TestCase):
    """The page's lines beside modules that have the engines' names."""

    def setUp(self):
        self.policies, (self.algorithms, _) = engine_stand_ins.vllm(), engine_stand_ins.sglang()
        self.addCleanup(engine_stand_ins.remove)

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
        with_settings, launcher = blocks("serving-engines.md", "python")
        names = {}
        exec(compile(with_settings.code, "docs/serving-engines.md", "exec"), names)
        names["register"]()
        self.assertIsNotNone(self.policies["default"].rebalance_experts._daemon)

        started = []
        engine_stand_ins.module("sglang.launch_server", run_server=started.append)
        engine_stand_ins.module("sglang.srt.server_args", prepare_server_args=lambda arguments: arguments)
        for name in ("__mp_main__", "__main__"):  # as Python names the main file in a process that it spawns
            self.algorithms.rebalance_experts = engine_stand_ins.rebalance_experts
            exec(compile(launcher.code, "docs/serving-engines.md", "exec"), {"__name__": name})
            self.assertEqual(self.algorithms.rebalance_experts.__module__, "eplb.sglang")
        self.assertEqual(len(started), 1)


def code_of(page, endpoint):
    """The first Python block of a page, with the daemon of the test, which is asked more often than a page's job would."""
    often = f'"{endpoint}", vote_every=2, report_every=4'
    return compile(blocks(page, "python")[0].code.replace(f'"{ENDPOINT}"', often), f"docs/{page}", "exec")


def on_model(rank, directory, name, disabled, page, endpoint):
    """A page's lines on the model of recipe_models; a daemon gets time until experts have moved. returns: losses, switches, bits
    of the dense parameters."""
    os.environ["EPLB_DISABLE"] = "1" if disabled else "0"
    dist.init_process_group("gloo", f"file://{directory}/{name}", rank=rank, world_size=2)
    group, losses, versions = dist.new_group([0, 1]), [], set()
    model = models.build(group)

    def ready(_):
        client = getattr(names.get("attached"), "client", None)
        if client is not None:
            versions.add(client.placement.version)
            time.sleep(0.01 if len(versions) > SWITCHES else 0.3)

    def loss_of(model, batch):
        loss = models.loss_of(model, batch)
        losses.append(float(loss.detach()))
        return loss

    # Names that the page's lines expect of the trainer around them.
    names = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01), "ep_group": group, "loss_of": loss_of,
             "reduce_gradients": models.reduce_gradients, "inputs": next(models.batches(1))[0], "batches": models.batches(STEPS, ready),
             "path": directory / f"{name}-{rank}.pt"}
    exec(code_of(page, endpoint), names)
    # After detach every expert is in its own slot.
    return losses, len(versions) - 1, {key: value.numpy().tobytes() for key, value in model.state_dict().items()}


class RecipesTest(ranks.RankTest):
    """Each page's lines, in a trainer around them, with EPLB and with EPLB_DISABLE=1."""

    def both(self, function, *arguments):
        still = self.succeed(2, function, self.directory, "still", True, *arguments)
        moved = self.succeed(2, function, self.directory, "moved", False, *arguments)
        for one, other in zip(still, moved):
            self.assertGreaterEqual(other[1], 1)
            self.assertGreaterEqual(len(one[0]), STEPS)
            self.assertEqual(len(one[0]), len(other[0]))
            self.assertLess(one[0][-1], one[0][0])
        return still, moved

    def equal(self, function, *arguments):
        still, moved = self.both(function, *arguments)
        for one, other in zip(still, moved):
            self.assertEqual(one[0], other[0])
            self.assertEqual([key for key in one[2] if one[2][key] != other[2][key]], [])

    def endpoint(self):
        return f"127.0.0.1:{self.start_daemon().grpc_port}"

    def test_the_lines_of_the_front_page(self):
        self.equal(on_model, "../README.md", self.endpoint())

    def test_plain_pytorch_by_the_optimizer(self):
        self.equal(on_model, "frameworks.md#Plain PyTorch", self.endpoint())

    def test_every_python_block_of_these_pages_is_run_by_a_test(self):
        run = {"frameworks.md#Plain PyTorch": 1, "frameworks.md#torchtitan": 1, "frameworks.md#transformers": 2,
               "frameworks.md#DeepSpeed": 1, "quickstart-megatron.md": 1, "../README.md": 1, "serving-engines.md": 2}
        self.assertEqual({page: len(blocks(page, "python")) for page in run}, run)
        self.assertEqual(len(blocks("frameworks.md", "python")), sum(count for page, count in run.items() if "frameworks" in page))


if __name__ == "__main__":
    unittest.main()
