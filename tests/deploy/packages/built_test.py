"""The packages of this build, as deploy/packages/build.sh makes them: fields, files, lists of parts, and that they run from
anywhere.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

import baseline

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["EPLB_BUILD"])
VERSION = os.environ["EPLB_VERSION"]
DEADLINE = 400
PACKAGES = {"eplbd": "admin", "eplbctl": "admin", "libeplb0": "libs", "libeplb-dev": "libdevel", "python3-eplb": "python", "eplb-doc": "doc"}


def run(*command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=DEADLINE, **more)


class BuiltTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for program in ("dpkg-shlibdeps", "patchelf", "file"):
            if shutil.which(program) is None:
                raise unittest.SkipTest(f"no {program} here: deploy/setup.sh --packages installs it")
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="eplb-built-")))
        cls.out = cls.folder / "out"
        done = run(ROOT / "deploy/packages/build.sh", BUILD, cls.out)
        if done.returncode != 0:
            raise AssertionError(done.stdout[-3000:] + done.stderr[-3000:])

    def deb(self, name):
        found, = self.out.glob(f"{name}_*.deb")
        return found

    def unpacked(self, name):
        tree = self.folder / "trees" / name
        if not tree.exists():
            tree.parent.mkdir(exist_ok=True)
            done = run("dpkg-deb", "-R", self.deb(name), tree)
            self.assertEqual(done.returncode, 0, done.stderr)
        return tree

    def field(self, name, field):
        return run("dpkg-deb", "-f", self.deb(name), field).stdout.strip()

    def test_each_package_says_what_it_is_and_needs(self):
        self.assertEqual({path.name.split("_")[0] for path in self.out.glob("*.deb")}, set(PACKAGES))
        for name, section in PACKAGES.items():
            self.assertEqual((self.field(name, "Section"), self.field(name, "Version")), (section, f"{VERSION}-1"))
            self.assertRegex(self.field(name, "Description"), r"^expert-parallel load balancer .*\n .+", name)
            everywhere = name in ("python3-eplb", "eplb-doc")
            self.assertEqual(self.field(name, "Architecture") == "all", everywhere, name)
        for name in ("eplbd", "eplbctl", "libeplb0"):
            self.assertRegex(self.field(name, "Depends"), r"libc6 \(>= ")
            self.assertRegex(self.field(name, "Depends"), r"libstdc\+\+6 \(>= ")
        self.assertIn("systemd-standalone-sysusers", self.field("eplbd", "Depends"))
        self.assertEqual(self.field("libeplb-dev", "Depends"), f"libeplb0 (= {VERSION}-1)")
        self.assertEqual(self.field("python3-eplb", "Depends"), f"python3 (>= 3.9), python3-numpy, libeplb0 (>= {VERSION})")
        self.assertEqual((self.unpacked("eplbd") / "DEBIAN/conffiles").read_text(), "/etc/eplb/eplbd.toml\n")
        self.assertRegex((self.unpacked("libeplb0") / "DEBIAN/shlibs").read_text(), rf"^libeplb 0 libeplb0 \(>= {VERSION}-1\)")

    def test_files_are_where_debian_has_them(self):
        unit = (self.unpacked("eplbd") / "usr/lib/systemd/system/eplbd.service").read_text()
        self.assertIn("ExecStart=/usr/bin/eplbd --config /etc/eplb/eplbd.toml\n", unit)
        for name, paths in {"eplbd": ["etc/eplb/eplbd.toml", "usr/bin/eplbd", "usr/share/man/man8/eplbd.8.gz", "usr/lib/sysusers.d/eplbd.conf"],
                            "eplbctl": ["usr/bin/eplbctl", "usr/share/man/man1/eplbctl.1.gz",
                                        "usr/share/zsh/vendor-completions/_eplbctl"],
                            "libeplb0": ["usr/lib/libeplb.so.0"], "libeplb-dev": ["usr/lib/libeplb.so", "usr/include/eplb.h"],
                            "python3-eplb": ["usr/lib/python3/dist-packages/eplb/py.typed", "usr/bin/eplb-convert"],
                            "eplb-doc": ["usr/share/doc/eplb/README.md"]}.items():
            for path in paths:
                self.assertTrue(os.path.lexists(self.unpacked(name) / path), f"{name}: {path}")
            doc = self.unpacked(name) / "usr/share/doc" / name
            self.assertIn("License: Expat\n The MIT License", (doc / "copyright").read_text())
            self.assertTrue((doc / "changelog.Debian.gz").exists())
        package = self.unpacked("python3-eplb") / "usr/lib/python3/dist-packages/eplb"
        source = ROOT / "client/python/eplb"
        self.assertEqual({path.relative_to(package) for path in package.rglob("*") if path.is_file()},
                         {path.relative_to(source) for path in source.rglob("*") if path.suffix in (".py", ".typed")})

    def test_programs_are_stripped_and_look_nowhere_else(self):
        for name, path in (("eplbd", "usr/bin/eplbd"), ("eplbctl", "usr/bin/eplbctl"), ("libeplb0", f"usr/lib/libeplb.so.{VERSION}")):
            sections = run("readelf", "-SdW", self.unpacked(name) / path).stdout
            self.assertNotRegex(sections, r"\.symtab|\.debug_info|RPATH|RUNPATH", path)

    def test_parts_are_those_of_the_loader_and_of_the_build(self):
        for name in ("eplbd", "eplbctl", "libeplb0"):
            doc = self.unpacked(name) / "usr/share/doc" / name
            made = json.loads((doc / f"{name}.spdx.json").read_text())
            known = {package["SPDXID"]: package for package in made["packages"]}
            by_kind = {}
            for each in made["relationships"]:
                other = each["spdxElementId"] if each["relationshipType"] == "BUILD_DEPENDENCY_OF" else each["relatedSpdxElement"]
                by_kind.setdefault(each["relationshipType"], set()).add(known[other]["name"])
            self.assertIn("libc6", by_kind["DYNAMIC_LINK"])
            if (BUILD / "build.ninja").exists():
                self.assertLessEqual({"libeigen3-dev", "nlohmann-json3-dev", "libabsl-dev"}, by_kind["BUILD_DEPENDENCY_OF"])
                self.assertTrue((doc / "parts/libeigen3-dev.copyright").exists())
            self.assertEqual("uplot" in by_kind.get("CONTAINS", ()), name != "libeplb0")
            self.assertNotIn(str(BUILD), json.dumps(made))

    def test_lintian_finds_no_error(self):
        if not shutil.which("lintian"):
            self.skipTest("no lintian here")
        done = run("lintian", "--allow-root", "--tag-display-limit", "0", *self.out.glob("*.deb"))
        self.assertEqual([line for line in done.stdout.splitlines() if line.startswith("E: ")], [])

    def test_the_tarball_runs_from_any_folder_with_its_own_libraries(self):
        archive, = self.out.glob("eplb-*-linux-*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(self.folder / "any place")
        tree, = (self.folder / "any place").iterdir()
        copies = set((tree / "lib/eplb").iterdir()) if (tree / "lib/eplb").exists() else set()
        for program in (tree / "bin/eplbd", tree / "bin/eplbctl", tree / "bin/eplb-trainer"):
            # Libraries of LD_LIBRARY_PATH are not requirements.
            done = run(program, "--version", env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu"})
            self.assertIn(VERSION, done.stdout, done.stderr)
        for file in (tree / "bin/eplbd", tree / "lib/libeplb.so.0"):
            for path in re.findall(r"=> (/.+?) \(0x", run("ldd", file, env={"PATH": "/usr/bin:/bin"}).stdout):
                self.assertTrue(pathlib.Path(path).resolve() in copies or baseline.linked.is_of_the_system(pathlib.Path(path).name), path)
        self.assertGreaterEqual(len(json.loads((tree / "share/doc/eplb/baseline.json").read_text())), 3)
        done = run(sys.executable, "-B", "-c", "import eplb; print(eplb.library_version())",
                   env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree / "lib/python3/dist-packages")})
        self.assertEqual(done.stdout.strip(), VERSION, done.stderr)

    def test_the_wheel_holds_what_its_name_and_its_lists_have(self):
        wheel, = self.out.glob("*.whl")
        tag = re.fullmatch(rf"eplb-{re.escape(VERSION)}-py3-none-(\w+)\.whl", wheel.name)[1]
        site = self.folder / "site"
        with zipfile.ZipFile(wheel) as opened:
            names = opened.namelist()
            opened.extractall(site)
        programs = [site / "eplb/bin" / name for name in ("eplbctl", "eplbd", "eplb-trainer")]
        newest, outside = baseline.examine([site / "eplb/libeplb.so.0", *programs, *(site / "eplb/libs").glob("*")])
        self.assertEqual((baseline.tag_of(newest, outside), outside), (tag, {}))
        if "VERSION_CODENAME=bookworm" in pathlib.Path("/etc/os-release").read_text():
            self.assertLessEqual(newest["GLIBC"], (2, 34))
        self.assertIn(f"Tag: py3-none-{tag}\n", (site / f"eplb-{VERSION}.dist-info/WHEEL").read_text())
        licences = {pathlib.PurePath(name).name for name in names if name.endswith(".copyright")}
        self.assertIn("uplot.copyright", licences)
        parts = json.loads((site / "eplb/eplb.spdx.json").read_text())["packages"]
        self.assertLessEqual({"uplot", "libc6"}, {part["name"] for part in parts})
        for name in (f"libeplb.so.{VERSION}", "eplbctl", "eplbd", "eplb-trainer"):
            self.assertIn(f"{name} (SHA-256 ", parts[0]["comment"])
        if (BUILD / "build.ninja").exists():
            self.assertIn("libeigen3-dev.copyright", licences)

    def test_a_fresh_environment_needs_nothing_but_the_wheel(self):
        wheel, = self.out.glob("*.whl")
        home = self.folder / "venv"
        for command in ([sys.executable, "-m", "venv", home], [home / "bin/pip", "install", "--quiet", "--no-index", "--no-deps", wheel]):
            done = run(*command)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        # Libraries of LD_LIBRARY_PATH are not requirements.
        environment = {"PATH": f"{home}/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu"}

        def shell(code):
            return run("bash", "-c", f"cd {self.folder}; {code}", env=environment)

        for program in ("eplbctl", "eplbd"):
            self.assertRegex(shell(f"{program} --version").stdout, rf"^{program} {re.escape(VERSION)}\b")
        self.assertIn("Usage: eplbctl join ", shell("eplb-convert --help").stdout)
        self.assertEqual(shell("eplbctl status --endpoint 127.0.0.1:1").returncode, 3)
        done = shell('eplbctl replay --trace "$(python -m eplb.demo --sample)" --gpus 8 --slots 72 -o json')
        self.assertGreater(json.loads(done.stdout)["summary"]["balancedness_mean"], 0.5, done.stderr)
        done = shell("python -m eplb.demo --steps 160 --step-ms 30")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue((self.folder / "eplb-demo/report.html").exists())
        done = shell("python -c 'import eplb, eplb._library as l; print(eplb.library_version(), l.load()._name)'")
        self.assertRegex(done.stdout, rf"^{re.escape(VERSION)} {home}/lib/python[\d.]+/site-packages/eplb/libeplb\.so\.0\n$", done.stderr)

    def test_the_sdist_has_all_modules_and_no_library(self):
        sdist = self.out / f"eplb-{VERSION}.tar.gz"
        with tarfile.open(sdist) as tar:
            paths = [pathlib.PurePath(name) for name in tar.getnames()]
        names, of_package = {path.name for path in paths}, {pathlib.PurePath(*path.parts[1:]) for path in paths}
        self.assertLessEqual({path.relative_to(ROOT / "client/python") for path in (ROOT / "client/python/eplb").rglob("*.py")},
                             of_package)
        self.assertFalse([name for name in names if ".so" in name])
        self.assertIn("LICENSE", names)

    def test_sums_are_those_of_the_files(self):
        done = run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=self.out)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len((self.out / "SHA256SUMS").read_text().splitlines()), len(PACKAGES) + 3)

    def test_the_same_build_gives_the_same_bytes(self):
        again = self.folder / "again"
        done = run(ROOT / "deploy/packages/build.sh", BUILD, again)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((again / "SHA256SUMS").read_text(), (self.out / "SHA256SUMS").read_text())


if __name__ == "__main__":
    unittest.main()
