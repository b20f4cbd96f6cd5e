"""Lines on stderr, each written once."""

from __future__ import annotations

import sys
from typing import Set

_MOST = 64  # different lines


class Told:
    """Threads: the training thread."""

    def __init__(self) -> None:
        self._lines: Set[str] = set()

    def once(self, line: str) -> None:
        """Writes a line, unless it was written before or too many others were."""
        if line not in self._lines and len(self._lines) < _MOST:
            self._lines.add(line)
            sys.stderr.write(f"{line}\n")
