"""docs/traces.md, typed as it stands: real ranks under PyTorch's profiler, and a merge whose boundaries lie in their operators."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

from readme_test import BIN, BLOCK_SECONDS, BUILD, LANGUAGES, ROOT, Scratch, free_port
from walkthrough import Block, Shell, blocks_of

sys.path.insert(0, str(ROOT / "tests" / "integration"))
from trace_check import holds, problems_of, spans_of  # noqa: E402

PAGE = ROOT / "docs" / "traces.md"
WORLD = 2
FIRST_RANK = 10_000_000
SLACK = 1000  # microseconds: the profiler's clock is read a little before and after the call

# A trainer of two layers whose router likes the first experts; {page} is the page's own loop.
TRAINER = '''
import os, time
import eplb, eplb.traces
import torch
import torch.distributed as dist

LAYERS, EXPERTS, WIDTH = 2, 8, 64
dist.init_process_group("gloo")
rank = dist.get_rank()
first_step, last_step = 1, 400
with eplb.Client.connect(all_gather=eplb.torch_all_gather(), endpoint=os.environ["EPLB_ENDPOINT"], job="traced",
                         require_daemon=True, num_layers=LAYERS, num_experts=EXPERTS, report_every=5, vote_every=4,
                         history_path=f"logs/rank-{{rank}}.jsonl",
                         placements_path="logs/placements.jsonl") as client:
    weights = [torch.zeros(client.placement.num_local_slots, WIDTH, WIDTH) for _ in range(LAYERS)]

    def train(step):
        for layer in range(LAYERS):
            client.record(layer, torch.tensor([64 >> expert for expert in range(EXPERTS)]))
        time.sleep(0.005)

    train(0)
    for layer, weight in enumerate(weights):
        client.register(weight, name=f"layers.{{layer}}.w", layer=layer)
    client.finish_registration()
    client.step_boundary(0)
{page}
dist.destroy_process_group()
'''


class TracesPageTest(Scratch):
    def setUp(self):
        super().setUp()
        self.blocks = blocks_of(PAGE.read_text(encoding="utf-8"), LANGUAGES)
        (self.checkout / "logs").mkdir()
        self.environment["PATH"] = f"{BIN}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment.update({"EPLB_LIBRARY": str(BUILD / "lib" / "libeplb.so.0"),
                                 "PYTHONPATH": str(ROOT / "client" / "python"), "OMP_NUM_THREADS": "1"})
        daemon = self.start(BIN / "eplbd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store",
                            self.directory / "eplbd.db", "--set", "policy.name=incremental", "--set", "policy.every_steps=20",
                            "--set", "report.every_steps=5", out=subprocess.PIPE)
        self.environment["EPLB_ENDPOINT"] = json.loads(daemon.stdout.readline())["grpc"]

    def train(self):
        loop, = [block.code for block in self.blocks if block.language == "python"]
        script = self.directory / "trainer.py"
        script.write_text(TRAINER.format(page="".join(f"    {line}" for line in loop.splitlines(keepends=True))),
                          encoding="utf-8")
        variables = {**self.environment, "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = [subprocess.Popen([sys.executable, "-B", script], env={**variables, "RANK": str(rank)}, cwd=self.checkout,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(WORLD)]
        for rank in ranks:
            self.addCleanup(self.end, rank)
        for rank in ranks:
            said = rank.communicate(timeout=BLOCK_SECONDS)[0]
            self.assertEqual(rank.returncode, 0, said)

    def read(self, name):
        return json.loads((self.checkout / name).read_text(encoding="utf-8"))

    def test_the_commands_run_and_boundaries_lie_in_the_profilers_operators(self):
        self.train()
        shell = Shell(self.directory, self.environment)
        self.addCleanup(shell.close)
        shell.run(Block(0, f"cd {self.checkout}\n"), 10)
        commands = [block for block in self.blocks if block.language == "sh"]
        self.assertEqual(len(commands), 3)
        for block in commands:
            self.assertEqual(block.not_run, "")
            print(f"{PAGE.name}:{block.line}:\n{shell.run(block, 60)}", flush=True)
        for name in ("decision.json", "eplb.json"):
            self.assertEqual(problems_of(self.read(name)), [], name)
        self.merged_holds_all_of_both()
        self.boundaries_are_the_profilers_steps()

    def merged_holds_all_of_both(self):
        both, torch = self.read("both.json"), self.read("torch-0.json")
        self.assertEqual(both["baseTimeNanoseconds"], 0)
        parts = [self.read("eplb.json"), self.read("decision.json"), torch]
        self.assertEqual(len(both["traceEvents"]), sum(len(part["traceEvents"]) for part in parts))
        plain = [json.dumps(event) for event in both["traceEvents"]]
        for part in parts[:2]:  # absolute already
            self.assertLessEqual({json.dumps(event) for event in part["traceEvents"]}, set(plain))
        times = [event["ts"] for event in both["traceEvents"] if "ts" in event]
        self.assertEqual(times, sorted(times))

    def boundaries_are_the_profilers_steps(self):
        both = self.read("both.json")
        calls = [event for event in spans_of(both, "step_boundary") if event["name"] == "step_boundary"]
        self.assertEqual(len(calls), 400)
        boundaries = [span for span in spans_of(both, "boundary, ") if span["pid"] == FIRST_RANK]
        self.assertTrue(any(span["args"]["outcome"] == "committed" for span in boundaries))
        for span in boundaries:
            self.assertTrue(holds(calls[span["args"]["step"] - 1], span, SLACK), (span, calls[span["args"]["step"] - 1]))
        # The daemon's decision 1 holds the boundaries of its versions, too.
        chunks = spans_of(both, "chunk ")
        self.assertTrue(chunks)
        for chunk in chunks:
            inside = [span for span in boundaries if span["args"]["version"] == chunk["args"]["version"]]
            self.assertTrue(inside and all(holds(chunk, span, 5 * SLACK) for span in inside), chunk)


class MergeTest(unittest.TestCase):
    """Files of every kind of PyTorch; what cannot be merged is refused by name."""

    def setUp(self):
        import tempfile
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-merge-")))

    def write(self, name, trace):
        path = self.directory / name
        path.write_text(trace if isinstance(trace, str) else json.dumps(trace), encoding="utf-8")
        return path

    def merge(self, *paths, code=0, out="out.json"):
        done = subprocess.run([sys.executable, "-B", "-m", "eplb.traces", self.directory / out, *paths], capture_output=True,
                              text=True, timeout=60, env={"PYTHONPATH": str(ROOT / "client" / "python")})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_times_since_a_base_and_since_1970_meet(self):
        span = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "dur": 3}
        new = self.write("new.json", {"baseTimeNanoseconds": 1_700_000_000_000_000_500, "traceEvents": [{**span, "ts": 7.25}]})
        old = self.write("old.json", {"traceEvents": [{**span, "ts": 1_700_000_000_000_001}, {"ph": "M", "name": "n"}]})
        self.assertEqual(self.merge(new, old), "")
        events = json.loads((self.directory / "out.json").read_text())["traceEvents"]
        self.assertEqual([event.get("ts") for event in events], [None, 1_700_000_000_000_001, 1_700_000_000_000_007.75])

    def test_compressed_files_are_read_and_written(self):
        import gzip
        path = self.directory / "torch.json.gz"
        with gzip.open(path, "wt") as file:
            json.dump({"traceEvents": [{"ph": "X", "ts": 5}]}, file)
        self.merge(path, out="out.json.gz")
        with gzip.open(self.directory / "out.json.gz", "rt") as file:
            self.assertEqual(json.load(file)["traceEvents"][0]["ts"], 5)

    def test_what_cannot_be_merged_is_refused_in_one_line(self):
        for text, what in (("[{\"ts\": 1}]", "eplb.traces.save_profile"), ("{", "is no JSON"), ("3", "traceEvents"),
                           ("{\"traceEvents\": [1]}", "traceEvents"), ("{\"traceEvents\": [{\"ts\": \"x\"}]}", "no number")):
            with self.subTest(text):
                said = self.merge(self.write("bad.json", text), code=2)
                self.assertRegex(said, r"\Aeplb\.traces: [^\n]*bad\.json: [^\n]+\n\Z")
                self.assertIn(what, said)
        self.assertIn("No such file", self.merge(self.directory / "none.json", code=2))
        self.assertIn("out", self.merge(self.write("good.json", {"traceEvents": []}), out="no/out.json", code=1))


if __name__ == "__main__":
    unittest.main()
