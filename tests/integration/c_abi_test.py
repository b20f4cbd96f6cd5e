"""libeplb.so in processes of its own with a real daemon: how they may end, fork, and be started twice; and from an installed
prefix, as a user has it."""

import os
import pathlib
import re
import subprocess
import unittest

import job as harness

BUILD = pathlib.Path(os.environ["EPLB_BUILD"])
RANK = BUILD / "tests" / "c99_rank"


class WithDaemon(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon()

    def run_bounded(self, *command, **options):
        return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              timeout=120 * harness.PATIENCE, **options)


class CRankTest(WithDaemon):
    def assert_ends_well(self, how):
        result = self.run_bounded(RANK, how, self.daemon.endpoint)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_a_program_may_return_from_main_with_its_client_open(self):
        self.assert_ends_well("leave")
        # The daemon sees that as a rank that died.
        self.assertNotIn("finished", self.daemon.logged("run_ended")[0]["reason"])

    def test_a_handler_that_was_registered_first_may_destroy_the_client_last(self):
        self.assert_ends_well("atexit")

    def test_a_forked_child_says_once_that_it_does_nothing_and_the_parent_goes_on(self):
        result = self.assert_ends_well("fork")
        self.assertEqual(result.stderr.count("this process was forked from a rank of a job"), 1, result.stderr)
        self.assertIn("finished", self.daemon.logged("run_ended")[0]["reason"])

    def test_two_processes_that_come_as_one_rank_are_both_told(self):
        twins = [subprocess.Popen([RANK, "twin", self.daemon.endpoint], stdout=subprocess.PIPE, text=True)
                 for _ in range(2)]
        said = [twin.communicate(timeout=120 * harness.PATIENCE)[0] for twin in twins]
        self.assertEqual([twin.returncode for twin in twins], [0, 0], said)
        for text in said:
            self.assertRegex(text, "^FailedPrecondition: .*two runs share the launch id both: rank 0 has two processes")


class InstalledPrefixTest(WithDaemon):
    def install(self):
        prefix = self.directory / "prefix"
        result = self.run_bounded("cmake", "--install", BUILD, "--prefix", prefix)
        self.assertEqual(result.returncode, 0, result.stdout[-2000:] + result.stderr)
        moved = self.directory / "moved"  # a prefix may be moved
        prefix.rename(moved)
        return moved

    def assert_runs(self, *command, **options):
        result = self.run_bounded(*command, **options)
        self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout[-3000:]}{result.stderr[-3000:]}")
        return result.stdout

    def test_examples_build_against_an_installed_prefix_and_train(self):
        prefix = self.install()
        self.assert_package_is_clean(prefix)
        source = next(prefix.glob("share/doc/eplb/deploy/examples/c/CMakeLists.txt")).parent
        build = self.directory / "build"
        # The package search has nothing but this prefix: no gRPC, Protobuf or Abseil can be found.
        self.assert_runs("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
                         *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("gRPC", "Protobuf", "absl")),
                         "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
        self.assert_runs("cmake", "--build", build)
        self.assertRegex(self.assert_runs(build / "threads"), r"^balancedness 1\.000 with experts( \d)+\n$")
        self.assert_trainers_switch(build / "trainer")
        self.assert_pkg_config_builds(prefix, source)
        self.assertRegex(self.assert_runs(prefix / "bin" / "eplbctl", "--version"), r"\d+\.\d+\.\d+")
        self.assertRegex(self.assert_runs(prefix / "bin" / "eplbd", "--version"), r"\d+\.\d+\.\d+")

    def assert_package_is_clean(self, prefix):
        self.assertEqual(sorted(path.name for path in (prefix / "include").iterdir()), ["eplb.h", "eplb_plan.h"])
        for path in [*prefix.rglob("*.cmake"), *prefix.rglob("*.pc")]:
            self.assertIsNone(re.search(r"gRPC|protobuf|absl", path.read_text(), re.I), path)
            self.assertNotIn(str(BUILD.parent), path.read_text(), path)

    def assert_trainers_switch(self, trainer):
        ranks = [subprocess.Popen([trainer, str(rank), "4", self.daemon.endpoint], text=True, env={**os.environ, "EPLB_LAUNCH_ID": "installed"},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(4)]
        said = [rank.communicate(timeout=120 * harness.PATIENCE)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0] * 4, said)
        self.assertRegex(said[0], r"after step \d+: version \d+, .*peak GPU load of these steps falls")

    def assert_pkg_config_builds(self, prefix, source):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(next(prefix.rglob("eplb.pc")).parent)}
        flags = self.assert_runs("pkg-config", "--cflags", "--libs", "eplb", env=environment).split()
        program = self.directory / "by-pkg-config"
        self.assert_runs("cc", "-std=c99", "-Wpedantic", "-Wall", "-Werror", source / "trainer.c", "-o", program,
                         *flags)
        library = next(prefix.rglob("libeplb.so.0")).parent
        result = self.run_bounded(program, env={**os.environ, "LD_LIBRARY_PATH": str(library)})
        self.assertEqual((result.returncode, result.stderr), (2, "usage: trainer RANK WORLD ENDPOINT [STEPS]\n"))


if __name__ == "__main__":
    unittest.main()
