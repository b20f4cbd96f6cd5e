"""Lists the parts of programs: shared libraries by the loader, archives and headers by the build, and the Debian packages of
them all.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess
from typing import Dict, Iterable, List, Set

DPKG_LISTS = pathlib.Path("/var/lib/dpkg/info")
# Every Linux with glibc has these, of its own version: a copy beside a program would not fit its loader or its C++ programs.
OF_THE_SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|mvec|BrokenLocale)|libstdc\+\+|libgcc_s)\.so(\..*)?$")


class NotLinked(Exception):
    """A library that a program needs is not here, or the build cannot be asked."""


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotLinked(f"{' '.join(str(word) for word in command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def shared_libraries(file: pathlib.Path) -> Dict[str, pathlib.Path]:
    """{soname: file} of all that the loader reads for `file`, also what libraries need of each other. errors: NotLinked."""
    found: Dict[str, pathlib.Path] = {}
    for line in run("ldd", file).splitlines():
        if missing := re.match(r"\s*(\S+) => not found", line):
            raise NotLinked(f"{file} needs {missing[1]}, which the loader does not find")
        if hit := re.match(r"\s*(\S+) => (/\S+)", line) or re.match(r"\s*(/\S+)()\s+\(0x", line):
            path = pathlib.Path(hit[2] or hit[1])
            found[path.name if not hit[2] else hit[1]] = path
    return found


def is_of_the_system(soname: str) -> bool:
    return OF_THE_SYSTEM.match(soname) is not None


def _absolute(build: pathlib.Path, names: Iterable[str]) -> Set[pathlib.Path]:
    return {pathlib.Path(os.path.normpath(build / name)) for name in names}


def _edge_of(build: pathlib.Path, program: pathlib.Path) -> str:
    for folder in ("bin", "lib"):
        if (build / folder / program.name).exists():
            return f"{folder}/{program.name}"
    raise NotLinked(f"{program.name} is in neither bin nor lib of {build}")


def static_archives(build: pathlib.Path, program: pathlib.Path) -> Set[pathlib.Path]:
    """Archives from outside of the build folder `build` that its program of that name is linked with. errors: NotLinked."""
    words = run("ninja", "-C", build, "-t", "commands", "-s", _edge_of(build, program)).split()
    archives = _absolute(build, (word for word in words if word.endswith(".a")))
    return {each for each in archives if build not in each.parents}


def source_of(build: pathlib.Path) -> pathlib.Path:
    """The tree that the build folder was configured for. errors: NotLinked."""
    cache = build / "CMakeCache.txt"
    found = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.+)$", cache.read_text(encoding="utf-8"), re.M) if cache.exists() else None
    if not found:
        raise NotLinked(f"{build} is no build folder of CMake")
    return pathlib.Path(found[1])


def headers(build: pathlib.Path, program: pathlib.Path) -> Set[pathlib.Path]:
    """Headers from outside of the build folder and its source tree that its objects were compiled with. errors: NotLinked."""
    source = source_of(build)
    inputs = run("ninja", "-C", build, "-t", "inputs", _edge_of(build, program)).splitlines()
    objects = [name for name in inputs if name.endswith(".o")]
    lines = run("ninja", "-C", build, "-t", "deps", *objects).splitlines() if objects else []
    read = _absolute(build, (line.strip() for line in lines if line.startswith("    ")))
    return {each for each in read if build not in each.parents and source not in each.parents}


@dataclasses.dataclass(frozen=True)
class DebianPackage:
    name: str
    version: str
    architecture: str
    source: str

    @property
    def copyright_file(self) -> pathlib.Path:
        return pathlib.Path("/usr/share/doc") / self.name / "copyright"


class DebianFiles:
    """Which installed package a file belongs to."""

    def __init__(self) -> None:
        self._owner: Dict[str, str] = {}
        self._packages: Dict[str, DebianPackage] = {}
        for listing in sorted(DPKG_LISTS.glob("*.list")):
            for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
                self._owner.setdefault(line, listing.name[: -len(".list")])

    def owner_of(self, path: pathlib.Path) -> DebianPackage | None:
        real = os.path.realpath(path)
        # /lib is a link to /usr/lib, and packages list their files below either.
        for name in (str(path), real, "/usr" + str(path), real[len("/usr"):] if real.startswith("/usr/") else real):
            if name in self._owner:
                return self._package(self._owner[name])
        return None

    def _package(self, name: str) -> DebianPackage:
        if name not in self._packages:
            fields = run("dpkg-query", "-W", "-f=${binary:Package}\t${Version}\t${Architecture}\t${source:Package}", name).split("\t")
            self._packages[name] = DebianPackage(fields[0].split(":")[0], *fields[1:])
        return self._packages[name]


def licences_of(package: DebianPackage) -> List[str]:
    """The short names in its copyright file, sorted; none where the file is not of the machine-readable form."""
    if not package.copyright_file.exists():
        return []
    text = package.copyright_file.read_text(encoding="utf-8", errors="replace")
    if not text.startswith("Format:"):
        return []
    return sorted(set(re.findall(r"^License:[ \t]*(\S.*?)[ \t]*$", text, re.M)))
