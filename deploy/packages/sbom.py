#!/usr/bin/env python3
"""Writes the list of parts of a package (SPDX 2.3, JSON), from what its programs are really linked with and compiled from.

  sbom.py --name eplbd --version 0.1.0-1 --build build/release --out eplbd.spdx.json
          [--licenses FOLDER] [--contained SONAME ..] PROGRAM ..

PROGRAM may be stripped or have another RPATH than the build's: it is found in the build folder by its name. Shared libraries
are DYNAMIC_LINK, or CONTAINS where --contained names them, archives STATIC_LINK, and headers BUILD_DEPENDENCY_OF. --licenses
copies there the copyright files of what becomes part of the package. Times are those of SOURCE_DATE_EPOCH, where that is set.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import time
import urllib.parse

import linked

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# Debian's short names, as SPDX writes them.
SPDX_LICENCES = {"apache-2.0": "Apache-2.0", "apache-2": "Apache-2.0", "bsd-2-clause": "BSD-2-Clause", "bsd-3-clause": "BSD-3-Clause",
                 "expat": "MIT", "mit": "MIT", "mpl-2.0": "MPL-2.0", "mpl-2": "MPL-2.0", "zlib": "Zlib", "isc": "ISC", "bsl-1.0": "BSL-1.0",
                 "public-domain": None, "lgpl-2.1+": "LGPL-2.1-or-later", "lgpl-2+": "LGPL-2.0-or-later", "gpl-2+": "GPL-2.0-or-later",
                 "gpl-3+": "GPL-3.0-or-later", "lgpl-2.1": "LGPL-2.1-only", "gpl-2": "GPL-2.0-only", "gpl-3": "GPL-3.0-only"}


def spdx_id(text):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", text)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def debian_part(package):
    """A Debian package as an SPDX package, with its licence where every short name in its copyright file has one."""
    names = linked.licences_of(package)
    known = [SPDX_LICENCES.get(name.lower()) for name in names]
    part = {"SPDXID": spdx_id(package.name), "name": package.name, "versionInfo": package.version, "supplier": "Organization: Debian",
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
            "licenseDeclared": " AND ".join(sorted(set(known))) if names and all(known) else "NOASSERTION", "copyrightText": "NOASSERTION",
            "sourceInfo": f"built from the source package {package.source}",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:deb/debian/{urllib.parse.quote(package.name)}@{urllib.parse.quote(package.version)}"
                                                  f"?arch={package.architecture}"}]}
    if names:
        part["licenseComments"] = "short names in its copyright file: " + ", ".join(names)
    return part


def file_part(path):
    """An archive that no Debian package has."""
    return {"SPDXID": spdx_id("file-" + path.name), "name": path.name, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
            "checksums": [{"algorithm": "SHA256", "checksumValue": sha256(path)}],
            "comment": f"{path}: of no Debian package"}


def folder_part(folder, count):
    """Headers that no Debian package has."""
    return {"SPDXID": spdx_id(f"headers{folder}"), "name": str(folder), "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
            "comment": f"{count} headers of no Debian package"}


def include_folder(path):
    """The folder named include that a header is below, else its own."""
    return next((each for each in path.parents if each.name == "include"), path.parent)


class Parts:
    """SPDX packages and their relations to one root, each once."""

    def __init__(self, root):
        self.root = root
        self.packages = {}
        self.relations = set()
        self.inside = set()  # Debian packages whose code becomes part of the root

    def add(self, part, relation):
        self.packages.setdefault(part["SPDXID"], part)
        if relation == "BUILD_DEPENDENCY_OF":
            self.relations.add((part["SPDXID"], relation, self.root))
        else:
            self.relations.add((self.root, relation, part["SPDXID"]))

    def add_file(self, debian, path, relation):
        owner = debian.owner_of(path)
        if owner is None:
            self.add(file_part(path), relation)
            return
        self.add(debian_part(owner), relation)
        if relation != "DYNAMIC_LINK":
            self.inside.add(owner)


def collect(parts, debian, program, build, contained):
    """errors: linked.NotLinked."""
    original = next((build / folder / program.name for folder in ("bin", "lib") if (build / folder / program.name).exists()), program)
    for soname, path in linked.shared_libraries(original).items():
        parts.add_file(debian, path, "CONTAINS" if soname in contained else "DYNAMIC_LINK")
    if not (build / "build.ninja").exists():
        return False
    for archive in linked.static_archives(build, program):
        parts.add_file(debian, archive, "STATIC_LINK")
    unowned = {}
    for header in linked.headers(build, program):
        owner = debian.owner_of(header)
        if owner is None:
            unowned.setdefault(include_folder(header), set()).add(header)
        else:
            parts.add(debian_part(owner), "BUILD_DEPENDENCY_OF")
            parts.inside.add(owner)
    for folder, found in unowned.items():
        parts.add(folder_part(folder, len(found)), "BUILD_DEPENDENCY_OF")
    return True


def uplot_part():
    """The chart library of the web page, which the programs hold as bytes."""
    text = (SOURCE / "deploy/cmake/EplbPage.cmake").read_text(encoding="utf-8")
    version = re.search(r"set\(EPLB_UPLOT_VERSION ([\d.]+)\)", text)[1]
    return {"SPDXID": "SPDXRef-uplot", "name": "uplot", "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "MIT", "licenseDeclared": "MIT", "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:npm/uplot@{version}"}]}


def document(name, version, parts, programs, whole):
    digest = hashlib.sha256("".join(sha256(program) for program in programs).encode()).hexdigest()
    root = {"SPDXID": parts.root, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
            "comment": "programs: " + ", ".join(f"{program.name} (SHA-256 {sha256(program)})" for program in programs)}
    created = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    told = {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", created), "creators": ["Tool: eplb-sbom"]}
    if not whole:
        told["comment"] = "The build was not made by Ninja: archives and headers that were compiled in are not listed."
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", parts.root), *sorted(parts.relations)]
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"{name}-{version}",
            "documentNamespace": f"https://eplb.invalid/spdx/{name}-{version}-{digest}", "creationInfo": told,
            "packages": [root, *(parts.packages[key] for key in sorted(parts.packages))],
            "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in relations]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="the build folder that made the programs")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--licenses", type=pathlib.Path)
    parser.add_argument("--contained", nargs="*", default=[], metavar="SONAME", help="libraries that the package brings along")
    parser.add_argument("programs", nargs="+", type=pathlib.Path, metavar="PROGRAM")
    options = parser.parse_args()
    build = options.build.resolve()
    parts = Parts(spdx_id("package-" + options.name))
    debian = linked.DebianFiles()
    try:
        whole = all([collect(parts, debian, program, build, set(options.contained)) for program in options.programs])
    except linked.NotLinked as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    if any(program.name in ("eplbd", "eplbctl") for program in options.programs):
        parts.add(uplot_part(), "CONTAINS")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    made = document(options.name, options.version, parts, options.programs, whole)
    options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    if options.licenses:
        for package in parts.inside:
            if package.copyright_file.exists():
                options.licenses.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(package.copyright_file, options.licenses / f"{package.name}.copyright")
    return 0


if __name__ == "__main__":
    sys.exit(main())
