"""eplbctl help: its pages explain the words of the reasons, and the manual has them."""
import pathlib
import re
import subprocess
import unittest

import command

ROOT = pathlib.Path(__file__).resolve().parents[3]


class HelpTest(unittest.TestCase):
    def test_the_page_on_costs_explains_the_words_of_the_reasons(self):
        page = command.run("help", "costs")
        self.assertEqual((page.returncode, page.stderr), (0, ""))
        self.assertLessEqual(max(map(len, page.stdout.splitlines())), 80)
        reasons = (ROOT / "placement" / "decision" / "rebalance.cc").read_text(encoding="utf-8")
        for word in ("peak GPU load", "migration", "replicas", "back-test", "predicted gain", "min_gain"):
            self.assertIn(word, page.stdout)
            self.assertTrue(word in reasons, word)
        for word in ("share", "horizon", "missed", "loss budget"):
            self.assertIn(word, page.stdout)

    def test_its_numbers_are_those_of_the_rule(self):
        page = command.run("help", "costs").stdout
        header = (ROOT / "placement" / "decision" / "rebalance.h").read_text(encoding="utf-8")
        allowance = float(re.search(r"kAllowance = ([\d.]+);", header).group(1))
        self.assertIn(f"{100 * allowance:g} % of the time", page)
        source = (ROOT / "placement" / "backtest" / "backtest.cc").read_text(encoding="utf-8")
        for constant, value, words in (("kUsuallyRealized", 0.5, "one half"), ("kHorizon", 4, "four decisions"),
                                       ("kFirstTimes", 4, "four migrations")):
            self.assertEqual(float(re.search(rf"{constant} = ([\d.]+);", source).group(1)), value)
            self.assertIn(words, page)

    def test_another_topic_is_refused_with_the_topics(self):
        other = command.run("help", "weather")
        self.assertEqual((other.returncode, other.stdout), (2, ""))
        self.assertIn('no page on "weather", expected a command or one of: costs', other.stderr)

    def test_a_command_is_explained_as_by_its_own_flag(self):
        for words in ([], ["top"], ["get", "placement"], ["help"]):
            page = command.run("help", *words)
            self.assertEqual((page.returncode, page.stderr), (0, ""))
            self.assertEqual(page.stdout, command.run(*words, "--help").stdout)

    def test_no_line_of_any_help_is_wider_than_80_columns(self):
        def commands(*words):
            """The words of each command below this one, and this one."""
            page = command.run(*words, "--help")
            self.assertEqual((page.returncode, page.stderr), (0, ""), words)
            yield words, page.stdout
            for name in re.findall(r"^  ([a-z]+)(?: |$)", page.stdout.partition("Subcommands:\n")[2], re.M):
                yield from commands(*words, name)

        pages = dict(commands())
        self.assertGreater(len(pages), 30)
        for program in ("eplbd", "eplb-trainer"):
            pages[program] = subprocess.run([command.EPLBCTL.parent / program, "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
        wide = [(words, line) for words, page in pages.items() for line in page.splitlines() if len(line) > 80]
        self.assertEqual(wide, [])

    def test_a_job_is_named_by_its_place_or_by_its_flag(self):
        for words in (("status",), ("top",), ("explain",), ("doctor",), ("get", "jobs"), ("get", "ranks"), ("get", "placement"), ("get", "plan", "3"),
                      ("get", "plans"), ("get", "windows"), ("get", "events"), ("pause",), ("resume",), ("rebalance",), ("rollback",), ("forget",),
                      ("set", "policy", "mode=apply"), ("diff", "v1", "v2"), ("wait", "--for", "connected", "--timeout", "1s")):
            for name in (("train",), ("--job", "train")):
                done = command.run(*words, *name, "--endpoint", "127.0.0.1:1")
                self.assertIn(done.returncode, (3, 7), (words, name, done.stderr))

    def test_the_manual_has_it(self):
        self.assertIn("eplbctl help", command.run("man").stdout)


if __name__ == "__main__":
    unittest.main()
