#!/usr/bin/env python3
"""Checks nvcc's assembly and machine code of the kernels: no GPU is needed.

Environment: EPLB_NVCC, EPLB_ROOT, the folder of cuda/.
"""
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

POLLS = re.compile(r"^(\$\w+):\s+ld\.volatile(.*?bra\s+)\1;", re.M | re.S)  # a loop that begins by a poll
ACCESS = re.compile(r"^\s*(?:@%p\d+ )?((?:ld|st)\.[\w.]+)", re.M)


def compile_kernels(name, output, *options):
    """Compiles cuda/NAME.cu. Returns what the compiler prints."""
    root = os.environ["EPLB_ROOT"]
    return subprocess.run([os.environ["EPLB_NVCC"], *options, "-std=c++20", "-DEPLB_WITH_CUDA=1", f"-I{root}", "-o", output,
                           f"{root}/cuda/{name}.cu"], check=True, capture_output=True, text=True).stderr


def entries(name, architecture="compute_80"):
    """{mangled kernel: its code} of cuda/NAME.cu."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = os.path.join(folder, "kernels.ptx")
        compile_kernels(name, ptx, "-ptx", f"-arch={architecture}")
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
        cls.kernels = {name: entries(name) for name in ("count", "route", "quota_route", "split_exchange", "turn")}

    def test_arrays_stay_in_registers(self):
        for kernels in self.kernels.values():
            for kernel, code in kernels.items():
                self.assertNotRegex(code, r"\.local", kernel)

    def test_choices_are_divided_by_a_multiplication(self):
        for name in ("count", "route", "turn"):
            for kernel, code in self.kernels[name].items():
                self.assertNotRegex(code, r"(?:div|rem)\.", kernel)

    # An access through a generic pointer, or an atomic of memory for each choice, would cost the most.
    def test_choices_are_counted_in_shared_memory(self):
        for kernel, code in (self.kernels["route"] | self.kernels["count"]).items():
            if re.search("11RouteKernel|11CountKernelI.Lb1", kernel):
                self.assertGreaterEqual(len(re.findall(r"(?:atom|red)\.shared", code)), 5, kernel)
                self.assertLessEqual(len(re.findall(r"(?:atom|red)\.global", code)), 2, kernel)
        for kernels in self.kernels.values():
            for kernel, code in kernels.items():
                for access in accesses(code):
                    self.assertRegex(access, r"\.(?:global|shared|param)", kernel)

    # The CPU sees the words in the order of the kernel, and the kernel those of the CPU. One barrier after a fence serves all quotas.
    def test_words_shared_with_the_cpu_are_fenced(self):
        for kernel, code in self.kernels["split_exchange"].items():
            code = POLLS.sub("", code)
            steps = re.findall(r"(?:ld|st)\.volatile|st\.global|membar\.sys|bar\.sync", code)
            self.assertIn("st.volatile", steps, kernel)
            for before, step, after in zip(steps, steps[1:], steps[2:]):
                if step == "st.volatile":
                    self.assertEqual(before, "membar.sys", kernel)
                elif step == "ld.volatile" and before != "bar.sync":
                    self.assertEqual(after, "membar.sys", kernel)

    # A fence after each poll would cost more than the poll.
    def test_polls_for_the_answer_are_fenced_once(self):
        code, = (code for kernel, code in self.kernels["split_exchange"].items() if "SplitExchangeKernel" in kernel)
        polls, = POLLS.finditer(code)
        self.assertNotIn("membar", polls[2])
        answered = re.search(r"bra\s+(\$\w+)", polls[2])[1]
        self.assertRegex(code, rf"{re.escape(answered)}:\s+membar\.sys")

    # The kernel before may write until then what this one reads.
    def test_kernels_that_overlap_await_their_turn_first(self):
        for name in ("split", "split_exchange", "quota_route"):
            for kernel, code in entries(name, "compute_90").items():
                if "SplitNoteKernel" in kernel:  # is launched to overlap none
                    continue
                steps = re.findall(r"griddepcontrol\.wait|\b(?:ld|st|atom|red)\.(?!param|shared|volatile\.shared)[\w.]+", code)
                self.assertEqual(steps[0], "griddepcontrol.wait", kernel)

    # A generic pointer, an atomic of 64 bits or a call in the loop of pushes would cost the most.
    def test_splits_stay_in_registers_and_shared_memory(self):
        kernels = entries("split")
        self.assertEqual(len(kernels), 2, "up to 64 and up to 128 GPUs")
        for kernel, code in kernels.items():
            self.assertNotRegex(code, r"\.local|\bcall\b|(?:div|rem)\.s64|(?:atom|red)\.shared[\w.]*64", kernel)
            for access in accesses(code):
                self.assertRegex(access, r"\.(?:global|shared|param)", kernel)


def sections(cubin):
    """{name: bytes of it} of an ELF file of 64 bits."""
    data = pathlib.Path(cubin).read_bytes()
    table, = struct.unpack_from("<Q", data, 0x28)
    size, number, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<II4Q", data, table + size * i) for i in range(number)]  # name, type, flags, address, offset, bytes
    names_at = headers[names][4]
    return {data[names_at + header[0]:data.index(b"\0", names_at + header[0])].decode(): header[5] for header in headers}


def disassembler():
    """The path of nvdisasm from the package nvidia-cuda-nvdisasm; None without it."""
    return next((path for folder in sys.path for path in pathlib.Path(folder or ".").glob("nvidia/cu*/bin/nvdisasm")), None)


BRANCH = re.compile(r"\bBRA `\((\.L_x_\d+)\)")


def loops(code):
    """Each loop of a kernel that nvdisasm has printed, as a list of labels and instructions."""
    lines = re.findall(r"^(?=\.L_x_\d+:|\s+/\*[0-9a-f]{4,}\*/)\s*(?:/\*\w+\*/)?\s*(.*?) *[:;]", code, re.M)
    starts = {}
    for i, line in enumerate(lines):
        if line.startswith("."):
            starts[line] = i
        elif (back := BRANCH.search(line)) and back[1] in starts:
            yield lines[starts[back[1]]:i + 1]


def executed(loop):
    """The instructions of one turn that skips each block which a branch skips and which has no atomic and no store."""
    taken, at = [], 0
    while at < len(loop):
        branch = BRANCH.search(loop[at])
        if not loop[at].startswith("."):
            taken.append(loop[at])
        at += 1
        if branch and branch[1] in loop[at:]:
            end = loop.index(branch[1], at)
            if not any(re.search(r"\b(ATOMS|STG)", line) for line in loop[at:end]):
                at = end
    return taken


class MachineCode(unittest.TestCase):
    """Code of an H100 or H200."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.cubins = {name: f"{cls.folder.name}/{name}.cubin" for name in ("count", "route", "quota_route", "split", "split_exchange")}
        cls.printed = {name: compile_kernels(name, cubin, "-cubin", "-arch=sm_90", "-Xptxas=-v") for name, cubin in cls.cubins.items()}

    def test_kernels_have_no_local_memory(self):
        for name, printed in self.printed.items():
            used = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", printed)
            self.assertTrue(used, name)
            self.assertEqual(set(used), {("0", "0", "0")}, name)

    # More would not stay in the cache of instructions.
    def test_split_of_up_to_64_gpus_has_at_most_60_kib(self):
        sizes = [size for name, size in sections(self.cubins["split"]).items() if name.startswith(".text.") and "SplitKernelILi1E" in name]
        self.assertEqual(len(sizes), 1)
        self.assertLessEqual(sizes[0], 60 * 1024)

    # Without padding, and of one token.
    def test_four_choices_are_counted_and_routed_by_200_instructions(self):
        if disassembler() is None:
            self.skipTest("nvdisasm is missing: pip install nvidia-cuda-nvdisasm")
        code = subprocess.run([disassembler(), "-c", self.cubins["route"]], check=True, capture_output=True, text=True).stdout
        kernels = [kernel for kernel in code.split("//--------------------- .text.")[1:] if "11RouteKernel" in kernel.split()[0]]
        self.assertEqual(len(kernels), 2, "ids of 4 and of 8 bytes")
        for kernel in kernels:
            counting = [loop for loop in loops(kernel) if sum("ATOMS" in line for line in loop) == 4]
            self.assertEqual(len(counting), 1, kernel.split()[0])
            self.assertLessEqual(len(executed(counting[0])), 200, kernel.split()[0])


if __name__ == "__main__":
    unittest.main()
