#!/usr/bin/env python3
"""Measures the house: code lines, files, folders. Fails where the house outgrows tests/tidy/ceilings.toml.

  house.py ROOT   prints the figures of the tree at ROOT; one line per violation on standard error, exit 1 if there is any

A code line is a line that is neither blank nor a comment. A change that raises a ceiling reports in its commit message what was
added, for whom, and what was removed.
"""
import collections
import pathlib
import re
import statistics
import subprocess
import sys
import tomllib

PRODUCT = ("base", "placement", "proto", "cuda", "client", "server", "deploy")
SUFFIXES = {".h", ".c", ".cc", ".cu", ".cuh", ".py"}
HEADERS = {".h", ".cuh"}
# A C compiler of the user or the wheel reads these; no product file has to.
PUBLIC = re.compile(r"^client/(c/eplb\w*|client)\.h$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
ANONYMOUS = re.compile(r"^namespace \{", re.M)
MOST_LINES = 600
# Folders whose classes have a bounded number of data members.
CLASS_ROOMS = ("server/core/", "client/")
MOST_MEMBERS = 30
MANY_MEMBERS = 20
# Options that users or operators set one by one.
OPTIONS = re.compile(r"(Options|_options|Settings|Config)$")
CLASS = re.compile(r"(?<!enum )\b(?:class|struct)\s+(?:\w+::)*(\w+)\s*(?:final\s*)?(?::[^:;{}][^;{}]*)?\{")
# Statements of a class body that declare no data member of an object.
NO_MEMBER = re.compile(r"(using|typedef|friend|static|enum|class|struct|union|template)\b")
EXAMPLE = """
class A final : public B {
 public:
  explicit A(int a) : a_(a), b_{a} {}
  A& operator=(const A&) = delete;
  std::optional<int> F(std::string text) const ABSL_LOCKS_EXCLUDED(mutex_) { return text.empty() ? 1 : 2; }
  static constexpr int kSize = 4;
  struct C { int d = 0, e = 0; };
  enum class D { kOne, kTwo };
 private:
  int a_, b_;  // two; "three"
  mutable absl::Mutex mutex_;
  std::map<std::string, std::function<int(int, int)>> calls_ ABSL_GUARDED_BY(mutex_) = {{"x", {}}};
  C c_{.d = 1, .e = 2};
};
"""


def read_files(root):
    """{path below `root`: text} of every source file that git knows."""
    names = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", *PRODUCT, "tests"],
                           check=True, capture_output=True, text=True).stdout
    return {name: (root / name).read_text(encoding="utf-8") for name in sorted(names.splitlines())
            if pathlib.PurePath(name).suffix in SUFFIXES and (root / name).is_file()}


def code_lines(name, text):
    """Number of lines of `text` that are neither blank nor a comment."""
    if name.endswith(".py"):
        return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    without_blocks = re.sub(r"^[ \t]*/\*.*?\*/", "", text, flags=re.M | re.S)
    return sum(1 for line in without_blocks.splitlines() if line.strip() and not line.lstrip().startswith("//"))


def mutual_folders(files):
    """Pairs of folders whose files include each other's, sorted."""
    arrows = collections.defaultdict(set)
    for name, text in files.items():
        source = pathlib.PurePath(name).parent.as_posix()
        for target in INCLUDE.findall(text):
            sink = pathlib.PurePath(target).parent.as_posix()
            if target in files and source != sink:
                arrows[source].add(sink)
    return sorted((a, b) for a in arrows for b in arrows[a] if a < b and a in arrows.get(b, ()))


def orphan_headers(files):
    """Headers that no file includes but the .cc or .cu of the same name, sorted."""
    orphans = {name for name in files if pathlib.PurePath(name).suffix in HEADERS and not PUBLIC.match(name)}
    for name, text in files.items():
        stem = pathlib.PurePath(name).with_suffix("")
        orphans -= {target for target in INCLUDE.findall(text) if pathlib.PurePath(target).with_suffix("") != stem}
    return sorted(orphans)


def count_members(body):
    """Number of data members that `body`, a class body without comments, strings and what is inside of its braces, declares."""
    members = 0
    while body != (body := re.sub(r"<[^<>]*>", "", body)):
        pass
    body = re.sub(r"\b(ABSL_\w+|alignas)\([^()]*\)", "", body)
    # A function's body ends its statement; braces of an initial value are followed by a comma or a semicolon.
    body = re.sub(r"\b(public|private|protected):|\{\}(?!\s*[,;])", ";", body)
    for statement in (statement.strip() for statement in body.split(";")):
        declaration = re.sub(r"=[^,]*", "", statement)
        if declaration and not NO_MEMBER.match(declaration) and not re.search(r"\(|\boperator\b", declaration):
            members += 1 + declaration.count(",")
    return members


def count_class_members(text):
    """{class: number of its data members} of a source file."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'', "", text, flags=re.S)
    classes = {}
    for head in CLASS.finditer(text):
        depth, body = 1, []
        for part in re.split(r"([{}])", text[head.end():]):
            depth += (part == "{") - (part == "}")
            if depth == 0:
                break
            if depth == 1 or (depth == 2 and part == "{"):
                body.append(part)
        classes[head.group(1)] = count_members("".join(body))
    return classes


def wide_classes(files, most):
    """[(number of data members, "file: class")] of classes with more than `most`, the widest first."""
    return sorted(((members, f"{name}: {cls}") for name, text in files.items() if name.startswith(CLASS_ROOMS) and not name.endswith(".py")
                   for cls, members in count_class_members(text).items() if members > most and not OPTIONS.search(cls)), reverse=True)


def violations(product, tests, ceilings):
    """One line for each rule that the tree breaks, and for each exception that is no longer needed."""
    files = product | tests
    found = [f"{a} and {b} include each other" for a, b in mutual_folders(product)]
    found += [f"{name} has {text.count(chr(10))} lines, at most {MOST_LINES}" for name, text in files.items()
              if text.count("\n") > MOST_LINES]
    found += [f"{name} opens {len(ANONYMOUS.findall(text))} anonymous namespaces: one idea a file" for name, text in files.items()
              if name.endswith(".cc") and len(ANONYMOUS.findall(text)) > 1]
    found += [f"{cls} has {members} data members, at most {MOST_MEMBERS}" for members, cls in wide_classes(product, MOST_MEMBERS)]
    orphans, listed = orphan_headers(product), ceilings["orphan_headers"]
    found += [f"{name} is included by no product file but its own" for name in orphans if name not in listed]
    found += [f"ceilings.toml: {name} is no orphan any more: delete its line" for name in listed if name not in orphans]
    for what, part in (("product", product), ("tests", tests)):
        lines = sum(code_lines(name, text) for name, text in part.items())
        if lines > ceilings["code_lines"][what]:
            found.append(f"{what}: {lines} code lines, at most {ceilings['code_lines'][what]} (tests/tidy/ceilings.toml)")
    return found


def figures(product, tests):
    """Rows of (what, figure)."""
    sizes = sorted(text.count("\n") for text in product.values())
    rooms = collections.Counter()
    for name, text in product.items():
        rooms["/".join(name.split("/")[:2])] += code_lines(name, text)
    return [
        ("product, code lines", sum(rooms.values())),
        ("tests, code lines", sum(code_lines(name, text) for name, text in tests.items())),
        ("product, files", len(sizes)),
        ("lines per file, median", round(statistics.median(sizes))),
        ("lines per file, 90th percentile", sizes[int(0.9 * len(sizes))]),
        ("glued files (two anonymous namespaces)", sum(len(ANONYMOUS.findall(text)) > 1 for text in (product | tests).values())),
        ("orphan headers", len(orphan_headers(product))),
        ("pairs of folders that include each other", len(mutual_folders(product))),
        *((f"data members of {cls}", members) for members, cls in wide_classes(product, MANY_MEMBERS)),
        *((f"  {room}", lines) for room, lines in rooms.most_common() if "." not in room),
    ]


def main():
    if len(sys.argv) != 2:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    assert count_class_members(EXAMPLE) == {"A": 5, "C": 2}, count_class_members(EXAMPLE)
    root = pathlib.Path(sys.argv[1])
    files = read_files(root)
    product = {name: text for name, text in files.items() if not name.startswith("tests/")}
    tests = {name: text for name, text in files.items() if name.startswith("tests/")}
    assert len(product) > 100, f"only {len(product)} product files were found below {root}"
    with open(pathlib.Path(__file__).with_name("ceilings.toml"), "rb") as file:
        ceilings = tomllib.load(file)
    for what, figure in figures(product, tests):
        print(f"{what:42} {figure}")
    found = violations(product, tests, ceilings)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
