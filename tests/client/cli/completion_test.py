"""The completion scripts work in their shells, and the manual page is whole."""

import re
import shutil
import subprocess
import unittest

from command import DEADLINE, EPLBCTL, CommandTest, run

COMMANDS = ("plan replay sweep lint convert report status get explain diff top doctor wait rebalance pause resume rollback set forget "
            "completion man").split()


def shell(name, script):
    return subprocess.run([name, "-c", script], capture_output=True, text=True, timeout=DEADLINE)


class CompletionTest(CommandTest):
    def script(self, name):
        done = run("completion", name)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return self.write("completion", done.stdout)

    def bash(self, line):
        """Returns the words that bash offers for the last one of the line."""
        words = " ".join(f"'{word}'" for word in line.split(" "))
        done = shell("bash", f"PATH={EPLBCTL.parent}:$PATH; source {self.script('bash')}; COMP_LINE='{line}'; COMP_POINT={len(line)}; "
                             f"COMP_WORDS=({words}); COMP_CWORD={line.count(' ')}; " 'set -u; _eplbctl; printf "%s\\n" "${COMPREPLY[@]:-}"')
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return sorted(done.stdout.split())

    def test_bash_offers_commands_flags_choices_and_files(self):
        self.assertEqual(self.bash("eplbctl re"), ["rebalance", "replay", "report", "resume"])
        self.assertEqual(sorted(set(self.bash("eplbctl ")) & set(COMMANDS)), sorted(COMMANDS))
        self.assertEqual(self.bash("eplbctl get pl"), ["placement", "plan", "plans"])
        self.assertEqual(self.bash("eplbctl get plan 1 -o t"), ["table", "trace"])
        self.assertEqual(self.bash("eplbctl plan --tie-break "), ["compat", "stable"])
        self.assertEqual(self.bash("eplbctl plan --policy "), ["auto", "balanced", "deepseek", "flow", "incremental"])
        self.assertEqual(self.bash("eplbctl plan --gpus "), [])
        self.assertEqual(self.bash("eplbctl plan --allow-duplicates --tie"), ["--tie-break"])
        self.assertEqual(self.bash("eplbctl diff --lo"), ["--load"])
        load = self.write("load.json", "[[1]]")
        self.assertEqual(self.bash(f"eplbctl plan --load {str(load)[:-2]}"), [str(load)])
        self.assertEqual(self.bash(f"eplbctl diff {str(load)[:-2]}"), [str(load)])

    def test_jobs_of_a_daemon_that_does_not_answer_are_none(self):
        self.assertEqual(self.bash("eplbctl --endpoint 127.0.0.1:1 explain --job m"), [])

    def test_zsh_can_read_its_script(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh here")
        done = shell("zsh", f"source {self.script('zsh')} && which _eplbctl >/dev/null && echo there")
        self.assertEqual((done.stdout, done.returncode), ("there\n", 0), done.stderr)

    def test_fish_offers_commands_and_choices(self):
        if not shutil.which("fish"):
            self.skipTest("no fish here")
        path = self.script("fish")
        done = shell("fish", f"set -x PATH {EPLBCTL.parent} $PATH; source {path}; complete -C 'eplbctl get pl'; complete -C 'eplbctl plan --tie-break '")
        self.assertEqual([line.split("\t")[0] for line in done.stdout.splitlines()],
                         ["placement", "plan", "plans", "compat", "stable"], done.stderr)

    def test_another_shell_is_wrong_usage(self):
        self.assertEqual(run("completion", "tcsh").returncode, 2)


class ManTest(CommandTest):
    def test_the_page_has_every_command_and_all_its_flags(self):
        page = run("man").stdout
        for command in COMMANDS:
            if command in ("get", "set"):
                continue
            self.assertIn(f'.SS "eplbctl {command}"\n', page)
            listed = re.findall(r"(--[a-z][a-z-]*)", run(command, "--help").stdout.split("\nExamples")[0])
            section = page.split(f'.SS "eplbctl {command}"\n')[1].split(".SS")[0].replace("\\-", "-")
            for flag in set(listed) - {"--help"}:
                self.assertIn(flag, section, command)

    def test_every_variable_and_file_that_is_read_is_named(self):
        page = run("man").stdout.replace("\\-", "-")
        environment = page.split(".SH ENVIRONMENT")[1].split(".SH FILES")[0]
        for name in ("EPLB_ENDPOINT EPLB_TLS_CA EPLB_TLS_CERT EPLB_TLS_KEY EPLB_TLS_SERVER_NAME XDG_CONFIG_HOME "
                     "XDG_RUNTIME_DIR HOME NO_COLOR TERM COLUMNS LC_ALL LC_CTYPE LANG").split():
            self.assertRegex(environment, rf"\b{name}\b")
        for path in ("$XDG_CONFIG_HOME/eplb/eplbctl.toml", "~/.config/eplb/eplbctl.toml"):
            self.assertIn(path, page.split(".SH FILES")[1])

    def test_roff_has_nothing_to_say_about_it(self):
        if not shutil.which("groff"):
            self.skipTest("no groff here")
        done = subprocess.run(["groff", "-man", "-z", "-ww"], input=run("man").stdout, capture_output=True, text=True,
                              timeout=DEADLINE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class UsageTest(CommandTest):
    def test_what_is_wrong_is_named_even_when_more_is_missing(self):
        self.assertIn("unknown flag --laod, did you mean --load?", run("plan", "--laod", "x").stderr)
        self.assertIn("unknown flag --endpont, did you mean --endpoint?", run("status", "--endpont=x").stderr)
        self.assertIn('--watch stands in front of "status", expected behind it', run("--watch", "status").stderr)
        self.assertIn("cannot reach 127.0.0.1:1", run("--endpoint", "127.0.0.1:1", "status").stderr)
        self.assertIn("unknown flag --colour (see", run("status", "--colour").stderr)
        self.assertIn('unknown command "planet", did you mean plan?', run("planet").stderr)
        self.assertIn('unknown command "plasn", did you mean plans?', run("get", "plasn").stderr)
        self.assertIn('unknown command "kubernetes" (see', run("kubernetes").stderr)
        self.assertIn('unexpected argument "now"', run("status", "train", "now").stderr)
        self.assertIn("--load is required", run("plan").stderr)
        self.assertTrue(run("status", "--help").stdout.endswith(".\n"))

    def test_a_number_that_is_none_is_called_so_with_its_flag(self):
        load = self.write("load.json", "[[1, 2]]")
        for value, expected in (("abc", '--gpus is "abc", expected a number'), ("1.5", '--gpus is "1.5", expected an integer'),
                                ("99999999999", '--gpus is "99999999999", the number is too large'),
                                ("-99999999999", '--gpus is "-99999999999", the number is too low'),
                                ("1e3", '--gpus is "1e3", expected an integer'), (" 2", '--gpus is " 2", expected an integer')):
            self.assert_fails(run("plan", "--load", load, "--slots", 2, "--gpus", value), 2, expected)
        for flag in ("--every", "--history", "--horizon-windows"):
            value = 99999999999999999999
            self.assert_fails(run("replay", "--trace", load, "--slots", 2, "--gpus", 2, flag, value), 2,
                              f'{flag} is "{value}", the number is too large')
            self.assert_fails(run("replay", "--trace", load, "--slots", 2, "--gpus", 2, flag, 2**31), 2,
                              f"{flag} is 2147483648, expected 1..2147483647")

    def test_a_least_number_of_rebalances_is_not_negative(self):
        self.assert_fails(run("report", self.directory, "--min-rebalances", -1), 2, '--min-rebalances: "-1" is no integer >= 0')

    def test_an_integer_is_decimal(self):
        load = self.write("load.json", "[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]")
        done = run("plan", "--load", load, "--slots", "010", "--gpus", 2)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assert_fails(run("get", "events", "--limit", "01750"), 2, "is no integer 1..1000")

    def test_a_shape_that_cannot_be_names_the_flags_that_were_typed(self):
        load = self.write("load.json", "[[1, 2, 3, 4]]")
        self.assert_fails(run("plan", "--load", load, "--slots", 4, "--gpus", 0), 2, "--gpus is 0")
        self.assert_fails(run("plan", "--load", load, "--slots", 3, "--gpus", 1), 2, "--slots is 3")

    def test_policies_are_listed_and_the_nearest_is_suggested(self):
        load = self.write("load.json", "[[1, 2]]")
        self.assert_fails(run("plan", "--load", load, "--slots", 2, "--gpus", 1, "--policy", "balancd"), 2,
                          "balanced, deepseek, incremental, auto, flow", "did you mean balanced?")
        self.assertIn("balanced|deepseek|incremental|auto|flow", run("plan", "--help").stdout)
        self.assert_fails(run("set", "policy", "every_step=3"), 2, "did you mean every_steps?")
        self.assert_fails(run("set", "policy", "name=balancd"), 2, "did you mean balanced?")

    def test_watch_asks_again_and_ends_after_count(self):
        load = self.write("rank-0.jsonl", "")
        # No daemon listens: the first failure ends it.
        done = run("status", "--endpoint", f"unix:{load}.sock", "--timeout", "200ms", "--watch", "--interval", "100ms")
        self.assertEqual(done.returncode, 3)
        self.assertEqual(run("status", "--watch", "--interval", "0").returncode, 2)

    def test_flags_of_watch_do_not_stand_alone(self):
        for flag, value in (("--interval", "1s"), ("--count", "1")):
            self.assert_fails(run("get", "jobs", flag, value), 2, f"{flag} requires --watch")

    def test_a_name_that_no_daemon_can_know_is_wrong_usage(self):
        for command in (("explain",), ("doctor",), ("get", "plans"), ("diff", "v1", "now"), ("pause",)):
            for name in ("\udcff", "a" * 9000, "a b"):
                done = run(*command, "--job", name)
                self.assert_fails(done, 2, "--job: the name has ")
                self.assertLess(len(done.stderr), 150)
        self.assert_fails(run("set", "policy", "mode=observe", "--request-id", "\udcff"), 2, "--request-id: the name has ")

    def test_help_tells_the_exit_codes_that_a_command_has(self):
        asks = {0, 1, 2, 3, 4, 7}
        expected = {"plan": {0, 1, 2}, "replay": asks | {5}, "sweep": {0, 1, 2}, "convert": {0, 1, 2}, "join": {0, 1, 2},
                    "lint": {0, 1, 2, 8}, "report": asks | {5, 8}, "completion": {0, 1, 2}, "man": {0, 1, 2}, "status": asks | {5}, "get jobs": asks | {5},
                    "diff": asks | {5, 8}, "doctor": asks | {5, 8}, "wait": asks | {5, 8}}
        for command in ("get placement", "get plans", "get events", "get ranks", "explain", "top"):
            expected[command] = asks | {5}
        for command in ("pause", "resume", "rollback", "set policy"):
            expected[command] = asks | {5, 6}
        expected["rebalance"] = asks | {5, 6, 8}
        for command, codes in expected.items():
            text = run(*command.split(), "--help").stdout.split("Exit codes: ")[1]
            self.assertEqual({int(number) for number in re.findall(r"\b\d\b", text)}, codes, command)


if __name__ == "__main__":
    unittest.main()
