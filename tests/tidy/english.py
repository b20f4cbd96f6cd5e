#!/usr/bin/env python3
"""Counts comments that do not stand alone and sentences that are too long, per room, and fails above tests/tidy/ceilings.toml.

  english.py ROOT            prints the counts of the tree at ROOT; exit 1 if one is above its ceiling
  english.py ROOT --list     also prints every finding as PATH:LINE: TEXT
  english.py ROOT --lower    also lowers the ceilings to the counts

A comment or docstring must not open with one of OPENINGS. In a remark after code this holds in lower case, too, and for the
first word after a bracket of units or shapes. A sentence of a comment, of a document or of a string literal (message or help
text) has at most 30 words. FRONT_DOOR, which is what a user reads first, has no ceiling: not one sentence may be longer.
"""
import ast
import collections
import pathlib
import re
import subprocess
import sys
import tomllib

OPENINGS = ("Of", "That", "What", "Who", "Whose", "Whether", "As", "Where", "Else", "Likewise", "None")
OPENING = re.compile(rf"(?:{'|'.join(OPENINGS)})\b")
UNITS = re.compile(r"^\[[^\]]*\][,.:;]? *")
SQL = re.compile(r'"(?:CREATE|DELETE|INSERT|SELECT|UPDATE) ')
MOST_WORDS = 30
# The front page, public headers, and the sources of --help: options of protos, programs in C++, argparse in Python.
FRONT_DOOR = re.compile(r"README\.md|client/(c/)?\w+\.h|proto/eplb/v1/(config|types)\.proto|(client/cli|server|server/config)/\w+\.cc|client/python/.*\.py")
CLIKE = {".h", ".c", ".cc", ".cu", ".cuh", ".proto", ".js", ".mjs"}
HASH = {".py", ".sh", ".cmake", ".toml", ".yaml", ".yml", ".txt"}
CEILINGS = pathlib.Path(__file__).with_name("ceilings.toml")


def room_of(name):
    """Client and server are counted by their folders, everything else by its top level."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] in ("client", "server") and len(parts) > 2 else parts[0]


def opened(remark):
    """Returns a remark after code without its units and with a capital, so that OPENING matches it in any case."""
    remark = UNITS.sub("", remark)
    return remark[:1].upper() + remark[1:]


def comments_of_lines(text, mark):
    """(line, text) of each comment that begins with `mark`: a block of whole lines, or what follows code on a line."""
    found, whole = [], False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith(mark) and not stripped.startswith("#!"):
            body = stripped.lstrip(mark + "!<").strip()
            if whole and body:
                found[-1] = (found[-1][0], f"{found[-1][1]} {body}".strip())
            elif not whole:
                found.append((number, body))
            whole = bool(body) or whole
            continue
        whole = False
        trailing = re.search(rf"[;,{{}})\w]\s+{mark}\s+(\S.*)$", line)
        if trailing and line[:trailing.start()].count('"') % 2 == 0:
            found.append((number, opened(trailing[1])))
    return found


def block_comments(text):
    """(line, text) of each /* comment */."""
    found = []
    for match in re.finditer(r"/\*(.*?)\*/", text, re.S):
        body = re.sub(r"\n[ \t]*\*?[ \t]*", " ", match[1]).strip(" *!")
        follows_code = text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
        found.append((text.count("\n", 0, match.start()) + 1, opened(body) if follows_code else body))
    return found


def docstrings(text):
    """(line, text) of each docstring of a Python file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            found.append((node.body[0].lineno, ast.get_docstring(node).strip()))
    return found


def literals(text):
    """(line, text) of adjacent string literals of C++, joined: messages and help texts."""
    code = re.sub(r"^[ \t]*//.*$", "", text, flags=re.M)
    return [(code.count("\n", 0, match.start()) + 1, "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[0])).replace("\\n", "\n"))
            for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', code) if not SQL.match(match[0])]


def helps(text):
    """(line, text) of each help text and description of argparse."""
    return [(keyword.value.lineno, keyword.value.value)
            for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
            for keyword in node.keywords if keyword.arg in ("help", "description", "epilog") and isinstance(keyword.value, ast.Constant)]


def paragraphs(text):
    """(line, text) of each paragraph of a document, without code blocks and tables."""
    text = re.sub(r"^```.*?^```", lambda match: "\n" * match[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"^\|.*$", "", text, flags=re.M)
    found, line = [], 1
    for part in re.split(r"(\n[ \t]*\n|\n(?=[ \t]*(?:[-*#]|\d+\.) ))", text):
        if part.strip():
            found.append((line, part.strip()))
        line += part.count("\n")
    return found


def long_sentences(texts):
    """(line, sentence) of each sentence above MOST_WORDS words. A blank line or a list's dash also ends a sentence."""
    return [(line, " ".join(sentence.split()))
            for line, text in texts
            for sentence in re.split(r"(?<=[.!?:;])\s|\n\s*\n|\n\s*[-*] |(?<=\.\")\s|(?<=\.\))\s", text)
            if len(re.findall(r"(?<!\S)[(\"'`*]*[A-Za-z][\w'-]*", sentence)) > MOST_WORDS]


def findings(name, text):
    """Openings and long sentences of one file."""
    suffix = pathlib.PurePath(name).suffix
    if suffix == ".md":
        return [], long_sentences(paragraphs(text))
    if suffix in CLIKE:
        comments = comments_of_lines(text, "//") + block_comments(text)
        return comments, long_sentences(comments + (literals(text) if suffix in (".h", ".cc") or FRONT_DOOR.fullmatch(name) else []))
    comments = comments_of_lines(text, "#") + (docstrings(text) if suffix == ".py" else [])
    return comments, long_sentences(comments + (helps(text) if suffix == ".py" else []))


def count(root):
    """({room: openings}, {room: long sentences}), each finding as (path, line, text)."""
    names = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    openings, sentences = collections.defaultdict(list), collections.defaultdict(list)
    for name in sorted(names):
        path = root / name
        if path.suffix not in CLIKE | HASH | {".md"} or name.startswith("tests/data/") or not path.is_file():
            continue
        comments, long = findings(name, path.read_text(encoding="utf-8"))
        openings[room_of(name)] += [(name, line, text) for line, text in comments if OPENING.match(text)]
        sentences[room_of(name)] += [(name, line, text) for line, text in long]
    return openings, sentences


def lower(ceilings, counts):
    """Rewrites the two tables of ceilings.toml with the lower of ceiling and count."""
    text = CEILINGS.read_text(encoding="utf-8")
    for table, rooms in counts.items():
        rows = "".join(f'"{room}" = {min(len(found), ceilings[table].get(room, len(found)))}\n'
                       for room, found in sorted(rooms.items()) if found)
        text = re.sub(rf"^\[{table}\]\n(?:\".*\n)*", f"[{table}]\n{rows}", text, flags=re.M)
    CEILINGS.write_text(text, encoding="utf-8")


def main():
    arguments = sys.argv[1:]
    if not arguments or set(arguments[1:]) - {"--list", "--lower"}:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    openings, sentences = count(pathlib.Path(arguments[0]))
    counts = {"openings": openings, "long_sentences": sentences}
    ceilings = {"openings": {}, "long_sentences": {}} | tomllib.loads(CEILINGS.read_text(encoding="utf-8"))
    above = []
    print(f"{'room':24} openings  sentences above {MOST_WORDS} words")
    for room in sorted(openings):
        if openings[room] or sentences[room]:
            print(f"{room:24} {len(openings[room]):8}  {len(sentences[room])}")
        for table, rooms in counts.items():
            if len(rooms[room]) > ceilings[table].get(room, 0):
                above.append(f"{room}: {len(rooms[room])} {table.replace('_', ' ')}, at most {ceilings[table].get(room, 0)}"
                             " (tests/tidy/ceilings.toml; --list names them)")
    above += [f"{name}:{line}: above {MOST_WORDS} words: {text}"
              for found in sentences.values() for name, line, text in found if FRONT_DOOR.fullmatch(name)]
    print(f"{'all':24} {sum(map(len, openings.values())):8}  {sum(map(len, sentences.values()))}")
    if "--list" in arguments:
        for rooms in counts.values():
            for name, line, text in (finding for found in rooms.values() for finding in found):
                print(f"{name}:{line}: {text[:140]}")
    if "--lower" in arguments:
        lower(ceilings, counts)
        return 0
    for line in above:
        print(line, file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())
