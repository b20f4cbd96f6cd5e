"""Parts of programs, the oldest system they run on, and the packages' statements of sources."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import baseline
import linked
import sbom

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["EPLB_BUILD"])
VERSION = os.environ["EPLB_VERSION"]
DEADLINE = 60


class BaselineTest(unittest.TestCase):
    def test_the_newest_version_of_each_family_is_found(self):
        text = "Version definitions:\n1 0x00 0x0 GLIBC_9.9\nVersion References:\n  required from libc.so.6:\n    0x0 0x00 05 GLIBC_2.9\n" \
               "    0x0 0x00 04 GLIBC_2.34\n    0x0 0x00 04 GLIBC_PRIVATE\n  required from libstdc++.so.6:\n    0x0 0x00 03 GLIBCXX_3.4.29\n"
        self.assertEqual(baseline.versions_in(text), {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29)})
        self.assertEqual(baseline.versions_in("no references"), {})

    def test_a_wheel_has_the_name_of_the_oldest_systems_that_have_both_libraries(self):
        machine = os.uname().machine
        for glibc, libstdcxx, expected in (((2, 17), (3, 4, 25), "manylinux_2_28_"), ((2, 34), (3, 4, 29), "manylinux_2_34_"),
                                           ((2, 36), (3, 4, 30), "manylinux_2_36_"), ((2, 28), (3, 4, 30), "manylinux_2_35_"),
                                           ((2, 28), (3, 4, 99), "linux_")):
            self.assertEqual(baseline.tag_of({"GLIBC": glibc, "GLIBCXX": libstdcxx}, {}), expected + machine)
        self.assertEqual(baseline.tag_of({"GLIBC": (2, 28)}, {"libssl.so.3": ["libeplb.so"]}), f"linux_{machine}")

    def test_a_program_of_this_system_needs_no_newer_one_than_it(self):
        files = [BUILD / "bin/eplbd"]
        newest, outside = baseline.examine(files)
        mine = baseline.numbers(os.confstr("CS_GNU_LIBC_VERSION").split()[1])
        self.assertLessEqual(newest["GLIBC"], mine)
        self.assertFalse([name for name in outside if linked.is_of_the_system(name)])
        script = ROOT / "deploy/packages/baseline.py"
        done = subprocess.run([sys.executable, "-B", script, "--glibc", "2.2", *files], capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^baseline: glibc [\d.]+ is needed, expected at most 2.2\n$")


class LinkedTest(unittest.TestCase):
    def test_only_what_every_linux_has_is_of_the_system(self):
        for soname in ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2"):
            self.assertTrue(linked.is_of_the_system(soname), soname)
        for soname in ("libcrypto.so.3", "libcares.so.2", "libgrpc.so.29", "libmagic.so.1", "libcap.so.2"):
            self.assertFalse(linked.is_of_the_system(soname), soname)

    def test_the_file_and_its_package_are_found(self):
        if not shutil.which("dpkg-query"):
            self.skipTest("no dpkg here")
        libraries = linked.shared_libraries(BUILD / "bin/eplbd")
        debian = linked.DebianFiles()
        owner = debian.owner_of(libraries["libc.so.6"])
        self.assertEqual((owner.name, owner.source), ("libc6", "glibc"))
        self.assertIsNone(debian.owner_of(BUILD / "bin/eplbd"))

    def test_a_build_that_is_none_is_named(self):
        with tempfile.TemporaryDirectory() as directory, self.assertRaisesRegex(linked.NotLinked, "is no build folder of CMake"):
            linked.source_of(pathlib.Path(directory))


class SbomTest(unittest.TestCase):
    def test_relations_point_to_parts_and_each_part_is_there_once(self):
        parts = sbom.Parts("SPDXRef-root")
        parts.add(sbom.uplot_part(), "CONTAINS")
        parts.add(sbom.uplot_part(), "CONTAINS")
        parts.add(sbom.folder_part(pathlib.Path("/opt/include"), 3), "BUILD_DEPENDENCY_OF")
        made = sbom.document("eplbd", "1-1", parts, [BUILD / "bin/eplbd"], False)
        names = [package["SPDXID"] for package in made["packages"]]
        self.assertEqual(len(names), len(set(names)))
        relations = {(each["spdxElementId"], each["relationshipType"], each["relatedSpdxElement"]) for each in made["relationships"]}
        self.assertEqual(relations, {("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-root"), ("SPDXRef-root", "CONTAINS", "SPDXRef-uplot"),
                                     ("SPDXRef-headers-opt-include", "BUILD_DEPENDENCY_OF", "SPDXRef-root")})
        self.assertIn("not made by Ninja", made["creationInfo"]["comment"])
        for name in names:
            self.assertRegex(name, r"^SPDXRef-[A-Za-z0-9.-]+$")


class SourcesTest(unittest.TestCase):
    def test_every_place_has_the_version_of_the_project(self):
        changelog = (ROOT / "deploy/packages/debian/changelog").read_text()
        self.assertRegex(changelog, rf"\Aeplb \({re.escape(VERSION)}-\d+\) ")
        self.assertIn(f'version = "{VERSION}"', (ROOT / "client/python/pyproject.toml").read_text())

    def test_shell_scripts_have_nothing_for_shellcheck(self):
        if not shutil.which("shellcheck"):
            self.skipTest("no shellcheck here: deploy/setup.sh installs it")
        scripts = [path for path in (ROOT / "deploy/packages").rglob("*")
                   if path.is_file() and re.match(rb"#!.*\b(ba)?sh\b", path.read_bytes())]
        self.assertGreaterEqual(len(scripts), 6)
        done = subprocess.run(["shellcheck", *scripts, ROOT / "deploy/setup.sh"], capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stdout)
        done = subprocess.run(["shellcheck", "--shell=bash", pathlib.Path(__file__).with_name("booted.sh")], capture_output=True, text=True,
                              timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_building_packages_needs_a_finished_build(self):
        with tempfile.TemporaryDirectory() as directory:
            done = subprocess.run([ROOT / "deploy/packages/build.sh", directory], capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^packages: .*/bin/eplbd is not there; first: cmake --build ")


if __name__ == "__main__":
    unittest.main()
