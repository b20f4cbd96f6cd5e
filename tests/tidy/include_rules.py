#!/usr/bin/env python3
"""Holds the arrows between the rooms: fails when a file includes what its room must not know.

  include_rules.py ROOT         checks the tree at ROOT; one line per violation, exit 1 if there is any
  include_rules.py --self-test  plants violations in a temporary tree and checks that each is found
"""
import pathlib
import re
import sys
import tempfile

# Room -> rooms whose headers it may include, besides its own. A file belongs to the longest room that its path begins
# with. Files under tests/ may include everything.
MAY_INCLUDE = {
    "placement": set(),
    "cuda": {"placement"},
    "proto": {"placement"},
    "server": {"proto", "placement"},
    "client": {"client/session", "client/control", "client/migration", "client/files", "proto", "placement"},
    "client/files": {"proto", "placement"},
    "client/session": {"proto", "placement"},
    "client/control": {"placement"},
    "client/migration": {"client/control", "cuda", "placement"},
    "client/c": {"client", "client/files", "placement"},
    "client/cli": {"client", "client/files", "proto", "placement"},
    "client/trainer": {"client", "client/control", "client/files", "cuda", "placement"},
}
ROOMS = sorted(MAY_INCLUDE, key=len, reverse=True)

# What shows a protobuf or gRPC type, and the only places where it may stand.
RPC_HEADER = re.compile(r"(\.pb\.h$|^grpc(pp)?/|^google/protobuf/)")
RPC_PLACES = ("proto/wire/channel_credentials", "proto/wire/convert", "proto/wire/fields", "proto/wire/status",
              "server/rpc/", "server/main", "client/session/", "client/cli/", "tests/")
# Headers that users include: nothing of protobuf or gRPC may be reached from them, on any way.
PUBLIC_HEADER = re.compile(r"^client/(c/)?[^/]+\.h$")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">]+)[">]', re.M)
SUFFIXES = {".h", ".c", ".cc", ".cu", ".cuh"}


def room_of(path):
    return next((room for room in ROOMS if path.startswith(room + "/")), None)


def read_includes(root):
    """{path: [(line, included path)]} of every source below the rooms and tests/."""
    includes = {}
    for top in sorted({room.split("/")[0] for room in MAY_INCLUDE} | {"tests"}):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                text = path.read_text(encoding="utf-8")
                includes[path.relative_to(root).as_posix()] = [
                    (text.count("\n", 0, match.start()) + 1, match.group(1)) for match in INCLUDE.finditer(text)]
    return includes


def check_arrow(path, target):
    """Why `path` must not include `target`, or None."""
    source, sink = room_of(path), room_of(target)
    if source is not None and target.startswith("tests/"):
        return f"{source} is product code and must not include the tests'"
    if source is not None and sink is not None and sink != source and sink not in MAY_INCLUDE[source]:
        allowed = ", ".join(sorted(MAY_INCLUDE[source])) or "no other room"
        return f"{source} may include {allowed}, but not {sink}"
    if RPC_HEADER.search(target) and not path.startswith(RPC_PLACES):
        return "protobuf and gRPC stop at proto/wire, server/rpc and client/session"
    return None


def way_to_rpc(start, includes):
    """The shortest way from a header to a protobuf or gRPC header as a list of paths, or None."""
    ways, seen = [[start]], {start}
    for way in ways:  # grows while it is walked: breadth first
        for _, target in includes.get(way[-1], []):
            if RPC_HEADER.search(target):
                return way + [target]
            if target not in seen:
                seen.add(target)
                ways.append(way + [target])
    return None


def find_violations(root):
    includes = read_includes(root)
    violations = []
    for path, lines in includes.items():
        for line, target in lines:
            if why := check_arrow(path, target):
                violations.append(f'{path}:{line}: includes "{target}": {why}')
        if PUBLIC_HEADER.match(path) and (way := way_to_rpc(path, includes)):
            violations.append(f"{path}:1: public header shows protobuf or gRPC: {' -> '.join(way)}")
    return violations


SELF_TEST_FILES = {
    # What must pass.
    "placement/load.h": '#include <vector>\n#include "placement/ids.h"\n',
    "cuda/count.cu": '#include "placement/load.h"\n',
    "proto/wire/convert.h": '#include "placement/load.h"\n#include "eplb/v1/types.pb.h"\n',
    "proto/wire/messages.h": '#include "placement/load.h"\n',
    "server/rpc/session.cc": '#include <grpcpp/server_context.h>\n#include "proto/wire/convert.h"\n',
    "client/session/connection.h": '#include <grpcpp/channel.h>\n#include "proto/wire/convert.h"\n',
    "client/start.h": '#include "proto/wire/messages.h"\n',
    "client/start.cc": '#include "client/session/connection.h"\n#include "client/files/read_file.h"\n',
    "client/trainer/main.cc": '#include "client/client.h"\n#include "client/control/exchange.h"\n',
    "client/trainer/memory.cc": '#include "cuda/handles.h"\n',
    "client/migration/executor.cc": '#include "cuda/checksum.h"\n#include "client/control/exchange.h"\n',
    "tests/server/any_test.cc": '#include "client/client.h"\n#include "eplb/v1/types.pb.h"\n',
    # What must not, each with one violation.
    "placement/up.cc": '#include <vector>\n#  include "cuda/count.h"\n',
    "cuda/up.cu": '#include "proto/wire/messages.h"\n',
    "proto/wire/sideways.cc": '#include "cuda/count.h"\n',
    "server/core/leak.h": '#include "eplb/v1/types.pb.h"\n',
    "server/core/sideways.cc": '#include "client/client.h"\n',
    "client/control/up.cc": '#include "client/session/connection.h"\n',
    "client/session/up.cc": '#include "client/client.h"\n',
    "client/session/files.cc": '#include "client/files/read_file.h"\n',
    "client/files/up.cc": '#include "client/client.h"\n',
    "client/trainer/session.cc": '#include "client/session/connection.h"\n',
    "client/leak.h": '#include "client/session/connection.h"\n',
    "client/c/leak.h": '#include "client/leak.h"\n',
    "client/grpc.cc": '#include <grpcpp/channel.h>\n',
    "placement/tests.cc": '#include "tests/support/exhaustive.h"\n',
}
SELF_TEST_VIOLATIONS = [
    'client/c/leak.h:1: public header shows protobuf or gRPC: client/c/leak.h -> client/leak.h -> '
    'client/session/connection.h -> grpcpp/channel.h',
    'client/control/up.cc:1: includes "client/session/connection.h": client/control may include placement, but not '
    'client/session',
    'client/files/up.cc:1: includes "client/client.h": client/files may include placement, proto, but not client',
    'client/grpc.cc:1: includes "grpcpp/channel.h": protobuf and gRPC stop at proto/wire, server/rpc and client/session',
    'client/leak.h:1: public header shows protobuf or gRPC: client/leak.h -> client/session/connection.h -> '
    'grpcpp/channel.h',
    'client/session/files.cc:1: includes "client/files/read_file.h": client/session may include placement, proto, but '
    'not client/files',
    'client/session/up.cc:1: includes "client/client.h": client/session may include placement, proto, but not client',
    'client/trainer/session.cc:1: includes "client/session/connection.h": client/trainer may include client, '
    'client/control, client/files, cuda, placement, but not client/session',
    'cuda/up.cu:1: includes "proto/wire/messages.h": cuda may include placement, but not proto',
    'placement/tests.cc:1: includes "tests/support/exhaustive.h": placement is product code and must not include the '
    "tests'",
    'placement/up.cc:2: includes "cuda/count.h": placement may include no other room, but not cuda',
    'proto/wire/sideways.cc:1: includes "cuda/count.h": proto may include placement, but not cuda',
    'server/core/leak.h:1: includes "eplb/v1/types.pb.h": protobuf and gRPC stop at proto/wire, server/rpc and '
    'client/session',
    'server/core/sideways.cc:1: includes "client/client.h": server may include placement, proto, but not client',
]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in SELF_TEST_FILES.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        found = sorted(find_violations(root))
    wrong = [f"not found: {line}" for line in SELF_TEST_VIOLATIONS if line not in found]
    wrong += [f"found without reason: {line}" for line in found if line not in SELF_TEST_VIOLATIONS]
    print("\n".join(wrong) or f"all {len(found)} planted violations found, and nothing else")
    return 1 if wrong else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 1 or not pathlib.Path(arguments[0], "placement").is_dir():
        print("usage: include_rules.py ROOT | --self-test (ROOT is the repository's)", file=sys.stderr)
        return 2
    violations = find_violations(pathlib.Path(arguments[0]))
    print("\n".join(violations) or "include rules hold")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
