#!/usr/bin/env python3
"""Makes C++ for the CUDA emulator of the .cu files of cuda/, which stay as they are.

  translate.py ROOT OUT    writes kernels.cc, mutants.cc, launchers.cc, language.cc and kernels.d into OUT

mutants.cc has the kernels of mutants.py. launchers.cc has the launchers of eplb::cuda, which call one of the others.
language.cc has the kernels of the emulator's own tests. kernels.d lists the files that were read.

What is no C++ is rewritten: launches, inline PTX and the declarations of shared memory; device_language.h defines the rest. Each
variant has a namespace of its own, and with it copies of all that the kernels include from cuda/: else the linker
would take inline functions that were compiled for the host.
"""
import pathlib
import re
import sys

import mutants
import ptx

# Folders with files of kernels, of which each variant has its own copy; files that all variants share.
COPIED = ("cuda/", "placement/split/")
SHARED = {"cuda/runtime.h"}
LANGUAGE = "tests/cuda/emulated_language.cu"
EMULATOR = "::eplb::cuda_emulator::"
INCLUDE = re.compile(r'^#include (["<])([^">]+)[">].*$', re.M)
DYNAMIC = re.compile(r"extern\s+__shared__\s+([\w:<> ]+?)\s+(\w+)\s*\[\s*\]\s*;")
STATIC = re.compile(r"__shared__\s+([\w:<> ]+?)\s+(\w+)((?:\s*\[[^\]]*\])*)\s*;")
BOUNDS = re.compile(r"__launch_bounds__\(([^()]*)\)\s*\w+\([^()]*\)\s*\{")
POSITIONS = {"threadIdx": "thread", "blockIdx": "block", "blockDim": "block_dim", "gridDim": "grid_dim"}
POSITION = re.compile(rf"(?<![.\w])({'|'.join(POSITIONS)})\b")  # but not members of a struct
LAUNCHER = re.compile(r"^absl::Status ((?:Launch|Load)\w+)\(([^)]*)\) \{", re.M)


def start_of_kernel(text, end):
    """Returns the start of the kernel's name that ends before `end`, with its template arguments."""
    at = len(text[:end].rstrip())
    if text[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += {">": 1, "<": -1}.get(text[at], 0)
            if depth == 0:
                break
    while re.match(r"[\w:]", text[at - 1]):
        at -= 1
    return at


def translate(text, path):
    """Translates one file; lines stay lines."""
    text = DYNAMIC.sub(lambda m: f"[[maybe_unused]] auto* const {m[2]} = {EMULATOR}DynamicShared<{m[1]}>();", text)
    text = STATIC.sub(lambda m: f"using {m[2]}_in_shared = {m[1]}{m[3]}; {m[2]}_in_shared& {m[2]} = "
                                f"{EMULATOR}StaticShared<{m[2]}_in_shared>([] {{}});", text)
    text = BOUNDS.sub(lambda m: f"{m[0]} {EMULATOR}CheckLaunchBounds({m[1].split(',')[0]});", text)
    while (begin := text.find("<<<")) >= 0:
        end = text.index(">>>", begin)
        start = start_of_kernel(text, begin)
        kernel, shape = text[start:begin], text[begin + 3:end]
        name = re.sub(r"\s+", "", kernel)
        text = (f'{text[:start]}{EMULATOR}Launcher("{name}", {kernel}, {EMULATOR}LaunchShape({shape}))'
                f"{text[end + 3:]}")
    text = POSITION.sub(lambda m: f"{EMULATOR}current_position->{POSITIONS[m[1]]}", text)
    text = ptx.translate(text, path)
    code = re.sub(r"//[^\n]*", "", text)
    for rest in ("__shared__", "<<<"):
        if rest in code:
            sys.exit(f"{path}: the emulator knows no way to write {rest} in C++")
    return text


class Variant:
    """The kernels of some .cu files with all of cuda/ that they need, as one piece of C++."""

    def __init__(self, root, namespace, patches):
        self.root = root
        self.namespace = namespace
        self.patches = dict(patches)  # {path: (old, new)}
        self.paths = []  # that were read, in order
        self.includes = []  # of other rooms and libraries
        self.text = []

    def read(self, path):
        text = (self.root / path).read_text(encoding="utf-8")
        if path in self.patches:
            old, new = self.patches.pop(path)
            if text.count(old) != 1:
                sys.exit(f"{self.namespace}: {path} has {text.count(old)} times, expected once:\n{old}")
            text = text.replace(old, new)
        return text

    def add(self, path):
        if path in self.paths:
            return
        self.paths.append(path)
        text = translate(self.read(path), path).replace("#pragma once\n", "\n")
        text = re.sub(r"\bnamespace eplb(::cuda)?(?= \{)", f"namespace eplb::{self.namespace}", text)
        at = 0
        self.text.append(f'#line 1 "{path}"\n')
        for include in INCLUDE.finditer(text):
            target = include[2]
            if include[1] == "<" or not target.startswith(COPIED) or target in SHARED:
                self.includes.append(include[0])
                self.text.append(text[at:include.start()])
            else:
                self.text.append(text[at:include.start()])
                self.add(target)
                line = 1 + text.count("\n", 0, include.end())
                self.text.append(f'\n#line {line} "{path}"\n')
            at = include.end()
        self.text.append(text[at:] + "\n")

    def add_kernels(self, path):
        self.add(path)
        # Declarations of the headers.
        done = set()
        while more := [p for p in self.paths if p.endswith(".h") and p not in done]:
            for header in more:
                done.add(header)
                source = header[:-2] + ".cc"
                if header.count("/") == 1 and (self.root / source).exists():
                    self.add(source)

    def code(self):
        if self.patches:
            sys.exit(f"{self.namespace}: no kernel of it includes {', '.join(self.patches)}")
        return (f"namespace eplb::{self.namespace} {{\nusing namespace eplb::cuda;  // what the variants share\n}}\n"
                + "".join(self.text))

    def registrations(self, name):
        lines = ['#line 1 "registrations"\n', "namespace {\n"]
        for path in self.paths:
            if path.endswith(".cu"):
                for launcher in LAUNCHER.finditer((self.root / path).read_text(encoding="utf-8")):
                    function = f"eplb::{self.namespace}::{launcher[1]}"
                    lines.append(f'const {EMULATOR}Registration of_{self.namespace}_{launcher[1]}("{name}", "{launcher[1]}",'
                                 f" reinterpret_cast<void (*)()>(&{function}));\n")
        return "".join(lines) + "}  // namespace\n"


def unit(variants):
    """A file of several (name, variant)."""
    includes = dict.fromkeys(include for _, variant in variants for include in variant.includes)
    lines = ["// Made by translate.py.\n"] + [f"{include}\n" for include in includes if "runtime.h" not in include]
    lines += ['#include "cuda/runtime.h"\n', '#include "tests/support/cuda_emulator/variants.h"\n',
              '#include "tests/support/cuda_emulator/device_language.h"\n']
    for name, variant in variants:
        lines += [variant.code(), variant.registrations(name)]
    return "".join(lines)


def launchers(root, paths):
    """Declarations of the library's headers, by the selected variant."""
    lines = ["// Made by translate.py.\n", '#include "tests/support/cuda_emulator/variants.h"\n']
    lines += [f'#include "{path[:-3]}.h"\n' for path in paths]
    lines += ["namespace eplb::cuda {\n"]
    for path in paths:
        for launcher in LAUNCHER.finditer((root / path).read_text(encoding="utf-8")):
            arguments = ", ".join(parameter.split()[-1].lstrip("&*") for parameter in launcher[2].split(",") if parameter)
            lines.append(f"{launcher[0]}\n  return reinterpret_cast<decltype(&{launcher[1]})>({EMULATOR}FindLauncher("
                         f'"{launcher[1]}"))({arguments});\n}}\n')
    return "".join(lines) + "}  // namespace eplb::cuda\n"


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    paths = sorted(path.relative_to(root).as_posix() for path in root.glob("cuda/*.cu"))
    kernels = Variant(root, "cuda_kernels", {})
    for path in paths:
        kernels.add_kernels(path)
    broken = []
    for number, mutant in enumerate(mutants.MUTANTS):
        variant = Variant(root, f"cuda_mutant_{number}", {mutant.file: (mutant.old, mutant.new)})
        variant.add_kernels(mutant.kernel)
        broken.append((mutant.name, variant))
    out.mkdir(parents=True, exist_ok=True)
    (out / "kernels.cc").write_text(unit([("", kernels)]), encoding="utf-8")
    (out / "mutants.cc").write_text(unit(broken), encoding="utf-8")
    (out / "launchers.cc").write_text(launchers(root, paths), encoding="utf-8")
    language = (root / LANGUAGE).read_text(encoding="utf-8")
    (out / "language.cc").write_text('#include "tests/support/cuda_emulator/device_language.h"\n'
                                     f'#line 1 "{LANGUAGE}"\n{translate(language, LANGUAGE)}', encoding="utf-8")
    read = dict.fromkeys(path for _, variant in [("", kernels)] + broken for path in variant.paths)
    (out / "kernels.d").write_text(f"{out / 'kernels.cc'}: " + " ".join(str(root / path) for path in [*read, LANGUAGE]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
