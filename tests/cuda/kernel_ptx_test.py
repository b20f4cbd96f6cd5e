#!/usr/bin/env python3
"""Checks nvcc's assembly of the kernels: no GPU and no disassembler is needed.

Environment: EPLB_NVCC, EPLB_ROOT, the folder of cuda/.
"""
import os
import re
import subprocess
import tempfile
import unittest

ACCESS = re.compile(r"^\s*(?:@%p\d+ )?((?:ld|st)\.[\w.]+)", re.M)


def entries(name):
    """{mangled kernel: its code} of cuda/NAME.cu."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = os.path.join(folder, "kernels.ptx")
        subprocess.run([os.environ["EPLB_NVCC"], "-ptx", "-arch=compute_80", "-std=c++20", "-DEPLB_WITH_CUDA=1",
                        f"-I{os.environ['EPLB_ROOT']}", "-o", ptx, f"{os.environ['EPLB_ROOT']}/cuda/{name}.cu"], check=True)
        with open(ptx, encoding="utf-8") as file:
            return {part[:part.index("(")]: part for part in file.read().split(".entry ")[1:]}


def accesses(code):
    return [access for access in ACCESS.findall(code) if not access.startswith("ld.param")]


def streamed(size):
    return {f"ld.global.cs.{size}", f"st.global.cs.{size}"}


class KernelsOfRows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.copy = entries("copy")
        cls.add = entries("add_rows")
        cls.squares = entries("square_rows")

    def of(self, kernels, name):
        found = [code for kernel, code in kernels.items() if name in kernel]
        self.assertTrue(found, f"{name} among {list(kernels)}")
        return found

    def test_arrays_stay_in_registers(self):
        for kernels in (self.copy, self.add, self.squares):
            for kernel, code in kernels.items():
                self.assertNotRegex(code, r"\.local", kernel)

    # A pointer from a table is to any memory, as far as the compiler sees.
    def test_vectors_of_rows_are_streamed_through_global_memory(self):
        for kernels in (self.copy, self.add, self.squares):
            for kernel, code in kernels.items():
                for access in accesses(code):
                    if ".v4." in access:
                        self.assertIn(access, streamed("v4.u32"), kernel)
        for code in self.of(self.copy, "CopyKernel") + self.of(self.add, "AddRowsKernel"):
            self.assertLessEqual(streamed("v4.u32"), set(accesses(code)))
        for code in self.of(self.squares, "SquarePartsKernel"):
            self.assertIn("ld.global.cs.v4.u32", accesses(code))

    def test_rows_that_are_not_aligned_alike_go_by_words(self):
        for code in self.of(self.copy, "CopyKernel"):
            self.assertLessEqual(streamed("u32") | streamed("u64"), set(accesses(code)))
        for name, size in (("Float32", "u32"), ("Float64", "u64"), ("Bfloat16", "u32"), ("Float16", "u32")):
            for code in self.of(self.add, f"{name}Element"):
                self.assertLessEqual(streamed(size), set(accesses(code)), name)

    def test_halfwords_are_added_in_pairs(self):
        for name, addition in (("15Bfloat16", r"fma\.rn\.bf16x2"), ("14Float16", r"add.*\.f16x2")):  # a * 1 + b before sm_90
            for code in self.of(self.add, f"{name}Element"):
                self.assertRegex(code, addition)

    def test_squares_have_eight_loads_under_way(self):
        for code in self.of(self.squares, "SquarePartsKernel"):
            runs = [len(re.findall(r"ld\.global\.cs\.v4", run)) for run in re.split(r"(?:mul|add)\.rn\.f64|\bbra\b", code)]
            self.assertGreaterEqual(max(runs), 8)


class KernelsOfChoices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kernels = {name: entries(name) for name in ("count", "route", "quota_route", "split_exchange")}

    def test_arrays_stay_in_registers(self):
        for kernels in self.kernels.values():
            for kernel, code in kernels.items():
                self.assertNotRegex(code, r"\.local", kernel)

    def test_choices_are_divided_by_a_multiplication(self):
        for name in ("count", "route"):
            for kernel, code in self.kernels[name].items():
                self.assertNotRegex(code, r"(?:div|rem)\.", kernel)

    # An access through a generic pointer, or an atomic of memory for each choice, would cost the most.
    def test_choices_are_counted_in_shared_memory(self):
        for kernel, code in self.kernels["route"].items():
            if "11RouteKernel" in kernel:
                self.assertGreaterEqual(len(re.findall(r"(?:atom|red)\.shared", code)), 5, kernel)
                self.assertLessEqual(len(re.findall(r"(?:atom|red)\.global", code)), 2, kernel)
        for kernels in self.kernels.values():
            for kernel, code in kernels.items():
                for access in accesses(code):
                    self.assertRegex(access, r"\.(?:global|shared|param)", kernel)

    # A generic pointer, an atomic of 64 bits or a call in the loop of pushes would cost the most.
    def test_splits_stay_in_registers_and_shared_memory(self):
        kernels = entries("split")
        self.assertEqual(len(kernels), 2, "up to 64 and up to 128 GPUs")
        for kernel, code in kernels.items():
            self.assertNotRegex(code, r"\.local|\bcall\b|(?:div|rem)\.s64|(?:atom|red)\.shared[\w.]*64", kernel)
            for access in accesses(code):
                self.assertRegex(access, r"\.(?:global|shared|param)", kernel)


if __name__ == "__main__":
    unittest.main()
