"""Runs the shell code of a Markdown page as a reader would, and compares what the page shows with what came out.

A page's fences are ```sh, run in order in one bash, and ```output, what the block before it shows on a terminal. A fence
after the comment <!-- not in the test: reason --> is not run. Fences of other languages are those that a caller names; any
other fence is an error, so that nothing is left out unseen.
"""

import dataclasses
import os
import re
import select
import signal
import subprocess
import time

NOT_RUN = re.compile(r"<!-- not in the test: (.+) -->")


@dataclasses.dataclass
class Block:
    """Code of a page. line: where it begins. not_run: why it is left out, or "". output: what the page shows, or None."""
    line: int
    code: str
    not_run: str = ""
    output: "str | None" = None
    language: str = "sh"


def blocks_of(text, languages=()):
    """The blocks of a page, in order. languages: of fences besides sh and output. errors: ValueError naming the line."""
    languages = ("sh", *languages)
    blocks, reason, fence, start, body = [], "", None, 0, []
    for number, line in enumerate(text.splitlines(), start=1):
        if fence is not None and line != "```":
            body.append(line)
        elif fence in languages:
            blocks.append(Block(start, "\n".join(body) + "\n", reason, language=fence))
            fence, reason = None, ""
        elif fence == "output":
            if not blocks or blocks[-1].output is not None or blocks[-1].not_run or blocks[-1].language != "sh":
                raise ValueError(f"line {start}: output of no block that is run")
            blocks[-1].output = "\n".join(body)
            fence = None
        elif line == "```output" or line in (f"```{language}" for language in languages):
            fence, start, body = line[3:], number, []
        elif line.lstrip().startswith("```"):
            expected = ", ".join(f"```{language}" for language in languages)
            raise ValueError(f"line {number}: fence {line!r}, expected {expected} or ```output at the line's begin")
        elif found := NOT_RUN.fullmatch(line):
            reason = found[1]
    if fence is not None:
        raise ValueError(f"line {start}: the fence has no end")
    return blocks


def words_of(output):
    """The text of an output without what differs from run to run: numbers, units of time and size, bars, line breaks."""
    text = re.sub(r"[\u2580-\u259f\u2500-\u257f]+", " ", output)
    text = re.sub(r"(?<!\w)(?<!\d\.)[+-]?\d+(,\d{3})*(\.\d+)*(e-?\d+)?", "#", text)
    text = re.sub(r"#[dhm] #[hms](?=\W|$)", "# s", text)
    text = re.sub(r"# (ns|us|µs|ms|s|min|m|h)(?=\s|\W|$)", "# s", text)
    text = re.sub(r"# (B|kB|MB|GB)(?=\s|\W|$)", "# B", text)
    return " ".join(text.split())


def exact_words_of(output):
    """The text of an output of a command that is the same in every run, without line breaks."""
    return " ".join(output.split())


def shows(page, output, words=words_of):
    """True if a page's output is this one, to the words; "..." on the page stands for anything."""
    text, (first, *middle) = words(output), map(words, page.split("..."))
    if not middle:
        return text == first
    if not text.startswith(first):
        return False
    end, last = len(first), middle.pop()
    for piece in middle:
        found = text.find(piece, end)
        if found < 0:
            return False
        end = found + len(piece)
    return text[end:].endswith(last)


class Shell:
    """One bash that blocks run in, one after the other; it ends at the first command that fails.

    directory: where it starts, and where it keeps blocks and their output. environment: all of its variables. Close it.
    """

    def __init__(self, directory, environment):
        self._directory, self._number = directory, 0
        self._bash = subprocess.Popen(["bash", "--noprofile", "--norc", "-e", "-o", "pipefail"], cwd=directory, env=environment,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                      start_new_session=True)

    def run(self, block, seconds):
        """returns: what the block wrote to stdout and stderr. errors: AssertionError when it fails or takes longer."""
        self._number += 1
        code, output = (self._directory / f".block-{self._number}.{end}" for end in ("sh", "out"))
        code.write_text(block.code, encoding="utf-8")
        self._bash.stdin.write(f". {code} > {output} 2>&1 < /dev/null\necho done\n".encode())
        self._bash.stdin.flush()
        ready, _, _ = select.select([self._bash.stdout], [], [], seconds)
        said = output.read_text(encoding="utf-8") if output.exists() else ""
        if not ready:
            raise AssertionError(f"line {block.line}: not done within {seconds:.0f} s; so far it wrote\n{said}")
        if self._bash.stdout.readline() != b"done\n":
            raise AssertionError(f"line {block.line}: a command failed with status {self._bash.wait(10)}; it wrote\n{said}")
        return said

    def close(self):
        """Ends the shell and all that it started, the well-behaved ones by asking."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._bash.pid, number)
            except ProcessLookupError:
                break
            time.sleep(0.5)
        self._bash.wait(10)
        self._bash.stdin.close()
        self._bash.stdout.close()
