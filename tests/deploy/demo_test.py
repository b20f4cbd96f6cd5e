"""deploy/demo.sh and deploy/setup.sh, as a newcomer runs them, on the programs of this build."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["EPLB_BIN"])


def run(*command, **environment):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240,
                          env={**os.environ, "COLUMNS": "100", "LANG": "C.UTF-8", **environment})


class DemoTest(unittest.TestCase):
    def test_the_run_ends_with_a_report_that_leads_with_time_and_a_page(self):
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-demo-")))
        done = run(ROOT / "deploy/demo.sh", "--bin", BIN, "--dir", directory / "run", "--steps", 240, "--step-ms", 40)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        report = done.stdout[done.stdout.index("Run of job demo: 8 ranks, 240 steps"):]
        self.assertRegex(report.split("\n\n")[1], r"^\d+\.\d % (less|more) time than without EPLB: \d+\.\d s measured, "
                                                  r"\d+\.\d s\s+predicted")
        self.assertIn("changed nothing", report)  # events.json was saved: operators are known
        self.assertIn(f"{directory}/run/report.html", report)
        page = (directory / "run/report.html").read_text()
        self.assertIn("Content-Security-Policy", page)
        self.assertIn('"job":"demo"', page.replace("\\u003c", "<"))
        figures = json.loads((directory / "run/report.json").read_text())
        self.check_figures(figures)
        self.assertRegex(done.stdout, r"kill -9 \d+, then ")

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
        for flags, expected in ((["--steps"], "--steps needs a value"), (["--minutes", "x"], '--minutes is "x", expected a whole'),
                                (["--stepz", "4"], "unknown option --stepz")):
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
