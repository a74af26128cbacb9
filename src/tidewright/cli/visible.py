"""Text of others on a terminal: what would steer it (escape sequences, line breaks in a cell, turned directions) is shown
as what it is. Job output (``tide logs``) is printed byte for byte, as cat(1) does."""

from __future__ import annotations

import re
import unicodedata

_STEERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of control, format and surrogate characters, line and paragraph separators."""
_BYTES = frozenset(map(chr, range(0xDC80, 0xDD00)))
_SUSPECT = re.compile(r"[^\x20-\x7e\xa1-\xac\xae-\u02ff\u2500-\u257f]")
"""What is looked at more closely; all of the categories above are in it."""


def visible(text: str, lines: bool = False) -> str:
    r"""``text`` with control characters written as ``\x1b`` and the like; ``lines``: line feeds and tabs stay."""

    def shown(match: re.Match[str]) -> str:
        char = match[0]
        if (lines and char in "\n\t") or unicodedata.category(char) not in _STEERS:
            return char
        if char in _BYTES:  # a byte of the command line that is no text (PEP 383)
            return char.encode(errors="surrogateescape").decode(errors="backslashreplace")
        return char.encode("unicode_escape", "surrogatepass").decode()

    return _SUSPECT.sub(shown, text)


def visible_json(text: str) -> str:
    r"""JSON with such characters written as ``\u009b``: they can only stand inside strings, and mean the same there."""

    def shown(match: re.Match[str]) -> str:
        char = match[0]
        if char in "\n" or unicodedata.category(char) not in _STEERS:
            return char
        units = char.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

    return _SUSPECT.sub(shown, text)
