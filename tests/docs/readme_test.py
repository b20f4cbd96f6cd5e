"""README.md, docs/operations.md, docs/planning.md and others (RUN), typed as they stand in a copy of the checkout, beside a daemon and a short
training job.

Shell blocks run, tables of TOML go through `eplbd --check-config`, Python's example trains, and every other fence of the
documents has a language, so that no command is left out unseen.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from walkthrough import Block, Shell, blocks_of, exact_words_of, shows, words_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["EPLB_BUILD"])
BIN = BUILD / "bin"
BLOCK_SECONDS = 240
RANKS = 8
ATTACHED = "deploy/examples/pytorch_moe/README.md"
RUN = ("README.md", "docs/should-i-use-it.md", "docs/operations.md", "docs/planning.md", "docs/api.md", "docs/choosing-a-policy.md", "docs/upgrading.md", "docs/deploying.md")
LANGUAGES = ("toml", "yaml", "c", "cpp", "python", "text")
PAGES = sorted([ROOT / "README.md", ROOT / "client/python/README.md", *(ROOT / "docs").glob("*.md"),
                *(ROOT / "deploy/examples").glob("*/README.md")])


def with_expected_exits(code):
    """Commands whose comment says "exit 8" may end with it, and so on: the page says that they do."""
    return re.sub(r"^(.*?)(#[^\n]*\bexit (\d)\b)", r"\1 || [ $? -eq \3 ] \2", code, flags=re.M)


class Scratch(unittest.TestCase):
    """A copy of the checkout that commands may write into."""

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-readme-")))
        self.checkout = self.directory / "checkout"
        self.checkout.mkdir()
        for entry in ROOT.iterdir():
            if entry.name not in ("build", ".git"):
                (self.checkout / entry.name).symlink_to(entry)
        (self.checkout / "build" / "demo").mkdir(parents=True)
        self.launches = 0
        self.environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(self.directory), "LANG": "C.UTF-8",
                            "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *command, out=subprocess.DEVNULL):
        process = subprocess.Popen(command, cwd=self.checkout, env=self.environment, stdout=out, stderr=subprocess.DEVNULL,
                                   text=True)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()

    def start_daemon(self):
        """returns: where it listens; it decides often."""
        daemon = self.start(BIN / "eplbd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store",
                            self.directory / "eplbd.db", "--set", "policy.every_steps=20", "--set", "report.every_steps=10",
                            out=subprocess.PIPE)
        addresses = json.loads(daemon.stdout.readline())
        self.environment["EPLB_HTTP"] = addresses["http"]
        return addresses["grpc"]

    def start_job(self, endpoint, *more):
        self.launches += 1
        return [self.start(BIN / "eplb-trainer", "--launch-id", str(self.launches), "--rank", str(rank), "--world", str(RANKS), "--endpoint", endpoint, "--trace",
                           "tests/data/moe64_aux.jsonl", "--slots", "72", "--report-every", "10", *more)
                for rank in range(RANKS)]

    def run_to_its_end(self, endpoint, *more):
        for rank in self.start_job(endpoint, *more):
            self.assertEqual(rank.wait(BLOCK_SECONDS), 0)

    def wait_for(self, condition, what, seconds=BLOCK_SECONDS):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"{what}: not within {seconds} s")
            time.sleep(0.2)

    def ask(self, endpoint, *command):
        """returns: what eplbctl prints, or "" when it does not end well."""
        done = subprocess.run([BIN / "eplbctl", *command, "--endpoint", endpoint], capture_output=True, text=True,
                              env=self.environment, timeout=60)
        return done.stdout if done.returncode == 0 else ""

    def runs(self, endpoint):
        """True if all ranks are connected, nothing is in flight, and the daemon has a window of theirs."""
        jobs = json.loads(self.ask(endpoint, "get", "jobs", "-o", "json") or '{"jobs": []}')["jobs"]
        return (bool(jobs) and jobs[0]["state"] == "IDLE" and jobs[0]["connected_ranks"] == RANKS and
                self.ask(endpoint, "explain", "--layer", "3") != "")


class ReadmeTest(Scratch):
    def test_the_commands_run_as_written(self):
        blocks = [(page, block) for page in RUN for block in blocks_of((ROOT / page).read_text(encoding="utf-8"), LANGUAGES)]
        endpoint = self.start_daemon()
        # Files that deploy/demo.sh leaves for `report`, and a job to ask about.
        # Its steps last long enough for the ranks to switch to version 1, which the commands name.
        self.run_to_its_end(endpoint, "--job", "demo", "--steps", "60", "--step-ms", "20", "--log-dir", "build/demo", "--report-json",
                            "build/demo/run.json")
        self.start_job(endpoint, "--job", "demo", "--steps", "1000000", "--step-ms", "20")
        self.wait_for(lambda: self.runs(endpoint), "a job that runs")
        # From here on it decides only when it is told to; what is in flight ends first.
        self.wait_for(lambda: self.ask(endpoint, "set", "policy", "every_steps=1000000") != "", "a policy that is set")
        self.wait_for(lambda: self.runs(endpoint), "a job with nothing in flight")
        shell = Shell(self.directory, {**self.environment, "EPLB_ENDPOINT": endpoint})
        self.addCleanup(shell.close)
        shell.run(Block(0, f"cd {self.checkout}\n"), 10)
        run = []
        for page, block in blocks:
            if block.language != "sh" or block.not_run:
                continue
            if "old-job" in block.code:
                self.run_to_its_end(endpoint, "--job", "old-job", "--steps", "4")
            begin = time.monotonic()
            said = shell.run(Block(block.line, with_expected_exits(block.code)), BLOCK_SECONDS)
            print(f"{page}:{block.line}: {time.monotonic() - begin:.1f} s\n{said}", flush=True)
            words = exact_words_of if block.code.startswith("eplbctl replay") else words_of
            if block.output is not None and not shows(block.output, said, words):
                self.fail(f"{page}:{block.line} shows\n{words(block.output)}\nbut it was\n{said}")
            run.append(block.code)
        commands = re.findall(r"^eplbctl (\w+)", "".join(run), flags=re.M)
        self.assertGreaterEqual(len(commands), 20)
        self.assertGreaterEqual(set(commands), {"plan", "replay", "sweep", "lint", "convert", "report", "status", "explain", "top",
                                                "get", "diff", "doctor", "pause", "resume", "rollback", "rebalance", "set"})
        # Only what installs, builds or tests is left out.
        left_out = [(page, block) for page, block in blocks if block.language == "sh" and block.not_run]
        for page, block in left_out:
            self.assertRegex(block.code, r"deploy/demo\.sh|deploy/setup\.sh|tests/run\.sh|pip install|podman|kubectl|sbatch|torchrun", f"{page}:{block.line}")

    def test_the_tables_are_configurations(self):
        tables = [block for block in blocks_of((ROOT / "docs/operations.md").read_text(encoding="utf-8"), LANGUAGES)
                  if block.language == "toml"]
        self.assertGreaterEqual(len(tables), 2)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=eplbd", "-days", "2", "-keyout",
                        "server.key", "-out", "server.pem"], cwd=self.directory, check=True, capture_output=True)
        (self.directory / "ca.pem").write_bytes((self.directory / "server.pem").read_bytes())
        (self.directory / "server.key").chmod(0o600)
        config = self.directory / "eplbd.toml"
        for table in tables:
            self.assertEqual(table.not_run, "")
            # The certificates of the page lie where no test may write.
            config.write_text(table.code.replace("/etc/eplb/", f"{self.directory}/"), encoding="utf-8")
            done = subprocess.run([BIN / "eplbd", "--check-config", "--config", config], capture_output=True, text=True,
                                  env=self.environment, timeout=60)
            self.assertEqual(done.returncode, 0, f"docs/operations.md:{table.line}: {done.stderr}")
            config.write_text(table.code.replace("=", "_x =", 1), encoding="utf-8")
            self.assertEqual(subprocess.run([BIN / "eplbd", "--check-config", "--config", config], capture_output=True,
                                            env=self.environment, timeout=60).returncode, 2)


class PythonTrainersTest(Scratch):
    def train(self, page, edit=lambda code: code):
        """Runs the page's trainer on two ranks: until experts move, unless `edit` makes another program of it."""
        blocks = blocks_of((ROOT / page).read_text(encoding="utf-8"), LANGUAGES)
        example, = [block for block in blocks if block.language == "python" and "init_process_group" in block.code]
        self.assertGreater(len(example.code.splitlines()), 40)
        endpoint = self.start_daemon()
        (self.directory / "example.py").write_text(edit(example.code), encoding="utf-8")
        variables = {**self.environment, "EPLB_LIBRARY": str(BUILD / "lib" / "libeplb.so.0"), "EPLB_ENDPOINT": endpoint,
                     "PYTHONPATH": str(ROOT / "client/python"), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
        variables["MASTER_PORT"] = str(free_port())
        ranks = [subprocess.Popen([sys.executable, "-B", self.directory / "example.py"], env={**variables, "RANK": str(rank)},
                                  cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for rank in range(2)]
        said = []
        for rank in ranks:
            self.addCleanup(self.end, rank)
            said.append(rank.communicate(timeout=BLOCK_SECONDS)[0])
            self.assertEqual(rank.returncode, 0, said[-1])
        return said[0]

    def test_the_example_trains(self):
        self.assertRegex(self.train("client/python/README.md"), r"step \d+: version \d+ runs, .* moved: .+")

    def test_the_attached_trainer_trains(self):
        self.assertRegex(self.train(ATTACHED), r"step \d+: version \d+ runs: .+")
        self.assertTrue((self.directory / "rank-1.pt").exists())

    def test_the_attached_trainer_that_only_evaluates_is_told_within_two_windows(self):
        def evaluate(code):
            code, count = re.subn(r" +optimizer\.zero_grad\(\)\n.* +optimizer\.step\(\)\n", "", code, flags=re.S)
            self.assertEqual(count, 1)
            for before, after in (("    for step in range(10_000):", "    model.eval()\n    torch.set_grad_enabled(False)\n    for step in range(10):"),
                                  ("        if boundary.switched:", "        print(boundary.reason)\n        if boundary.switched:")):
                self.assertIn(before, code)
                code = code.replace(before, after)
            return code
        self.assertRegex(self.train(ATTACHED, evaluate),
                         r"NOT_COUNTING: rank 0 has counted no token since it attached; the routers of 0.experts, 2.experts ran without gradients")


class SplitPageTest(Scratch):
    def test_its_python_runs(self):
        page = ROOT / "docs/splitting-a-batch.md"
        said = []
        for block in blocks_of(page.read_text(encoding="utf-8"), LANGUAGES):
            if block.language != "python":
                continue
            code = self.directory / f"line-{block.line}.py"
            code.write_text(block.code, encoding="utf-8")
            done = subprocess.run([sys.executable, "-B", code], cwd=self.directory, capture_output=True, text=True, timeout=60,
                                  env={**self.environment, "EPLB_LIBRARY": str(BUILD / "lib" / "libeplb.so.0"),
                                       "PYTHONPATH": str(ROOT / "client/python")})
            self.assertEqual(done.returncode, 0, f"{page}:{block.line}: {done.stderr}")
            said.append(done.stdout)
        with_client, in_order, offline = said
        self.assertRegex(with_client, r"Split\(layer=0, peak=6.0, .*\n\[2 1 1 1 1 0\]\n")
        self.assertRegex(in_order, r"\[\[[\d ]+\]\n \[[\d ]+\]\n \[[\d ]+\]\]\nSplitFigures\(batches=1, late=0, refused=0, version=0, peak=6.0")
        self.assertRegex(offline, r"fullest GPU 85 tokens, equal shares \d+, proof: GPUs \(0, 1\)")


class PagesTest(unittest.TestCase):
    def test_every_fence_of_the_documents_says_what_it_is(self):
        self.assertGreaterEqual(len(PAGES), 8)
        for page in PAGES:
            with self.subTest(page.name):
                for block in blocks_of(page.read_text(encoding="utf-8"), LANGUAGES):
                    # Pages that are run: those of RUN, and two pages by tests of their own.
                    if block.language == "sh" and page.relative_to(ROOT).as_posix() not in (*RUN, ATTACHED, "docs/traces.md"):
                        self.assertNotEqual(block.not_run, "", f"{page}:{block.line}: nobody runs it, and no reason is given")

    def test_an_exit_is_allowed_only_where_the_page_says_so(self):
        self.assertEqual(with_expected_exits("a b  # exit 8 when c\nd # e\n"), "a b   || [ $? -eq 8 ] # exit 8 when c\nd # e\n")

    def test_other_languages_are_read_and_not_run(self):
        self.assertEqual(blocks_of("```toml\na = 1\n```\n", ("toml",)), [Block(1, "a = 1\n", language="toml")])
        with self.assertRaisesRegex(ValueError, "line 1: fence '```'"):
            blocks_of("```\nls\n```\n", LANGUAGES)


def free_port():
    """Below the range of ephemeral ports, so that no other process takes it meanwhile."""
    import random
    import socket

    for port in random.Random(os.getpid()).sample(range(20000, 29000), 200):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no free port in 20000..29000")


if __name__ == "__main__":
    unittest.main()
