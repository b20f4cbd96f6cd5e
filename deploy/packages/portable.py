#!/usr/bin/env python3
"""Makes what runs on other systems than the one that built it: the relocatable tarball, and the wheel.

  portable.py tarball --build build/release --out DIRECTORY   writes eplb-VERSION-linux-MACHINE.tar.gz: programs, library,
                                                              headers, pages
  portable.py wheel --build build/release --out DIRECTORY     writes eplb-VERSION-py3-none-PLATFORM.whl with library and
                                                              programs, and the sdist without

Libraries that other systems lack come along as private copies under names of their own, so that no other library of the
process is taken for one of them. glibc, libstdc++ and libgcc are the system's: baseline.py says how old they may be, and each
package says it in baseline.json. The same build gives the same bytes: times are those of the last commit, or
SOURCE_DATE_EPOCH.
"""

import argparse
import gzip
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import sys
import tarfile
import tempfile

import baseline
import linked

SOURCE = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = ("eplbd", "eplbctl", "eplb-trainer")
LIBRARY = "libeplb.so"
TRACE = "moe64_aux.jsonl"

# In the copy of client/python that becomes the wheel: nothing is compiled, and yet it is of one platform.
SETUP = '''from setuptools import Distribution, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", "PLATFORM"


setup(distclass=Binary, cmdclass={"bdist_wheel": Wheel})
'''


def version_of(build):
    found = re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(.+)$", (build / "CMakeCache.txt").read_text(encoding="utf-8"), re.M)
    if not found:
        raise linked.NotLinked(f"{build}/CMakeCache.txt has no CMAKE_PROJECT_VERSION")
    return found[1]


def time_of_source():
    if "SOURCE_DATE_EPOCH" not in os.environ:
        os.environ["SOURCE_DATE_EPOCH"] = linked.run("git", "-C", SOURCE, "log", "-1", "--format=%ct").strip()
    return int(os.environ["SOURCE_DATE_EPOCH"])


class PrivateCopies:
    """The libraries that files of a package need and other systems lack, copied into one folder of it."""

    def __init__(self, folder):
        self.folder = folder
        self.names = {}  # soname: name of the copy

    def add_for(self, original):
        """original: the file before it was stripped or moved, which the loader of this machine resolves. errors:
        linked.NotLinked.
        """
        for soname, path in linked.shared_libraries(original).items():
            if linked.is_of_the_system(soname) or soname in self.names:
                continue
            self.folder.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
            stem, _, rest = soname.partition(".so")
            self.names[soname] = f"{stem}-{digest}.so{rest}"
            shutil.copyfile(os.path.realpath(path), self.folder / self.names[soname])

    def finish(self, users):
        """Lets the copies and `users` ask for the copies by their names, and look for them in their folder."""
        for name in self.names.values():
            linked.run("strip", "--strip-unneeded", self.folder / name)
            linked.run("patchelf", "--set-soname", name, self.folder / name)
            self._rename_in(self.folder / name, "$ORIGIN")
        for user in users:
            # Not "$ORIGIN/" alone where nothing was copied: then the file needs no folder.
            if self.names:
                self._rename_in(user, "$ORIGIN/" + os.path.relpath(self.folder, user.parent))

    def _rename_in(self, file, search):
        needed = linked.run("patchelf", "--print-needed", file).split()
        words = [word for name in needed if name in self.names for word in ("--replace-needed", name, self.names[name])]
        # Two calls: patchelf ignores one of two changes that are asked for together.
        if words:
            linked.run("patchelf", *words, file)
        # DT_RPATH, not DT_RUNPATH: it comes before LD_LIBRARY_PATH, in which another release of a library may lie.
        linked.run("patchelf", "--force-rpath", "--set-rpath", search, file)

    def files(self):
        return [self.folder / name for name in self.names.values()]


def write_sbom(name, version, build, out, licenses, copies, programs):
    linked.run(sys.executable, "-B", HERE / "sbom.py", "--name", name, "--version", version, "--build", build, "--out", out, "--licenses",
               licenses, *programs, "--contained", *copies.names)


def write_baseline(path, files):
    newest, outside = baseline.examine(files)
    if outside:
        raise linked.NotLinked(f"the package lacks {', '.join(sorted(outside))}")
    path.write_text(json.dumps({family: baseline.text_of(newest[family]) for family in baseline.FAMILIES if family in newest}) + "\n",
                    encoding="utf-8")
    return baseline.tag_of(newest, outside)


def install(build, prefix, root):
    linked.run("env", f"DESTDIR={root}", "cmake", "--install", build, "--prefix", prefix)
    return root / prefix.lstrip("/")


def pack(tree, archive, when):
    """A .tar.gz of the folder `tree` whose bytes depend on its content and `when` alone."""
    def plain(info):
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = when
        return info
    with open(archive, "wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=when) as zipped:
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(tree, arcname=tree.name, recursive=False, filter=plain)
            for path in sorted(tree.rglob("*")):
                tar.add(path, arcname=f"{tree.name}/{path.relative_to(tree)}", recursive=False, filter=plain)


def repack(archive, work):
    """setuptools writes times of its own into an sdist."""
    with tarfile.open(archive) as tar:
        tar.extractall(work)
    tree, = work.iterdir()
    pack(tree, archive, time_of_source())


def make_tarball(build, out, work):
    version = version_of(build)
    tree = work / f"eplb-{version}-linux-{platform.machine()}"
    install(build, "/opt/eplb", work / "root").rename(tree)
    library = next(tree.glob(f"lib*/**/{LIBRARY}")).resolve()  # below lib itself, or a folder of the architecture
    programs = [tree / "bin" / name for name in PROGRAMS if (tree / "bin" / name).exists()] + [library]
    copies = PrivateCopies(tree / "lib" / "eplb")
    for program in programs:
        copies.add_for(build / ("lib" if program == library else "bin") / program.name)
        linked.run("strip", "--strip-unneeded", program)
    copies.finish(programs)
    pages = tree / "share/doc/eplb"
    write_sbom("eplb", version, build, pages / "eplb.spdx.json", pages / "parts", copies, programs)
    write_baseline(pages / "baseline.json", programs + copies.files())
    archive = out / f"{tree.name}.tar.gz"
    pack(tree, archive, time_of_source())
    return [archive]


def build_with_setuptools(tree, hook, out):
    """returns: the file that the hook of PEP 517 made. No network, no environment of its own."""
    code = f"import sys, setuptools.build_meta as b; print(b.{hook}(sys.argv[1]))"
    return out / linked.run("env", "-C", tree, sys.executable, "-B", "-c", code, out).splitlines()[-1]


def make_wheel(build, out, work):
    version = version_of(build)
    tree = work / "python"
    shutil.copytree(SOURCE / "client/python", tree, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    shutil.copyfile(SOURCE / "LICENSE", tree / "LICENSE")
    declared = re.search(r'^version = "(.*)"$', (tree / "pyproject.toml").read_text(encoding="utf-8"), re.M)[1]
    if declared != version:
        raise linked.NotLinked(f"client/python/pyproject.toml has version {declared}, the build has {version}")
    sdist = build_with_setuptools(tree, "build_sdist", out)
    repack(sdist, work / "sdist")
    package = tree / "eplb"
    (package / "bin").mkdir()
    library = (build / "lib" / LIBRARY).resolve()
    originals = {package / "libeplb.so.0": library, **{package / "bin" / name: build / "bin" / name for name in PROGRAMS}}
    copies = PrivateCopies(package / "libs")
    for file, original in originals.items():
        shutil.copy(original, file)
        copies.add_for(original)
        linked.run("strip", "--strip-unneeded", file)
    copies.finish(originals)
    shutil.copy(SOURCE / "tests/data" / TRACE, package)
    # The list of parts names the library as the build does.
    shutil.copyfile(package / "libeplb.so.0", work / library.name)
    write_sbom("eplb-wheel", version, build, package / "eplb.spdx.json", tree / "parts", copies,
               [work / library.name, *(package / "bin" / name for name in PROGRAMS)])
    uplot, = install(build, "/usr", work / "root").glob("share/doc/*/uPlot-LICENSE")
    (tree / "parts").mkdir(exist_ok=True)
    shutil.copyfile(uplot, tree / "parts" / "uplot.copyright")
    tag = write_baseline(package / "baseline.json", [*originals, *copies.files()])
    (tree / "setup.py").write_text(SETUP.replace("PLATFORM", tag), encoding="utf-8")
    shutil.rmtree(tree / "eplb.egg-info", ignore_errors=True)
    return [build_with_setuptools(tree, "build_wheel", out), sdist]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("tarball", "wheel"))
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    options = parser.parse_args()
    os.umask(0o022)
    build, out = options.build.resolve(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    time_of_source()
    make = make_tarball if options.what == "tarball" else make_wheel
    with tempfile.TemporaryDirectory(prefix="eplb-portable-") as work:
        try:
            for made in make(build, out, pathlib.Path(work)):
                print(made)
        except linked.NotLinked as error:
            print(f"portable: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
