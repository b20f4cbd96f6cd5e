"""Text of peers and files, made safe to print."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` on one line: '?' for controls, and for characters that are invisible or turn the direction of others."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
