"""Finding libeplb.so, the layout of its structs, its errors, and the installed package."""

import ctypes
import dataclasses
import inspect
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import eplb
from eplb import _structs as structs
from eplb import errors

ROOT = pathlib.Path(__file__).resolve().parents[3]
LAYOUT = ROOT / "tests" / "client" / "c" / "abi_layout.txt"


def run(code, **environment):
    settings = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=120, env=settings)


class LayoutTest(unittest.TestCase):
    def test_structs_lie_as_in_the_abi(self):
        mine = {"eplb_client_options": structs.ClientOptions, "eplb_tensor": structs.Tensor, "eplb_boundary": structs.Boundary,
                "eplb_placement": structs.Placement, "eplb_device_tables": structs.DeviceTables, "eplb_stats": structs.Stats,
                "eplb_replica_rows": structs.ReplicaRows, "eplb_choices": structs.Choices,
                "eplb_rebalance_options": structs.RebalanceOptions, "eplb_plan_options": structs.PlanOptions,
                "eplb_plan_sizes": structs.PlanSizes, "eplb_batch": structs.Batch, "eplb_split": structs.Split,
                "eplb_split_options": structs.SplitOptions}
        expected, current = {}, None
        for line in LAYOUT.read_text().splitlines():
            words = line.split()
            if not line.startswith(" "):
                current = expected.setdefault(words[0], [int(words[1])])
            else:
                current.append((words[0], int(words[1]), int(words[2])))
        self.assertEqual(expected.pop("EPLB_ABI_VERSION"), [structs.ABI_VERSION])
        for name, struct in mine.items():
            fields = [(field, getattr(struct, field).offset, getattr(struct, field).size) for field, _ in struct._fields_]
            self.assertEqual([ctypes.sizeof(struct), *fields], expected[name], name)


class ReadmeTest(unittest.TestCase):
    def test_its_tables_name_every_option_and_field(self):
        text = (ROOT / "client" / "python" / "README.md").read_text()
        named = set(re.findall(r"`(\w+)", "".join(line for line in text.splitlines() if line.startswith("| `"))))
        fields = [field.name for field in dataclasses.fields(eplb.Options) if not field.name.startswith("nccl_")]
        view = [name for name in re.findall(r"self\.([a-z]\w*)", inspect.getsource(eplb.PlacementView.__init__))]
        view += [name for name in vars(eplb.PlacementView) if not name.startswith("_")]
        for name in (*fields, *eplb.Boundary._fields, *view):
            self.assertIn(name, named)


class FindingTest(unittest.TestCase):
    IMPORT = "import eplb\ntry: print(eplb.library_version())\nexcept ImportError as error: print(type(error).__name__, error)"

    def test_the_library_is_found(self):
        self.assertRegex(eplb.library_version(), r"^\d+\.\d+\.\d+$")

    def test_a_missing_library_says_where_it_was_looked_for(self):
        said = run(self.IMPORT, EPLB_LIBRARY="").stdout
        if "LibraryNotFound" in said:  # else it is installed on this machine
            self.assertRegex(said, "EPLB_LIBRARY is not set, .*eplb has no libeplb.so.0, and the loader reports")
        said = run(self.IMPORT, EPLB_LIBRARY="/nonexistent/libeplb.so").stdout
        self.assertRegex(said, "LibraryNotFound EPLB_LIBRARY is /nonexistent/libeplb.so, which cannot be loaded")

    def test_another_library_is_refused(self):
        said = run(self.IMPORT, EPLB_LIBRARY="libc.so.6").stdout
        self.assertIn("LibraryNotFound libc.so.6 is not libeplb", said)

    def test_checkpoints_and_conversions_need_no_library(self):
        said = run("import eplb.checkpoint, eplb.convert, eplb.errors; print('ok')", EPLB_LIBRARY="/nonexistent")
        self.assertEqual(said.stdout, "ok\n", said.stderr)


class ErrorTest(unittest.TestCase):
    def test_each_code_has_its_class_with_the_name_of_the_library(self):
        header = (ROOT / "client" / "c" / "eplb.h").read_text()
        codes = re.findall(r"EPLB_([A-Z_]+) = (\d+)", re.search(r"enum eplb_code \{(.*?)\} eplb_code", header, re.S).group(1))
        self.assertEqual(len(codes), 17)
        for name, code in codes[1:]:
            error = errors.error_of(int(code), "text")
            self.assertEqual((str(error), error.code), ("text", int(code)))
            self.assertEqual(error.code_name.upper(), name.replace("_", ""))
        self.assertTrue(issubclass(eplb.InvalidArgument, ValueError) and issubclass(eplb.DeadlineExceeded, TimeoutError))

    def test_a_message_has_nothing_that_a_terminal_obeys(self):
        for each in (eplb.Error, eplb.InvalidArgument, eplb.LibraryNotFound):
            self.assertEqual(str(each("rank 1: a\x1b[2J\rb\x9b31m\u202e K\u00f6ln")), "rank 1: a?[2J b?31m? K\u00f6ln")


class PackageTest(unittest.TestCase):
    def test_pip_installs_it_offline(self):
        with tempfile.TemporaryDirectory() as directory:
            source = pathlib.Path(directory) / "source"  # pip builds in the tree
            subprocess.run(["cp", "-r", ROOT / "client" / "python", source], check=True)
            target = pathlib.Path(directory) / "site"
            install = subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation",
                                      "--quiet", "--target", target, source], capture_output=True, text=True, timeout=300)
            self.assertEqual(install.returncode, 0, install.stderr)
            self.assertTrue((target / "eplb" / "py.typed").exists())
            said = run("import eplb; print(eplb.__file__, eplb.library_version())", PYTHONPATH=str(target))
            self.assertIn(str(target), said.stdout, said.stderr)
            (target / "eplb" / "libeplb.so.0").symlink_to(os.environ["EPLB_LIBRARY"])
            beside = run("import eplb._library as library; print(library.load()._name)", PYTHONPATH=str(target),
                         EPLB_LIBRARY="")
            self.assertEqual(beside.stdout.strip(), str((target / "eplb" / "libeplb.so.0")), beside.stderr)

    def test_the_library_of_the_prefix_that_it_is_installed_in_is_found(self):
        with tempfile.TemporaryDirectory() as directory:
            prefix = pathlib.Path(directory)
            site = prefix / "lib" / "python3" / "dist-packages"
            site.mkdir(parents=True)
            subprocess.run(["cp", "-r", ROOT / "client" / "python" / "eplb", site / "eplb"], check=True)
            (prefix / "lib" / "libeplb.so.0").symlink_to(os.environ["EPLB_LIBRARY"])
            said = run("import eplb._library as library; print(library.load()._name)", PYTHONPATH=str(site), EPLB_LIBRARY="")
            self.assertEqual(said.stdout.strip(), str(prefix / "lib" / "libeplb.so.0"), said.stderr)


if __name__ == "__main__":
    unittest.main()
