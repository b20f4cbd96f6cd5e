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
# with. Everything may include base/, base/ nothing; files under tests/ may include everything.
MAY_INCLUDE = {
    "base": set(),
    "placement": set(),
    "placement/search": {"placement", "placement/split"},
    "placement/split": {"placement"},
    "placement/policies": {"placement", "placement/search"},
    "placement/decision": {"placement", "placement/split"},
    "placement/backtest": {"placement", "placement/decision", "placement/policies", "placement/split"},
    "placement/replay": {"placement", "placement/backtest", "placement/decision", "placement/policies", "placement/split"},
    "cuda": {"cuda/kernels", "placement/split"},
    "cuda/kernels": {"placement/split"},
    "proto": {"placement", "placement/policies"},
    "server": {"server/config", "server/etcd", "server/http", "server/process", "server/rpc", "server/runner", "server/store"},
    "server/config": {"server/core/values", "server/process", "proto", "placement", "placement/decision"},
    "server/core/values": {"proto", "placement", "placement/backtest", "placement/decision"},
    "server/core/state": {"server/core/values", "proto", "placement", "placement/backtest", "placement/decision"},
    "server/core/decisions": {"server/core/state", "server/core/values", "proto", "placement", "placement/backtest", "placement/decision",
                              "placement/policies", "placement/search"},
    "server/core/ranks": {"server/core/decisions", "server/core/state", "server/core/values", "proto"},
    "server/core": {"server/core/decisions", "server/core/ranks", "server/core/state", "server/core/values", "proto",
                    "placement/backtest", "placement/policies", "placement/split"},
    "server/etcd": {"server/store", "proto", "placement"},
    "server/history": {"server/core/values", "placement"},
    "server/http": {"server/http/page", "server/history", "server/core/values", "server/process",
                    "server/store", "proto"},
    "server/http/page": {"proto"},
    "server/process": set(),
    "server/rpc": {"server/config", "server/core/values", "server/process", "server/runner", "server/store", "proto", "placement"},
    "server/runner": {"server/core", "server/history", "server/core/values", "server/process", "server/store", "proto"},
    "server/store": {"server/core/values", "server/process", "proto", "placement"},
    "client": {"client/rows", "client/rows/control", "client/rows/paths", "client/run_log", "client/session", "cuda", "proto",
               "placement", "placement/split"},
    "client/c": {"client", "client/session", "placement", "placement/policies", "placement/replay"},
    "client/cli": {"client/cli/formats", "client/run_log", "server/http/page", "proto", "placement", "placement/backtest", "placement/decision",
                   "placement/policies", "placement/replay", "placement/search", "placement/split"},
    "client/cli/formats": {"proto", "placement"},
    "client/rows/control": {"placement"},
    "client/rows": {"client/rows/control", "cuda", "cuda/kernels", "placement"},
    "client/rows/paths": {"client/rows", "client/rows/control", "cuda", "placement"},
    "client/run_log": {"client/cli/formats", "client/session", "proto", "placement"},
    "client/session": {"proto", "placement"},
    "deploy/examples": {"client", "client/cli/formats", "client/rows/control", "client/run_log", "cuda", "placement"},
}
ROOMS = sorted(MAY_INCLUDE, key=len, reverse=True)

# Marks of a protobuf or gRPC type, and the only places that may have it. In the core these are its records (decisions, ends of
# runs, events, windows), which are the messages that show them, its views, and the values of
# configuration keys.
RPC_HEADER = re.compile(r"(\.pb\.h$|^grpc(pp)?/|^google/protobuf/)")
RPC_PLACES = ("proto/wire/channel_credentials", "proto/wire/convert", "proto/wire/fields", "proto/wire/message_json", "proto/wire/message_texts", "proto/wire/setting", "proto/wire/status",
              "server/config/", "server/core/core.h", "server/core/decisions/gpu_speeds", "server/core/values/config.cc", "server/core/values/record.h", "server/core/views", "server/etcd/",
              "server/http/api", "server/http/job_json", "server/http/metrics", "server/http/page/descriptions", "server/rpc/", "server/main", "server/options", "client/session/", "client/cli/", "tests/")
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
    if source is not None and sink is not None and sink not in MAY_INCLUDE[source] | {source, "base"}:
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


def find_circles(includes):
    """Headers that include themselves on some way: (header, the way), one for each circle that a walk meets."""
    done, circles = set(), []

    def walk(path, way):
        if path in way:
            circles.append((path, way[way.index(path):] + [path]))
        elif path not in done:
            done.add(path)
            for _, target in includes.get(path, []):
                walk(target, way + [path])

    for path in includes:
        walk(path, [])
    return circles


def find_violations(root):
    includes = read_includes(root)
    violations = [f"{path}:1: includes itself: {' -> '.join(way)}" for path, way in find_circles(includes)]
    for path, lines in includes.items():
        for line, target in lines:
            if why := check_arrow(path, target):
                violations.append(f'{path}:{line}: includes "{target}": {why}')
        if PUBLIC_HEADER.match(path) and (way := way_to_rpc(path, includes)):
            violations.append(f"{path}:1: public header shows protobuf or gRPC: {' -> '.join(way)}")
    return violations


SELF_TEST_FILES = {
    # Files that must pass.
    "base/files.h": '#include <vector>\n',
    "placement/load.h": '#include <vector>\n#include "base/files.h"\n#include "placement/ids.h"\n',
    "placement/policies/registry.cc": '#include "placement/search/bound.h"\n',
    "cuda/count.cu": '#include "cuda/kernels/count_body.h"\n',
    "proto/wire/convert.h": '#include "placement/load.h"\n#include "eplb/v1/types.pb.h"\n',
    "proto/wire/messages.h": '#include "placement/load.h"\n',
    "server/rpc/session.cc": '#include <grpcpp/server_context.h>\n#include "proto/wire/convert.h"\n',
    "client/session/connection.h": '#include <grpcpp/channel.h>\n#include "proto/wire/convert.h"\n',
    "client/cli/html_report.cc": '#include "server/http/page/assets.h"\n',
    "client/start.h": '#include "proto/wire/messages.h"\n',
    "client/start.cc": '#include "client/session/connection.h"\n#include "client/run_log/run_log.h"\n',
    "deploy/examples/replay_trainer/main.cc": '#include "client/client.h"\n#include "client/rows/control/channel.h"\n',
    "client/rows/executor.cc": '#include "cuda/checksum.h"\n#include "client/rows/control/channel.h"\n',
    "tests/server/any_test.cc": '#include "client/client.h"\n#include "eplb/v1/types.pb.h"\n',
    # Files that must not pass, each with one violation.
    "base/up.cc": '#include "placement/load.h"\n',
    "placement/up.cc": '#include <vector>\n#  include "cuda/count.h"\n',
    "placement/sub.cc": '#include "placement/search/bound.h"\n',
    "placement/search/up.cc": '#include "placement/policies/registry.h"\n',
    "cuda/up.cu": '#include "proto/wire/messages.h"\n',
    "proto/wire/sideways.cc": '#include "cuda/count.h"\n',
    "server/core/leak.h": '#include "eplb/v1/types.pb.h"\n',
    "server/core/sideways.cc": '#include "client/client.h"\n',
    "server/store/up.cc": '#include "server/rpc/gate.h"\n',
    "client/rows/control/up.cc": '#include "client/session/connection.h"\n',
    "client/session/up.cc": '#include "client/client.h"\n',
    "client/cli/formats/up.cc": '#include "client/cli/flags.h"\n',
    "client/cli/library.cc": '#include "client/client.h"\n',
    "client/cli/server.cc": '#include "server/http/api.h"\n',
    "server/http/page/up.cc": '#include "placement/load.h"\n',
    "deploy/examples/replay_trainer/session.cc": '#include "client/session/connection.h"\n',
    "client/leak.h": '#include "client/session/connection.h"\n',
    "client/c/leak.h": '#include "client/leak.h"\n',
    "client/grpc.cc": '#include <grpcpp/channel.h>\n',
    "placement/circle.h": '#include "placement/round.h"\n',
    "placement/round.h": '#include "placement/circle.h"\n',
    "placement/tests.cc": '#include "tests/support/exhaustive.h"\n',
}
SELF_TEST_VIOLATIONS = [
    ("base/up.cc:1:", "base may include no other room, but not placement"),
    ("client/c/leak.h:1:", "client/c/leak.h -> client/leak.h -> client/session/connection.h -> grpcpp/channel.h"),
    ("client/cli/formats/up.cc:1:", "client/cli/formats may include placement, proto, but not client/cli"),
    ("client/cli/library.cc:1:", "but not client"),
    ("client/cli/server.cc:1:", "but not server/http"),
    ("client/rows/control/up.cc:1:", "client/rows/control may include placement, but not client/session"),
    ("client/grpc.cc:1:", "protobuf and gRPC stop at"),
    ("client/leak.h:1:", "public header shows protobuf or gRPC"),
    ("client/session/up.cc:1:", "client/session may include placement, proto, but not client"),
    ("cuda/up.cu:1:", "cuda may include cuda/kernels, placement/split, but not proto"),
    ("deploy/examples/replay_trainer/session.cc:1:", "but not client/session"),
    ("placement/circle.h:1:", "placement/circle.h -> placement/round.h -> placement/circle.h"),
    ("placement/search/up.cc:1:", "placement/search may include placement, placement/split, but not placement/policies"),
    ("placement/sub.cc:1:", "placement may include no other room, but not placement/search"),
    ("placement/tests.cc:1:", "placement is product code and must not include the tests'"),
    ("placement/up.cc:2:", "placement may include no other room, but not cuda"),
    ("proto/wire/sideways.cc:1:", "proto may include placement, placement/policies, but not cuda"),
    ("server/core/leak.h:1:", "protobuf and gRPC stop at"),
    ("server/core/sideways.cc:1:", "but not client"),
    ("server/http/page/up.cc:1:", "server/http/page may include proto, but not placement"),
    ("server/store/up.cc:1:", "but not server/rpc"),
]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in SELF_TEST_FILES.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        found = sorted(find_violations(root))
    def is_planted(line, where, why):
        return line.startswith(where) and why in line

    wrong = [f"not found: {where} {why}" for where, why in SELF_TEST_VIOLATIONS
             if not any(is_planted(line, where, why) for line in found)]
    wrong += [f"found without reason: {line}" for line in found
              if not any(is_planted(line, where, why) for where, why in SELF_TEST_VIOLATIONS)]
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
