"""run.sh over a bundle of programs that do nothing, and bundle.sh over tools that build nothing: without a GPU."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import find_nccl  # noqa: E402

PROGRAMS = ("bin/eplb-trainer", "bin/eplbctl", "tests/cuda_gpu_test", "tests/migration_gpu_test", "tests/cuda_bench", "tests/gemm_loop_bench", "tests/split_loop_bench", "tools/compute-sanitizer", "tools/nvidia-smi", "tools/ncu")
RESULTS = ["figures.jsonl", "logs.tgz", "summary.txt"]
VERDICT = '{"target": "a copy", "figure": "copy_to_memcpy", "value": 2.0, "at_most": 1.2, "verdict": "%s"}'
# Figures of the three runs that RESULTS.md describes.
CALL_SECONDS, PRINTED_CHARACTERS = 540, 12_000


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class RunTest(unittest.TestCase):
    def setUp(self):
        self.bundle = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-test-")))
        for folder in ("bin", "tests", "tools", "suite/gpu", "tmp"):
            (self.bundle / folder).mkdir(parents=True)
        for name in PROGRAMS:
            self.program(name, "exit 0")
        self.program("tests/migration_gpu_test", "echo NcclMigrationProcessesTest")
        for script in ("run.sh", "find_nccl.py"):
            shutil.copy(HERE / script, self.bundle / "suite/gpu")
        for script in ("trainer_gpu_test.py", "torch_step.py", "attach_step.py"):
            (self.bundle / "suite/gpu" / script).write_text("")

    def program(self, name, text):
        program(self.bundle / name, text)

    def run_script(self, *arguments, **environment):
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("EPLB_", "CONDA_"))}
        variables.update(PATH=f"{self.bundle}/tools:{os.environ['PATH']}", OUT=str(self.bundle / "out"),
                         TMPDIR=str(self.bundle / "tmp"), **environment)
        return subprocess.run([self.bundle / "suite/gpu/run.sh", *arguments], env=variables, capture_output=True, text=True,
                              timeout=120)

    def run_suite(self, *steps, **environment):
        """Exit code and the summary's lines, which say that every step took no time."""
        self.ended = self.run_script(self.bundle, *steps, **environment)
        summary = re.sub(r" \d+ s(:|$)", r" 0 s\1", (self.bundle / "out/summary.txt").read_text(), flags=re.M)
        return self.ended.returncode, summary.splitlines()

    def names_of(self, lines, *verdicts):
        return [line.split()[1] for line in lines if line.startswith(verdicts)]

    def log(self, step):
        with tarfile.open(self.bundle / "out/logs.tgz") as logs:
            return logs.extractfile(f"logs/{step}.log").read().decode()

    def table(self):
        """(call, step, longest time) of each step."""
        listed = self.run_script("--list")
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        return [(call, step, int(seconds)) for call, step, seconds in map(str.split, listed.stdout.splitlines())]

    def test_all_steps_pass(self):
        self.program("tests/cuda_bench", f"test \"$1\" != --check || echo '{VERDICT % 'ok'}'")
        code, lines = self.run_suite(EPLB_REQUIRE_ALL="1", EPLB_BUDGET_SECONDS="9999")
        self.assertEqual((code, lines[0], lines[-1]), (0, "PASS needs 0 s", "0 steps skipped"))
        self.assertEqual(self.names_of(lines, "PASS"), ["needs", *(step for _, step, _ in self.table())])
        self.assertEqual((self.bundle / "out/figures.jsonl").read_text(), VERDICT % "ok" + "\n")

    def test_results_are_there_after_each_step(self):
        """Files that a run killed in its second step leaves."""
        self.program("tests/cuda_gpu_test", "echo of the kernels")
        self.program("tests/cuda_bench", f"echo '{VERDICT % 'ok'}'")
        self.program("tests/gemm_loop_bench", f'cp -r "{self.bundle}/out" "{self.bundle}/seen"')
        self.run_suite("kernels", "bench_kernels", "bench_gemm_loop")
        seen = self.bundle / "seen"
        self.assertEqual(sorted(path.name for path in seen.iterdir()), RESULTS)
        self.assertIn("PASS bench_kernels", (seen / "summary.txt").read_text())
        self.assertEqual((seen / "figures.jsonl").read_text(), VERDICT % "ok" + "\n")
        with tarfile.open(seen / "logs.tgz") as logs:
            self.assertEqual(logs.extractfile("logs/kernels.log").read(), b"of the kernels\n")

    def test_steps_and_calls_are_chosen_by_name(self):
        self.assertEqual(self.names_of(self.run_suite("torch", "kernels")[1], "PASS"), ["needs", "kernels", "torch"])
        for call in ("call1", "call2", "call3"):
            expected = ["needs", *(step for of_call, step, _ in self.table() if of_call == call)]
            self.assertEqual(self.names_of(self.run_suite(call)[1], "PASS"), expected)

    def test_each_call_fits_its_budget_and_together_they_are_all_steps(self):
        seconds = {}
        for call, _, longest in self.table():
            seconds[call] = seconds.get(call, 0) + longest
        self.assertEqual(sorted(seconds), ["call1", "call2", "call3"])
        for call, longest in seconds.items():
            self.assertLessEqual(longest + 20, CALL_SECONDS, f"{call}, with 20 s for what is beside the steps")

    def test_the_page_names_each_step_and_the_three_calls(self):
        page = (HERE / "RESULTS.md").read_text()
        for _, step, _ in self.table():
            self.assertIn(f"`{step}`", page)
        for call in (1, 2, 3):
            self.assertRegex(page, f"(?m)^OUT=\\S+ \\S+/suite/gpu/run.sh \\S+ call{call}$")

    def test_a_step_that_does_not_fit_what_is_left_is_skipped_with_the_reason(self):
        code, lines = self.run_suite("machine", "kernels", EPLB_BUDGET_SECONDS="90")
        self.assertEqual((code, self.names_of(lines, "PASS")), (0, ["needs", "machine"]))
        reason = re.compile(r"SKIP kernels 0 s: it may take 100 s, of 90 s there are \d\d left")
        self.assertTrue(any(reason.fullmatch(line) for line in lines), lines)
        self.assertEqual(self.run_suite("kernels", EPLB_BUDGET_SECONDS="90", EPLB_REQUIRE_ALL="1")[0], 1)

    def test_wrong_arguments_are_exit_2(self):
        for arguments, environment, said in (
                ((), {}, 'there is no bundle in ""'),
                (("/nowhere",), {}, 'there is no bundle in "/nowhere"'),
                ((self.bundle, "kernel"), {}, 'there is no step "kernel", --list names them'),
                ((self.bundle, "100"), {}, 'there is no step "100"'),
                ((self.bundle,), {"EPLB_BUDGET_SECONDS": "9m"}, 'EPLB_BUDGET_SECONDS is "9m", expected seconds')):
            ended = self.run_script(*arguments, **environment)
            self.assertEqual((ended.returncode, ended.stdout), (2, ""))
            self.assertIn(said, ended.stderr)
        self.assertFalse((self.bundle / "out").exists())

    def test_skipped_steps_are_named_and_fail_where_all_are_required(self):
        self.program("tests/migration_gpu_test", "exit 0")
        self.program("tests/gemm_loop_bench", "echo needs a GPU; exit 77")
        (self.bundle / "suite/gpu/torch_step.py").write_text("print('the torch step is skipped: no torch')\nraise SystemExit(77)\n")
        self.program("tools/ncu", "echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1")
        code, lines = self.run_suite(EPLB_BUDGET_SECONDS="9999")
        self.assertEqual((code, lines[-1]), (0, "4 steps skipped: nccl_migration torch bench_gemm_loop profile"))
        self.assertIn("SKIP bench_gemm_loop 0 s: needs a GPU", lines)
        self.assertIn("SKIP torch 0 s: the torch step is skipped: no torch", lines)
        self.assertEqual(self.run_suite(EPLB_BUDGET_SECONDS="9999", EPLB_REQUIRE_ALL="1")[0], 1)

    def test_a_missed_target_is_a_failure_and_a_warning_is_none(self):
        self.program("tests/cuda_bench", f"echo '{VERDICT % 'WARNING'}'; echo '{VERDICT % 'MISSED'}'; exit 1")
        code, lines = self.run_suite("bench_kernels")
        self.assertEqual(code, 1)
        self.assertIn("FAIL bench_kernels 0 s: targets missed: 1, see figures.jsonl", lines)
        self.program("tests/cuda_bench", f"echo '{VERDICT % 'WARNING'}'")
        code, lines = self.run_suite("bench_kernels")
        self.assertEqual(code, 0)
        self.assertIn("PASS bench_kernels 0 s: 1 targets out of this device's reach, see figures.jsonl", lines)

    def test_a_failed_step_does_not_end_the_others(self):
        self.program("tests/cuda_gpu_test", "exit 3")
        code, lines = self.run_suite("call1")
        self.assertEqual(code, 1)
        self.assertIn("FAIL kernels 0 s: exit code 3, see kernels.log", lines)
        self.assertEqual(self.names_of(lines, "PASS")[-1], "bench_kernels")

    def test_little_is_printed_and_the_verdicts_last(self):
        noise = f"i=0; while [ $i -lt 300 ]; do echo {'x' * 300}; i=$((i+1)); done; echo the reason; exit 3"
        for name in ("tests/cuda_gpu_test", "tests/migration_gpu_test", "tools/compute-sanitizer"):
            self.program(name, noise)
        self.program("tests/cuda_bench", f"for i in 1 2 3 4 5 6 7 8; do echo '{VERDICT % 'MISSED'}'; done; exit 1")
        code, _ = self.run_suite(EPLB_BUDGET_SECONDS="9999")
        printed = self.ended.stdout
        self.assertEqual((code, self.ended.stderr), (1, ""))
        self.assertLessEqual(len(printed), PRINTED_CHARACTERS)
        self.assertIn("the reason\n", printed)
        self.assertIn(VERDICT % "MISSED", printed)
        end = printed[printed.index("--- verdicts"):].splitlines()
        self.assertEqual(end[1:9], [VERDICT % "MISSED"] * 8)
        self.assertEqual(end[9:], (self.bundle / "out/summary.txt").read_text().splitlines())
        self.assertEqual(self.log("kernels").count("x" * 300), 300)

    def test_the_steps_of_torch_get_library_and_package(self):
        for step in ("torch", "attach"):
            (self.bundle / f"suite/gpu/{step}_step.py").write_text("import os, sys\nprint(os.environ['EPLB_LIBRARY'], sys.path[1])\n"
                                                                   "print('{\"bench\": 1}')\n")
            self.run_suite(step)
            self.assertEqual(self.log(step), f"{self.bundle}/lib/libeplb.so.0 {self.bundle}/python\n{{\"bench\": 1}}\n")
        self.assertEqual((self.bundle / "out/figures.jsonl").read_text(), '{"bench": 1}\n')

    def test_packed_libraries_are_there_before_a_program_runs(self):
        (self.bundle / "lib").mkdir()
        (self.bundle / "lib/libgrpc.so.29").write_text("of ours")
        with tarfile.open(self.bundle / "lib.tar.gz", "w:gz") as packed:
            packed.add(self.bundle / "lib", "lib")
        shutil.rmtree(self.bundle / "lib")
        self.program("tests/cuda_gpu_test", f"cat {self.bundle}/lib/libgrpc.so.29")
        self.run_suite("kernels")
        self.assertEqual(self.log("kernels"), "of ours")
        # Those of an older bundle, or what a run that was ended has unpacked.
        (self.bundle / "lib/libgrpc.so.29").write_text("old")
        (self.bundle / "lib.new").mkdir()
        self.run_suite("kernels")
        self.assertEqual(self.log("kernels"), "of ours")

    def test_libraries_that_cannot_be_unpacked_end_it(self):
        (self.bundle / "lib.tar.gz").write_text("no archive")
        ended = self.run_script(self.bundle, "kernels")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("cannot be unpacked", ended.stderr)
        self.assertFalse((self.bundle / "lib").exists())

    def test_a_program_that_does_not_run_ends_it_with_the_loaders_reason(self):
        self.program("bin/eplbctl", "echo 'libc.so.6: version GLIBC_2.36 not found' >&2; exit 1")
        code, lines = self.run_suite()
        self.assertEqual((code, lines),
                         (1, ["FAIL needs 0 s: eplbctl does not run here: libc.so.6: version GLIBC_2.36 not found"]))
        self.assertEqual(sorted(path.name for path in (self.bundle / "out").iterdir()), RESULTS)

    def test_what_is_too_old_is_named(self):
        self.program("tools/getconf", "echo glibc 2.31")
        self.program("tools/python3", "case $1 in --version) echo Python 3.9.2;; -c) exit 1;; esac")
        self.program("tools/nvidia-smi", "echo 535.183.01")
        code, lines = self.run_suite("kernels")
        self.assertEqual(code, 1)
        self.assertEqual(lines[:3], [
            "FAIL needs 0 s: glibc 2.36 or newer is needed, here is 2.31",
            "FAIL needs 0 s: Python 3.11 or newer is needed for steps trainer, torch and attach, here is Python 3.9.2",
            "FAIL needs 0 s: driver 580 or newer is needed for this bundle's CUDA, here is 535.183.01"])
        self.assertTrue(any(line.startswith("PASS kernels") for line in lines), lines)

    def test_the_bundle_names_the_driver_that_its_cuda_needs(self):
        self.program("tools/nvidia-smi", "echo 535.183.01")
        (self.bundle / "driver").write_text("525\n")
        self.assertEqual(self.run_suite("kernels")[0], 0)

    def test_nccl_of_a_python_package_is_found_and_told(self):
        library = self.bundle / "site-packages/nvidia/nccl/lib/libnccl.so.2"
        library.parent.mkdir(parents=True)
        library.touch()
        self.program("tests/migration_gpu_test", 'echo "Nccl takes $EPLB_NCCL_PATH"')
        lines = self.run_suite("nccl_migration", PYTHONPATH=str(self.bundle / "site-packages"))[1]
        self.assertIn(f"NCCL: {library}", lines)
        self.assertEqual(self.log("nccl_migration"), f"Nccl takes {library}\n")
        self.assertIn("NCCL: /opt/mine.so", self.run_suite("nccl_migration", EPLB_NCCL_PATH="/opt/mine.so")[1])


class BundleTest(unittest.TestCase):
    """With a strip that writes files of a given size in place of a build's."""

    def make(self, strip="echo > \"$out\"", **environment):
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-test-")))
        tools = root / "tools"
        tools.mkdir()
        program(tools / "cmake", f'echo "$@" > "{root}/cmake"')
        program(tools / "ninja", "exit 0")
        program(tools / "ldd", "echo '\tlibgrpc.so.29 => /usr/lib/libgrpc.so.29 (0x1)'; echo '\tlibc.so.6 => /lib/libc.so.6 (0x2)'")
        program(tools / "strip", f'while [ "$1" != -o ]; do shift; done; out="$2"; {strip}; chmod +x "$out"')
        variables = {name: value for name, value in os.environ.items() if name not in ("ARCHITECTURES", "JOBS")}
        variables.update(PATH=f"{tools}:{os.environ['PATH']}", **environment)
        ended = subprocess.run([HERE / "bundle.sh", root / "bundle"], env=variables, capture_output=True, text=True, timeout=60)
        return root, ended

    def test_it_holds_what_the_steps_take(self):
        root, ended = self.make()
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        for name in ("bin/eplbd", "bin/eplbctl", "bin/eplb-trainer", "tests/migration_gpu_test",
                     "python/eplb/client.py", "suite/gpu/run.sh", "suite/gpu/torch_step.py", "suite/gpu/attach_step.py", "suite/integration/job.py",
                     "suite/client/python/ranks.py", "data/moe64_aux.jsonl", "driver"):
            self.assertTrue((root / "bundle" / name).is_file(), name)
        with tarfile.open(root / "bundle/lib.tar.gz") as packed:
            self.assertEqual(sorted(packed.getnames()), ["lib", "lib/libeplb.so.0", "lib/libgrpc.so.29"])
        self.assertFalse((root / "bundle/lib").exists())
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=90\n", (root / "cmake").read_text())
        self.assertIn("-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib ", (root / "cmake").read_text())
        self.assertIn("=80;90\n", (self.make(ARCHITECTURES="80;90")[0] / "cmake").read_text())

    def test_its_steps_of_torch_find_their_modules(self):
        """They skip for want of a GPU, not of a module of ours."""
        root, _ = self.make()
        bundle = root / "bundle"
        code = "import torch_step, attach_step, compare, ranks; print(ranks.eplb.__file__)"
        stand_in = root / "site/torch"
        for module in ("distributed", "utils"):
            (stand_in / module).mkdir(parents=True)
            (stand_in / module / "__init__.py").touch()
        (stand_in / "utils/checkpoint.py").write_text("checkpoint = None\n")
        (stand_in / "__init__.py").write_text("from unittest import mock\ndef __getattr__(name): return mock.MagicMock()\n")
        (root / "site/numpy.py").write_text("ndarray = float64 = int64 = int32 = dtype = generic = object\n"
                                            "def __getattr__(name): return object\n")
        ended = subprocess.run(
            [sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60, env={
                **os.environ, "EPLB_BIN": "bin", "EPLB_DATA": "data",
                "PYTHONPATH": f"{root}/site:{bundle}/suite/gpu:{bundle}/python"})
        self.assertEqual(ended.stderr, "")
        self.assertEqual(ended.stdout, f"{bundle}/python/eplb/__init__.py\n")

    def test_one_that_is_too_large_to_send_is_refused(self):
        root, ended = self.make(strip='truncate -s 6M "$out"')  # 3 programs and 5 tests: 48 MiB; zeros pack well
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, f"^{root}/bundle: (48|49|5[0-5]) MiB\n$")
        root, ended = self.make(strip='truncate -s 7M "$out"')
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stderr, "the bundle has 5[6-9] MiB, it must stay below 56 MiB")


class ScriptsTest(unittest.TestCase):
    @unittest.skipUnless(shutil.which("shellcheck"), "there is no shellcheck")
    def test_shellcheck_finds_nothing(self):
        ended = subprocess.run(["shellcheck", HERE / "run.sh", HERE / "bundle.sh"], capture_output=True, text=True, timeout=120)
        self.assertEqual((ended.returncode, ended.stdout), (0, ""))


class FindNcclTest(unittest.TestCase):
    def test_packages_of_other_pythons_and_conda_are_looked_at(self):
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-test-")))
        self.enterContext(unittest.mock.patch.dict(os.environ, CONDA_PREFIX=str(root / "conda")))
        expected = [root / "conda/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
                    root / "usr/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2",
                    root / "usr/python3.9/dist-packages/nvidia/nccl/lib/libnccl.so.2",
                    root / "usr/python3/dist-packages/nvidia/nccl/lib/libnccl.so.2",
                    root / "conda/lib/libnccl.so.2"]
        for path in expected:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        found = [path for path in find_nccl.candidates([str(root / "usr")]) if path.startswith(str(root))]
        self.assertEqual(found, [str(path) for path in expected])


if __name__ == "__main__":
    unittest.main()
