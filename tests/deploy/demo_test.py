"""The demonstration, the wheel's commands, and deploy/setup.sh, as a newcomer runs them, on the programs of this build."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "client/python"
BIN = pathlib.Path(os.environ["EPLB_BIN"])
os.environ["PYTHONPATH"] = str(PACKAGE)


def run(*command, **environment):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240,
                          env={**os.environ, "COLUMNS": "100", "LANG": "C.UTF-8", **environment})


def alive(directory):
    """The processes whose command line names a file in the directory."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(directory).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


class DemoTest(unittest.TestCase):
    def setUp(self):
        self.run_directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-demo-"))) / "run"

    def demo(self, *flags):
        return [sys.executable, "-B", "-m", "eplb.demo", "--bin", BIN, "--dir", self.run_directory, *flags]

    def test_the_run_ends_with_a_short_screen_that_leads_with_time_and_names_report_and_page(self):
        directory = self.run_directory
        done = run(ROOT / "deploy/demo.sh", "--bin", BIN, "--dir", directory, "--steps", 240, "--step-ms", 40)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertRegex(done.stdout, r"kill -9 \d+; ")
        screen = done.stdout[done.stdout.index("ran  "):].splitlines()
        self.assertLessEqual(len(screen), 15)
        self.assertRegex(screen[0], r"8 ranks, 240 steps, \d+ rebalances$")
        job = json.loads((directory / "job.json").read_text())
        self.assertRegex(screen[1], rf"^saved +(about )?{job['saved_seconds']:.1f} s, \d+\.\d % of the time without EPLB$")
        self.assertEqual(screen[2], "basis     " + job["saved_basis"])
        self.assertIn("fullest GPUs of each batch against one slot per expert", screen[2])
        # The daemon knows a token's time by the step times, and the report by the trainer's model.
        report = json.loads((directory / "report.json").read_text())
        of_logs = report["comparison"]["without_eplb_predicted"]["total_seconds"] - report["time"]["measured_seconds"]
        self.assertGreater(job["saved_seconds"], 0)
        if not job["saved_is_assumed"]:
            self.assertAlmostEqual(job["saved_seconds"] / of_logs, 1, delta=0.6)
        for word, file in (("report", "report.txt"), ("page", "report.html")):
            self.assertRegex("\n".join(screen), rf"(?m)^{word} +{re.escape(str(directory / file))}")
        self.assertIn("changed nothing", (directory / "report.txt").read_text())  # events.json was saved: operators are known
        page = (directory / "report.html").read_text()
        self.assertIn("Content-Security-Policy", page)
        self.assertIn('"job":"demo"', page.replace("\\u003c", "<"))
        self.check_figures(json.loads((directory / "report.json").read_text()))

    def test_what_does_not_hold_is_a_problem_and_exit_8(self):
        done = run(*self.demo("--steps", 12, "--step-ms", 10))
        self.assertEqual(done.returncode, 8, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^PROBLEM +\d rebalances? committed, expected at least 3$")
        self.assertEqual(alive(self.run_directory), [])

    def test_a_rank_that_fails_ends_the_run_with_its_message(self):
        programs = self.run_directory.parent / "bin"
        programs.mkdir()
        for name in ("eplbd", "eplbctl"):
            (programs / name).symlink_to(BIN / name)
        (programs / "eplb-trainer").write_text("#!/bin/sh\necho no memory >&2\nexit 8\n")
        (programs / "eplb-trainer").chmod(0o755)
        done = run(*self.demo("--bin", programs, "--steps", 400))
        self.assertEqual(done.returncode, 8, done.stdout + done.stderr)
        self.assertIn("eplb.demo: rank 3 ended with 8: no memory\n", done.stderr)

    def test_daemon_and_ranks_end_with_it_however_it_ends(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
            with self.subTest(number=number):
                demo = subprocess.Popen([str(word) for word in self.demo("--steps", 4000)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.wait_until(lambda: len(alive(self.run_directory)) == 10)  # itself, daemon, ranks
                demo.send_signal(number)
                self.assertEqual(demo.wait(30), code)
                self.wait_until(lambda: not alive(self.run_directory))

    def wait_until(self, condition):
        end = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)

    def test_a_folder_with_other_files_is_left_alone(self):
        self.run_directory.mkdir()
        (self.run_directory / "thesis").write_text("years")
        done = run(*self.demo())
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"\Aeplb\.demo: .*/run has files that no demonstration wrote: give another --dir\n\Z")
        self.assertEqual((self.run_directory / "thesis").read_text(), "years")

        (self.run_directory / "thesis").unlink()
        (self.run_directory / ".eplb-demo").touch()
        (self.run_directory / "chapters").mkdir()
        self.assertEqual(run(*self.demo()).returncode, 1)
        self.assertTrue((self.run_directory / "chapters").exists())

    def check_figures(self, figures):
        """Exact splits, and placements for them: above equal shares and static; less moved than by planning anew."""
        rows = figures["comparison"]
        ours, deepseek = rows["run"], rows["deepseek_same_windows_predicted"]
        self.assertEqual(figures["split"], "batch")
        self.assertLess(1.5 * ours["bytes_moved"], deepseek["bytes_moved"])
        self.assertGreater(ours["balancedness"], deepseek["balancedness"] + 0.03)
        # The trace drifts most in its first half, which is all that these steps reach.
        self.assertGreater(ours["balancedness"], rows["without_eplb_predicted"]["balancedness"] + 0.05)
        self.assertAlmostEqual(figures["time_saved"], 1 - ours["peak_tokens"] / rows["without_eplb_predicted"]["peak_tokens"])
        self.assertGreater(ours["balancedness"], rows["equal_shares_predicted"]["balancedness"] + 0.05)
        self.assertGreater(rows["split_hindsight_predicted"]["balancedness"], ours["balancedness"])
        self.assertTrue(figures["time"]["modelled"])
        self.assertNotIn("held_back", figures["balancedness"]["formula"])  # no step was held back
        self.assertGreater(figures["decisions"][0]["balancedness_until_next"], 0)
        self.assertEqual(figures["decisions"][-1]["until_next_last_step"], figures["steps"] - 1)
        self.assertEqual({decision["policy"] for decision in figures["decisions"]}, {"auto"})
        numbers = [decision["decision"] for decision in figures["decisions"]]
        self.assertEqual(numbers, sorted(set(numbers)))

    def test_wrong_flags_are_exit_2_and_name_what_was_expected(self):
        for flags, expected in ((["--bin"], "--bin needs a value"), (["--minutes", "x"], '--minutes: "x", expected a whole number above 0'),
                                (["--stepz", "4"], "unrecognized arguments: --stepz")):
            done = run(ROOT / "deploy/demo.sh", *flags)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(expected, done.stderr)

    def test_progress_of_the_build_estimates_what_is_left_from_the_rate_so_far(self):
        """The function of the script, fed with what ninja prints."""
        script = (ROOT / "deploy/demo.sh").read_text()
        function = re.search(r"^show_progress\(\) \{.*?^\}", script, re.M | re.S)[0]
        lines = ["[0/430 0.1] Building A", "[1/430 2.0] B", "[60/430 31.5] C", "compiler says something", "[61/430 32.0] D",
                 "[430/430 300.0] E"]
        done = subprocess.run(["bash", "-c", f"set -euo pipefail\n{function}\nshow_progress"], input="\n".join(lines) + "\n",
                              capture_output=True, text=True, timeout=20)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.stdout.splitlines(), ["[  0/430]", "[ 60/430], about 4 min left at the rate so far",
                                                    "[430/430]"])


class ProgramsTest(unittest.TestCase):
    """The package as a wheel lays it out, with the programs of this build."""

    def setUp(self):
        self.site = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-site-")))
        shutil.copytree(PACKAGE / "eplb", self.site / "eplb", ignore=shutil.ignore_patterns("__pycache__"))
        self.programs = self.site / "eplb/bin"
        self.programs.symlink_to(BIN)

    def command(self, name, *arguments, **environment):
        """Runs what pip's script of that name runs."""
        module, function = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["scripts"][name].split(":")
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        return run(sys.executable, "-B", "-c", code, *arguments, **{"PYTHONPATH": str(self.site), **environment})

    def test_arguments_and_exit_codes_are_those_of_the_programs(self):
        self.assertRegex(self.command("eplbctl", "--version").stdout, r"^eplbctl \d")
        self.assertRegex(self.command("eplbd", "--version").stdout, r"^eplbd \d")
        trace = ROOT / "tests/data/moe64_aux.jsonl"
        done = self.command("eplbctl", "replay", "--trace", trace, "--gpus", 8, "--slots", 72, "-o", "json")
        self.assertIn("balancedness_mean", json.loads(done.stdout)["summary"], done.stderr)
        self.assertEqual(self.command("eplbctl", "replay", "--trace", trace).returncode, 2)
        self.assertEqual(self.command("eplbctl", "status", "--endpoint", "127.0.0.1:1").returncode, 3)

    def test_convert_joins_files_by_eplbctl(self):
        out, dump = self.site / "out.jsonl", ROOT / "tests/data/torch/recorder.pt"
        self.assertEqual(self.command("eplb-convert", dump, dump, out).returncode, 0)
        self.assertEqual(len(out.read_text().splitlines()), 6)
        done = run(sys.executable, "-B", "-m", "eplb.convert", self.site / "none.pt", out, PYTHONPATH=str(self.site))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Aeplbctl: [^\n]*/none\.pt: [^\n]+\n\Z")

    def test_a_program_has_the_signals_that_a_shell_gives_it(self):
        self.programs.unlink()
        self.programs.mkdir()
        (self.programs / "eplbctl").symlink_to("/usr/bin/grep")  # prints which signals it ignores
        ignored = self.command("eplbctl", "SigIgn", "/proc/self/status").stdout.split()[1]
        self.assertEqual(int(ignored, 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)), 0)

    def test_a_tree_without_programs_takes_those_on_path_or_reports_them_in_one_line(self):
        self.programs.unlink()
        self.assertRegex(self.command("eplbctl", "--version", PATH=str(BIN)).stdout, r"^eplbctl \d")
        for name in ("eplbctl", "eplbd", "eplb-convert"):
            done = self.command(name, "x", PATH=str(self.site))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"\A\w+: neither [^\n]*/eplb/bin nor PATH has \w+; [^\n]+\n\Z")


class SetupTest(unittest.TestCase):
    def setup_on(self, system, *flags):
        """deploy/setup.sh where /etc/os-release names `system`."""
        name, _, version = system.partition(" ")
        with tempfile.NamedTemporaryFile("w") as release:
            release.write(f'VERSION_ID="{version}"\nID={name}\n')
            release.flush()
            return run(ROOT / "deploy/setup.sh", *flags, EPLB_OS_RELEASE=release.name)

    def names(self, system, flag):
        done = self.setup_on(system, flag, "--list")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_each_flag_asks_for_what_its_purpose_needs(self):
        build, tests, packages, everything = (set(self.names("debian 12", flag)) for flag in ("--build", "--tests", "--packages", "--all"))
        self.assertIn("libgrpc++-dev", build)
        self.assertFalse(build & {"chromium", "libgtest-dev", "libbenchmark-dev", "prometheus", "clang-tidy", "debootstrap"})
        self.assertLess(build, tests)
        self.assertLessEqual({"libgtest-dev", "libbenchmark-dev", "python3-venv", "prometheus", "chromium"}, tests)
        self.assertNotIn("clang-tidy", tests)
        self.assertLessEqual(build | {"dpkg-dev", "patchelf", "debootstrap"}, packages)
        self.assertNotIn("libgtest-dev", packages)
        self.assertLessEqual(tests | packages | {"clang-tidy", "libclang-rt-14-dev"}, everything)

    def test_names_are_those_of_the_system(self):
        for system, name in (("debian 13", "libclang-rt-19-dev"), ("ubuntu 24.04", "libclang-rt-18-dev")):
            names = self.names(system, "--all")
            self.assertIn(name, names)
            self.assertNotIn("libclang-rt-14-dev", names)
            self.assertEqual(len(names), len(self.names("debian 12", "--all")))

    def test_a_system_that_is_too_old_is_told_what_it_lacks(self):
        done = self.setup_on("ubuntu 22.04", "--build")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("CMake 3.22, gRPC 1.30", done.stderr)
        self.assertIn("docs/installing.md", done.stderr)

    def test_another_distribution_gets_the_list_and_the_next_command(self):
        done = self.setup_on("fedora 40", "--build")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("  libgrpc++-dev\n", done.stderr)
        self.assertIn("cmake --preset release -DEPLB_TESTS=OFF\n", done.stderr)
        self.assertIn("--target eplbd eplbctl eplb-trainer\n", done.stderr)
        self.assertIn("deploy/demo.sh --skip-setup", done.stderr)
        self.assertNotIn("--workflow", done.stderr)  # which would run every test

    def test_an_unknown_argument_is_exit_2(self):
        done = run(ROOT / "deploy/setup.sh", "--biuld")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("expected --build, --tests, --packages, --all or --list", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
