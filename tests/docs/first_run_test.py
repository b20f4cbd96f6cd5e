"""The first run of deploy/examples/pytorch_moe/README.md, typed as it stands; and that a page that is wrong would be noticed."""

import os
import pathlib
import tempfile
import time
import unittest

from walkthrough import Block, Shell, blocks_of, shows, words_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "deploy/examples/pytorch_moe/README.md"
BLOCK_SECONDS = 180


def blocks_of_the_page():
    return [block for block in blocks_of(PAGE.read_text(encoding="utf-8"), ("python",)) if block.language == "sh"]


class FirstRunTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-doc-")))

    def shell(self, **variables):
        # A newcomer's shell: nothing of this test's environment but how programs are found.
        shell = Shell(self.directory, {"PATH": os.environ["PATH"], "HOME": str(self.directory), "LANG": "C.UTF-8",
                                       "PYTHONDONTWRITEBYTECODE": "1", **variables})
        self.addCleanup(shell.close)
        return shell

    def test_the_page_does_what_it_says(self):
        blocks = blocks_of_the_page()
        run = self.directory / "run"
        shell = self.shell(SOURCE=str(ROOT), BUILD=os.environ["EPLB_BUILD"], RUN=str(run))
        for block in blocks:
            if block.not_run:
                continue
            begin = time.monotonic()
            said = shell.run(block, BLOCK_SECONDS)
            print(f"{PAGE.name}:{block.line}: {time.monotonic() - begin:.1f} s\n{said}", flush=True)
            if block.output is not None and not shows(block.output, said):
                self.fail(f"{PAGE.name}:{block.line} shows\n{words_of(block.output)}\nbut it was\n{words_of(said)}\nthat is\n{said}")
        # Only building is left out, and most results are shown.
        self.assertEqual([block.code.count("deploy/setup.sh") for block in blocks if block.not_run], [1])
        self.assertGreaterEqual(sum(bool(block.output) for block in blocks), 9)

    def test_no_wait_outlasts_the_process_that_is_waited_for(self):
        for name in ("eplbd", "eplbctl"):
            program = self.directory / name
            program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
            program.chmod(0o755)
        shell = self.shell(SOURCE="/nonexistent", RUN=str(self.directory), PATH=f"{self.directory}:{os.environ['PATH']}")
        waits = [block for block in blocks_of_the_page() if "until " in block.code]
        self.assertEqual(len(waits), 2)
        for block in waits:
            self.assertIn("No such process", shell.run(block, 10))

    def test_a_command_that_fails_ends_the_page(self):
        shell = self.shell()
        self.assertEqual(shell.run(Block(1, "A=b; cd /\n"), 10), "")
        self.assertEqual(shell.run(Block(2, "echo $A $PWD\n"), 10), "b /\n")
        with self.assertRaisesRegex(AssertionError, "line 3: a command failed with status 1; it wrote\nseen"):
            shell.run(Block(3, "echo seen\nfalse | cat\necho unseen\n"), 10)

    def test_a_block_that_takes_too_long_is_ended(self):
        with self.assertRaisesRegex(AssertionError, "line 4: not done within 1 s; so far it wrote\nseen"):
            self.shell().run(Block(4, "echo seen\nsleep 1000\n"), 1)


class PageTest(unittest.TestCase):
    def test_blocks_have_their_output_and_what_is_not_run_its_reason(self):
        blocks = blocks_of("a\n```sh\nls\n```\n```output\nx\n\n```\n"
                           "<!-- not in the test: slow -->\n\n```sh\nmake\n```\n```sh\nend\n```\n")
        self.assertEqual(blocks, [Block(2, "ls\n", "", "x\n"), Block(11, "make\n", "slow"), Block(14, "end\n")])

    def test_fences_that_would_be_overlooked_are_errors(self):
        for page, message in (("```bash\nls\n```\n", "line 1: fence '```bash'"),
                              ("- x\n  ```sh\n  ls\n", "line 2: fence"),
                              ("```output\nx\n```\n", "line 1: output of no block"),
                              ("```sh\nls\n", "line 1: the fence has no end")):
            with self.assertRaisesRegex(ValueError, message):
                blocks_of(page)

    def test_numbers_may_differ_and_words_may_not(self):
        page = "steps 31..39: up 59.3 s, moved in 7.5 ms, 3,400 of 3.5 MB\n  0  ████▌  ┊ 1.21x\n...\nthe end (0.5 -> 0.719)"
        same = "steps 8..10: up 1m 08s, moved in 1 s,\n 12 of 980 kB\n 3 █ 0.9x\n more\nof it\nthe end (1 -> 0.3)\n"
        self.assertTrue(shows(page, same))
        for other in (same.replace("moved", "kept"), same.replace("12 of", "of"), same.replace("the end", "an end"), same + "more",
                      "", same.replace("->", "")):
            self.assertFalse(shows(page, other), other)


if __name__ == "__main__":
    unittest.main()
