#!/usr/bin/env python3
"""Holds the ABI of libeplb.so: its symbols, the layout of its structs, and that programs of release 0.1.0 still load it.

  abi_test.py LIBRARY LAYOUT_PROGRAM C_COMPILER   compares with abi_symbols.txt and abi_layout.txt, and loads programs
  abi_test.py LIBRARY LAYOUT_PROGRAM --write      writes both lists; an addition raises EPLB_ABI_VERSION
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
SONAME = "libeplb.so.0"
RELEASED = [line.split() for line in (HERE / "abi_0.1.0.txt").read_text().splitlines()]  # [function] or [function, "removed"]
KEPT = [words[0] for words in RELEASED if len(words) == 1]
REMOVED = [words[0] for words in RELEASED if len(words) == 2]


def run(*command, **settings):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, **settings).stdout


def symbols(library):
    """The dynamic symbols that the library defines, with their versions; a version itself is one of type A."""
    lines = [line.split() for line in run("nm", "-D", "--defined-only", library).splitlines()]
    return "".join(f"{kind} {name}\n" for _, kind, name in sorted(lines, key=lambda line: line[2]))


def by_struct(text):
    """Lines of the text, structs in the order of their names."""
    return "".join(sorted(re.findall(r"^\S.*\n(?:  .*\n)*", text, re.M))).splitlines()


def differences(name, found):
    expected = (HERE / name).read_text()
    return list(difflib.unified_diff(by_struct(expected), by_struct(found), name, "found", lineterm=""))


def load_error(library, compiler, folder, calls):
    """Links a program that refers to `calls` against a library with the functions of 0.1.0, and starts it with `library`.

    Returns what the loader prints, or an empty string if the program starts.
    """
    (folder / "released.c").write_text("".join(f"void {name}(void) {{}}\n" for name, *_ in RELEASED))
    (folder / "released.map").write_text("EPLB_0 { global: eplb_*; local: *; };\n")
    run(compiler, "-shared", "-fPIC", f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={folder}/released.map",
        folder / "released.c", "-o", folder / SONAME)
    declarations = "".join(f"void {name}(void);\n" for name in calls)
    (folder / "program.c").write_text(
        f"{declarations}void (*const calls[])(void) = {{{', '.join(calls)}}};\nint main(void) {{ return calls[0] == 0; }}\n")
    run(compiler, "-fPIE", "-pie", folder / "program.c", folder / SONAME, "-o", folder / "program")
    (folder / SONAME).unlink()
    (folder / SONAME).symlink_to(pathlib.Path(library).resolve())
    started = subprocess.run([folder / "program"], env={**os.environ, "LD_LIBRARY_PATH": str(folder), "LD_BIND_NOW": "1"},
                             capture_output=True, text=True, timeout=60)
    return "" if started.returncode == 0 else started.stderr or f"exit code {started.returncode}"


def check_released(library, compiler):
    """A program of 0.1.0 starts unless it uses a removed function; then the loader names that function."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="eplb-abi-") as folder:
        folder = pathlib.Path(folder)
        if error := load_error(library, compiler, folder, KEPT):
            wrong.append(f"a program of 0.1.0 does not start: {error}")
        for name in REMOVED:
            if name not in (error := load_error(library, compiler, folder, [name])):
                wrong.append(f"{name} is listed as removed, the loader prints: {error!r}")
    return wrong


def main(library, layout_program, compiler):
    found = {"abi_symbols.txt": symbols(library), "abi_layout.txt": run(layout_program)}
    if compiler == "--write":
        for name, text in found.items():
            (HERE / name).write_text(text)
        return 0
    wrong = [line for name, text in found.items() for line in differences(name, text)]
    soname = re.search(r"SONAME\s+(\S+)", run("objdump", "-p", library)).group(1)
    if soname != SONAME:
        wrong.append(f"SONAME is {soname}, expected {SONAME}")
    foreign = [line for line in found["abi_symbols.txt"].splitlines() if not re.match(r"(T eplb_|A EPLB_)", line)]
    wrong += [f"not a function eplb_*: {line}" for line in foreign]
    wrong += check_released(library, compiler)
    print("\n".join(wrong) or f"{len(found['abi_symbols.txt'].splitlines())} symbols and the structs are as committed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
