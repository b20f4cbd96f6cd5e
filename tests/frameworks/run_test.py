"""The runner without a checkout: what it refuses, its rows and table, the comparison, and the collectives that stand in."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "client/python")]

import boundary  # noqa: E402
import compare  # noqa: E402
import ranks  # noqa: E402
import table  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

loader = importlib.machinery.SourceFileLoader("frameworks_run", str(HERE / "run"))
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("frameworks_run", loader))
loader.exec_module(run)


def result(losses=(0.5,), switches=(3,), **digests):
    return {"losses": [value.hex() for value in losses], "switches": list(switches), "digests": digests}


class RunnerTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-run-")))

    def megatron(self, major, minor, patch):
        info = self.directory / "megatron/core/package_info.py"
        info.parent.mkdir(parents=True, exist_ok=True)
        info.write_text(f"MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = ''\n")
        return self.directory

    def call(self, *arguments):
        """returns: (exit, stdout, stderr) of run."""
        out, error = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", ["run", *map(str, arguments)]), contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(error):
            try:
                status = run.main()
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), error.getvalue()

    def test_a_directory_that_is_neither_is_refused_in_a_line(self):
        (self.directory / "version.txt").write_text("0.14.4")
        for directory in (self.directory, self.directory / "missing"):
            status, out, error = self.call(directory)
            self.assertEqual((status, out), (2, ""))
            self.assertRegex(error, r"^tests/frameworks/run: \S+: neither Megatron-LM \(.*\) nor DeepSpeed \(.*\)\n$")

    def test_versions_are_read_and_choose_rows(self):
        self.assertEqual(run.framework_of(self.megatron(0, 16, 1)), ("megatron", (0, 16, 1), "0.16.1"))
        old, new = (self.call(self.megatron(0, minor, 0), "--list")[1].splitlines() for minor in (16, 19))
        self.assertEqual([name for name in old if name not in new], ["EP2 GroupedMLP"])
        self.assertGreaterEqual(len(old), 12)
        self.assertEqual({tuple(row["hollow"]) for row in table.rows_of("megatron", (0, 18, 0))}, {("triton",)})
        self.assertEqual([row for row in table.rows_of("megatron", (0, 17, 1)) if "hollow" in row], [])
        deepspeed = self.directory / "ds"
        (deepspeed / "deepspeed/moe").mkdir(parents=True)
        (deepspeed / "deepspeed/moe/layer.py").write_text("")
        (deepspeed / "version.txt").write_text("0.14.4\n")
        self.assertEqual(run.framework_of(deepspeed), ("deepspeed", (0, 14, 4), "0.14.4"))

    def test_bad_usage_is_named(self):
        self.megatron(0, 16, 1)
        self.assertIn("--rows nothing: no row of megatron 0.16.1", self.call(self.directory, "--rows", "nothing")[2])
        self.assertIn("/bin/false cannot import torch", self.call(self.directory, "--python", "/bin/false")[2])
        with mock.patch.dict(os.environ, EPLB_BIN=str(self.directory)):
            self.assertIn("eplbd: not there; set EPLB_BIN", self.call(self.directory)[2])

    def test_the_table_counts_equal_rows_and_the_exit_says_whether_all_are(self):
        self.megatron(0, 16, 1)
        trained = []

        def train(python, script, checkout, directory, name, row):
            trained.append((script, name, row.get("endpoint")))
            if "fp32" in row["name"] and name == "on":
                raise run.Failed("rank 1: RuntimeError: so")
            return [result(x="a", switches=(2, 5) if name == "on" else ())] * 2

        daemon = mock.Mock(**{"return_value.endpoint": "127.0.0.1:1"})
        with mock.patch.object(run, "train", train), mock.patch.object(run, "Daemon", daemon):
            status, out, _ = self.call(self.directory, "--rows", "SequentialMLP|fp32", "--steps", "7")
            self.assertEqual(status, 1)
            self.assertRegex(out, r"(?m)^EP2 bf16 SequentialMLP alltoall +7 +2 +0  equal$")
            self.assertRegex(out, r"(?m)^EP2 fp32 +7 +0 +0  failed: rank 1: RuntimeError: so$")
            self.assertIn("1 of 2 rows equal", out)
            self.assertEqual(self.call(self.directory, "--rows", "SequentialMLP")[0], 0)
        self.assertEqual(trained[:2], [("megatron_training.py", "off", None), ("megatron_training.py", "on", "127.0.0.1:1")])
        self.assertEqual(daemon.return_value.close.call_count, 3)

    def test_a_rank_that_fails_ends_the_others_with_its_last_line(self):
        script = self.directory / "script.py"
        script.write_text("import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit('it is one')\ntime.sleep(60)\n")
        with self.assertRaisesRegex(run.Failed, "^rank 1: it is one$"):
            run.train(sys.executable, script, self.directory, self.directory, "off", {"world": 2})


class CompareTest(unittest.TestCase):
    def test_what_is_equal_and_what_is_not(self):
        off = [result(x="a", y="b", switches=()), result(x="a", z="c", switches=())]
        on = [result(x="a", z="c"), result(x="a", y="b")]
        self.assertEqual(compare.difference(off, on), "")
        for changed, message in (
                ([result((0.5000000000000001,), x="a", z="c"), on[1]], r"^rank 0 loss 0: 0\.5000000000000001, expected 0\.5$"),
                ([result((0.5, 0.5), x="a", z="c"), on[1]], "^rank 0 has 2 losses, expected 1$"),
                ([result(x="a", z="c"), result(x="a", y="other")], "^1 of 3 tensors differ, first y$"),
                ([result(x="a", z="c"), result(x="other", y="b")], r"^copies of x differ \(rank 1\)$"),
                ([result(x="a"), result(x="a", y="b")], "^1 tensors in one training alone, first z$"),
                ([result(x="a", z="c", switches=()), on[1]], "^experts did not move$")):
            with self.subTest(message):
                self.assertRegex(compare.difference(off, changed), message)
        self.assertEqual(compare.difference([result()], [result()]), "nothing was compared")
        self.assertEqual(compare.difference([result((float("nan"),), x="a")], [result((float("nan"),), x="a")]), "")

    def test_tensors_are_named_by_logical_expert(self):
        held = {"module.layers.1.mlp": [5, 2], "module.layers.11.mlp": [0, 1]}
        one, rows = torch.ones(2), torch.arange(8.0).reshape(4, 2)
        for name, tensor, keys in (
                ("module.layers.1.mlp.experts.local_experts.0.linear_fc1.weight", one,
                 ["module.layers.1.mlp.experts.local_experts.<5>.linear_fc1.weight"]),
                ("module.layers.11.mlp.experts.local_experts.1.linear_fc1.weight.exp_avg", one,
                 ["module.layers.11.mlp.experts.local_experts.<1>.linear_fc1.weight.exp_avg"]),
                ("module.layers.1.mlp.experts.linear_fc2.weight1.master", one,
                 ["module.layers.1.mlp.experts.linear_fc2.weight<2>.master"]),
                ("module.layers.1.mlp.experts.weight1", rows,
                 ["module.layers.1.mlp.experts.weight1<5>", "module.layers.1.mlp.experts.weight1<2>"]),
                ("module.layers.1.mlp.experts.weight1.step", torch.tensor(3.0), ["module.layers.1.mlp.experts.weight1.step"]),
                ("module.layers.1.mlp.shared_experts.fc1.weight", one, ["module.layers.1.mlp.shared_experts.fc1.weight"]),
                ("module.layers.1.mlp.router.weight", rows, ["module.layers.1.mlp.router.weight"])):
            self.assertEqual([key for key, _ in compare.pieces(name, tensor, held)], keys)
        of_all = dict(compare.pieces("module.layers.1.mlp.experts.weight1", rows, held))
        self.assertEqual(of_all["module.layers.1.mlp.experts.weight1<2>"].tolist(), [4, 5, 6, 7])

    def test_a_digest_is_of_every_bit(self):
        plain = torch.tensor([0.0, 1.0])
        self.assertEqual(compare.digest(plain), compare.digest(plain.reshape(2, 1).clone()))
        for other in (torch.tensor([-0.0, 1.0]), plain.to(torch.float64), plain.view(torch.int32), plain[:1]):
            self.assertNotEqual(compare.digest(plain), compare.digest(other))
        compare.digest(torch.ones(3, dtype=torch.bfloat16)), compare.digest(torch.tensor(1))


def stand_ins(rank, directory):
    """Every collective that stands in, beside what it has to give."""
    boundary.collectives_of_gloo()
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=2)
    small = torch.tensor([1.0 + rank, 2.0], dtype=torch.bfloat16)
    total, mean = small.clone(), torch.tensor([4.0 * rank])
    dist.all_reduce(total)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    gathered = [torch.empty_like(small) for _ in range(2)]
    dist.all_gather(gathered, small)
    flags = [torch.zeros(1, dtype=torch.bool) for _ in range(2)]
    assert dist.all_gather(flags, torch.tensor([rank == 1]), async_op=True).wait()
    uneven, mine = [torch.empty(0, 2), torch.empty(2, 2)], torch.empty(2 * rank, 2)
    dist.all_gather(uneven, torch.full((2 * rank, 2), 7.0))
    dist.reduce_scatter(mine, [torch.ones(0, 2), torch.ones(2, 2)])
    assert uneven[1].tolist() == [[7.0, 7.0]] * 2 and mine.tolist() == [[2.0, 2.0]] * 2 * rank
    whole, part = torch.empty(4), torch.empty(1)
    dist.all_gather_into_tensor(whole, small.float())
    dist.reduce_scatter_tensor(part, torch.tensor([1.0, 10.0]) + rank)
    # Each rank sends one row to rank 0 and two to rank 1.
    sent, got = torch.arange(3.0) + 10 * rank, torch.empty(2 if rank == 0 else 4)
    dist.all_to_all_single(got, sent, [1, 1] if rank == 0 else [2, 2], [1, 2])
    nothing = torch.empty(0)
    dist.all_to_all_single(nothing, torch.empty(0), [0, 0], [0, 0])
    shards = {"even": [(2 * rank, torch.tensor([1.0, 2.0]) + rank)], "mine": [(0, torch.ones(3))] if rank else []}
    digests = compare.digests_of_shards(shards)
    error = ""
    try:
        compare.digests_of_shards({"torn": [(3 * rank, torch.ones(2))]})
    except ValueError as hole:
        error = str(hole)
    return (total.tolist(), mean.tolist(), [each.tolist() for each in gathered], [each.item() for each in flags],
            whole.tolist(), part.tolist(), got.tolist(), digests, error)


class BoundaryTest(ranks.RankTest):
    def test_collectives_that_gloo_lacks(self):
        first, second = self.succeed(2, stand_ins, self.directory)
        for one in (first, second):
            self.assertEqual(one[:5], ([3.0, 4.0], [2.0], [[1.0, 2.0], [2.0, 2.0]], [False, True], [1.0, 2.0, 2.0, 2.0]))
            self.assertEqual(one[7], {"even": compare.digest(torch.tensor([1.0, 2.0, 2.0, 3.0])),
                                      "mine": compare.digest(torch.ones(3))})
            self.assertEqual(one[8], "torn: elements 2..3 are on no rank, or on two")
        self.assertEqual((first[5], second[5]), ([3.0], [21.0]))
        self.assertEqual((first[6], second[6]), ([0.0, 10.0], [1.0, 2.0, 11.0, 12.0]))

    def test_hollow_modules_can_be_used_in_definitions(self):
        self.succeed(1, use_hollow)


def use_hollow(_):
    boundary.install(["triton"])
    import triton
    import triton.language as tl
    from torch.distributed.tensor import DTensor

    @triton.jit
    def kernel(x: tl.constexpr):
        return x

    @triton.autotune(configs=[triton.Config({}, num_warps=4)], key=["x"])
    @triton.jit(launch_metadata=None)
    def tuned(x: "tl.tensor | None" = None):
        return x

    class Piece(DTensor):
        """Inherited from."""

    assert not isinstance(torch.ones(1), DTensor) and issubclass(Piece, DTensor)
    assert torch.zeros(2, device="cuda").device.type == "cpu" and torch.ones(1).cuda().to("cuda:0").device.type == "cpu"
    assert torch.ones(1, dtype=torch.bfloat16).type() == "torch.cuda.BFloat16Tensor"
    assert importlib.util.find_spec("no_such_module_anywhere") is None, "a module that is not named is hollow"


if __name__ == "__main__":
    unittest.main()
