"""run.sh over a bundle of programs that do nothing: what it says and how it ends, without a GPU."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import find_nccl  # noqa: E402

PROGRAMS = ("bin/eplb-trainer", "bin/eplbctl", "tests/cuda_gpu_test", "tests/migration_gpu_test", "tests/nccl_gpu_test",
            "tests/cuda_bench", "tests/gemm_loop_bench", "tools/compute-sanitizer", "tools/nvidia-smi")
VERDICT = '{"target": "a copy", "figure": "copy_to_memcpy", "value": 2.0, "at_most": 1.2, "verdict": "%s"}'


class RunTest(unittest.TestCase):
    def setUp(self):
        self.bundle = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-test-")))
        for folder in ("bin", "tests", "tools", "suite/gpu", "home"):
            (self.bundle / folder).mkdir(parents=True)
        for program in PROGRAMS:
            self.program(program, "exit 0")
        for script in ("run.sh", "find_nccl.py"):
            shutil.copy(HERE / script, self.bundle / "suite/gpu")
        (self.bundle / "suite/gpu/trainer_gpu_test.py").write_text("")

    def program(self, name, text):
        path = self.bundle / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run_suite(self, **environment):
        """Exit code and the summary's lines, which say that every step took no time."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("EPLB_", "CONDA_"))}
        variables.update(PATH=f"{self.bundle}/tools:{os.environ['PATH']}", OUT=str(self.bundle / "out"), **environment)
        ended = subprocess.run([self.bundle / "suite/gpu/run.sh", self.bundle], env=variables, capture_output=True, text=True,
                               timeout=60)
        summary = re.sub(r" \d+ s(:|$)", r" 0 s\1", (self.bundle / "out/summary.txt").read_text(), flags=re.M)
        return ended.returncode, summary.splitlines()

    def test_all_steps_pass(self):
        self.program("tests/cuda_bench", f"test $1 = --check && echo '{VERDICT % 'ok'}'")
        code, lines = self.run_suite(EPLB_REQUIRE_ALL="1")
        self.assertEqual((code, lines[0], lines[-1]), (0, "PASS needs 0 s", "0 steps skipped"))
        self.assertEqual([line for line in lines if line.startswith(("FAIL", "SKIP"))], [])
        self.assertEqual((self.bundle / "out/figures.jsonl").read_text(), VERDICT % "ok" + "\n")

    def test_skipped_steps_are_named_and_fail_where_all_are_required(self):
        (self.bundle / "tests/nccl_gpu_test").unlink()
        self.program("tests/gemm_loop_bench", "echo needs a GPU; exit 77")
        code, lines = self.run_suite()
        self.assertEqual((code, lines[-1]), (0, "3 steps skipped: nccl_ranks nccl_migration bench_gemm_loop"))
        self.assertIn("SKIP bench_gemm_loop 0 s: needs a GPU", lines)
        self.assertEqual(self.run_suite(EPLB_REQUIRE_ALL="1")[0], 1)

    def test_a_missed_target_is_a_failure(self):
        self.program("tests/cuda_bench", f"echo '{VERDICT % 'MISSED'}'; exit 1")
        code, lines = self.run_suite()
        self.assertEqual(code, 1)
        self.assertIn("FAIL bench_kernels 0 s: targets missed: 1, see bench_kernels.log", lines)

    def test_a_failed_step_does_not_end_the_others(self):
        self.program("tests/cuda_gpu_test", "exit 3")
        code, lines = self.run_suite()
        self.assertEqual(code, 1)
        self.assertIn("FAIL kernels 0 s: exit code 3, see kernels.log", lines)
        self.assertTrue(any(line.startswith("PASS bench_gemm_loop") for line in lines), lines)

    def test_a_program_that_does_not_run_ends_it_with_the_loaders_reason(self):
        self.program("bin/eplbctl", "echo 'libc.so.6: version GLIBC_2.36 not found' >&2; exit 1")
        code, lines = self.run_suite()
        self.assertEqual((code, lines),
                         (1, ["FAIL needs 0 s: eplbctl does not run here: libc.so.6: version GLIBC_2.36 not found"]))

    def test_what_is_too_old_is_named(self):
        self.program("tools/getconf", "echo glibc 2.31")
        self.program("tools/python3", "case $1 in --version) echo Python 3.9.2;; -c) exit 1;; esac")
        self.program("tools/nvidia-smi", "echo 535.183.01")
        code, lines = self.run_suite()
        self.assertEqual(code, 1)
        self.assertEqual(lines[:3], [
            "FAIL needs 0 s: glibc 2.36 or newer is needed, here is 2.31",
            "FAIL needs 0 s: Python 3.11 or newer is needed for step trainer, here is Python 3.9.2",
            "FAIL needs 0 s: driver 580 or newer is needed for CUDA 13, here is 535.183.01"])
        self.assertTrue(any(line.startswith("PASS kernels") for line in lines), lines)

    def test_nccl_of_a_python_package_is_found_and_told(self):
        library = self.bundle / "site-packages/nvidia/nccl/lib/libnccl.so.2"
        library.parent.mkdir(parents=True)
        library.touch()
        self.program("tests/nccl_gpu_test", 'echo "takes $EPLB_NCCL_PATH"')
        lines = self.run_suite(PYTHONPATH=str(self.bundle / "site-packages"))[1]
        self.assertIn(f"NCCL: {library}", lines)
        self.assertEqual((self.bundle / "out/nccl_ranks.log").read_text(), f"takes {library}\n")
        self.assertIn("NCCL: /opt/mine.so", self.run_suite(EPLB_NCCL_PATH="/opt/mine.so")[1])


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
