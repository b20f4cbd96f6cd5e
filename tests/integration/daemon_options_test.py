"""eplbd's command line: what it says of its configuration, of wrong flags, and how its log looks."""

import json
import os
import pty
import select
import subprocess
import time
import tomllib
import unittest

import job as harness


class DaemonOptionsTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.config = self.directory / "eplbd.toml"
        self.config.write_text('[policy]\nmin_gain = 0.125\nmode = "observe"\n[cost]\ninter_gbps = "400Gb/s"\n'
                               '[jobs.a]\nevery_steps = 7\n')

    def run_daemon(self, *arguments, **variables):
        return subprocess.run([harness.BIN / "eplbd", *map(str, arguments)], capture_output=True, text=True,
                              timeout=60 * harness.PATIENCE, check=False,
                              env={"PATH": os.environ["PATH"], "HOME": str(self.directory), **variables})

    def test_what_cannot_be_used_is_exit_2_with_its_name_and_the_nearest(self):
        broken = self.directory / "broken.toml"
        broken.write_text("[policy]\nevery_stepz = 5\n")
        for given, said in ((["--lisen", "x"], "unknown flag --lisen, did you mean --listen?"),
                            (["--chek-config"], "unknown flag --chek-config, did you mean --check-config?"),
                            (["--wibble"], "unknown flag --wibble"),
                            (["serve"], 'unexpected argument "serve"'),
                            (["--check-config", "--config", ""], "--config has an empty value"),
                            (["--check-config", "--config", broken],
                             f"{broken}:2: policy.every_stepz: unknown key, did you mean policy.every_steps?")):
            result = self.run_daemon(*given)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", f"eplbd: {said}\n"))

    def test_a_right_configuration_is_called_ok(self):
        result = self.run_daemon("--check-config", "--config", self.config, "--log-level", "warn")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout, f"{self.config}: ok, 4 keys; 1 key from variables and flags\n")

    def test_the_printed_configuration_is_read_as_itself(self):
        first = self.run_daemon("--print-config", "--config", self.config, "--set", "limits.max_jobs=3")
        self.assertEqual((first.returncode, first.stderr), (0, ""))
        self.assertIn(f'\ninter_gbps = "50 GB/s"  # {self.config}:5\n', first.stdout)
        self.assertIn("\nmax_jobs = 3  # command line\n", first.stdout)
        self.assertIn(f'\npath = "{self.directory}/.local/state/eplb/eplbd.db"  # default\n', first.stdout)
        again = self.directory / "again.toml"
        again.write_text(first.stdout)
        second = self.run_daemon("--print-config", "--config", again)
        self.assertEqual((second.returncode, second.stderr), (0, ""))
        self.assertEqual(tomllib.loads(second.stdout), tomllib.loads(first.stdout))
        self.assertEqual(tomllib.loads(first.stdout)["jobs"], {"a": {"every_steps": 7}})

    def test_an_unknown_variable_and_a_doubtful_value_are_warnings_of_the_check_and_the_log(self):
        doubtful = "command line: cost.inter_gbps = 400 is read as 400 GB/s"
        unknown = "EPLB_POLCY_NAME: eplbd has no such variable, did you mean EPLB_POLICY_NAME?"
        variables = {"EPLB_POLCY_NAME": "x", "EPLB_TLS_SERVER_NAME": "y"}
        check = self.run_daemon("--check-config", "--set", "cost.inter_gbps=400", **variables)
        self.assertEqual(check.returncode, 0)
        self.assertRegex(check.stdout, "^no file: ok, .* from variables and flags\n$")
        for said in (doubtful, unknown):
            self.assertIn(f"eplbd: warning: {said}", check.stderr)
        self.assertNotIn("SERVER_NAME", check.stderr)
        log = self.directory / "log"
        with log.open("w") as stderr:
            self.spawned("--store", "memory", "--set", "cost.inter_gbps=400", stderr=stderr, env={**os.environ, **variables})
        harness.wait_for(lambda: "listening" in log.read_text(), 20, "a line about the address")
        reasons = [event.get("reason", "") for event in harness.read_lines(log)]
        for said in (doubtful, unknown):
            self.assertEqual(len([reason for reason in reasons if reason.startswith(said)]), 1, reasons)

    def test_keys_and_the_manual_page_are_printed(self):
        told = self.run_daemon("--help-config")
        self.assertEqual((told.returncode, told.stderr), (0, ""))
        self.assertIn("\npolicy.min_gain  EPLB_POLICY_MIN_GAIN\n", told.stdout)
        self.assertIn("--help-config", self.run_daemon("--help").stdout)
        page = self.run_daemon("--man")
        self.assertEqual(page.returncode, 0)
        self.assertIn("\n.B \\-\\-check\\-config\n", page.stdout)

    def test_the_first_line_is_json_whatever_the_address_holds(self):
        address = f'unix:{self.directory}/u"q/s.sock'
        (self.directory / 'u"q').mkdir()
        _, listening = self.spawned("--store", "memory", listen=address, stderr=subprocess.DEVNULL)
        self.assertEqual(listening["grpc"], address)

    def lines_on_a_terminal(self, *flags):
        mine, its = pty.openpty()
        self.addCleanup(os.close, mine)
        self.spawned("--store", "memory", *flags, stderr=its)
        os.close(its)
        text, deadline = "", time.monotonic() + 20 * harness.PATIENCE
        while "listening" not in text and time.monotonic() < deadline:
            if select.select([mine], [], [], 0.1)[0]:
                text += os.read(mine, 4096).decode()
        return [line for line in text.splitlines() if "listening" in line]

    def test_on_a_terminal_the_log_is_text_and_in_a_pipe_json(self):
        self.assertRegex(self.lines_on_a_terminal()[0], r"^\d\d:\d\d:\d\d\.\d{3} info  listening grpc=127.0.0.1:\d+ http=")
        self.assertEqual(json.loads(self.lines_on_a_terminal("--set", "log.format=json")[0])["event"], "listening")
        with open(self.directory / "log", "w", encoding="utf-8") as log:
            self.spawned("--store", "memory", stderr=log)
        path = self.directory / "log"
        harness.wait_for(lambda: "listening" in path.read_text(), 20, "a line about the address")
        self.assertTrue(all(json.loads(line)["event"] for line in path.read_text().splitlines()))


if __name__ == "__main__":
    unittest.main()
