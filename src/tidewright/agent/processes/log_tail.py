"""The last lines of what a rank wrote."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...wire.own_file import open_regular

LINES = 10
LAST_BYTES = 4096
"""So much of a log's end is looked at: what an uncaught exception says of itself, as a rule."""
WIDTH = 200
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Colours and the like (ECMA-48, control sequences)."""


def last_lines(path: str | Path, owner: int | None = None) -> tuple[str, ...]:
    """The last lines of a log that are not empty, without control characters; none of what is no regular file, or not
    ``owner``'s."""
    try:
        file = open_regular(path, owner)
    except OSError:
        return ()
    try:
        facts = os.fstat(file)
        text = os.pread(file, LAST_BYTES, max(0, facts.st_size - LAST_BYTES)).decode(errors="replace")
    except OSError:
        return ()
    finally:
        os.close(file)
    whole = text.split("\n")[1 if facts.st_size > LAST_BYTES else 0 :]  # the first of them may be half a line
    whole = [_ESCAPE.sub("", line) for line in whole]
    lines = ["".join(each if each.isprintable() else " " for each in line.rstrip())[:WIDTH] for line in whole]
    return tuple([line for line in lines if line.strip()][-LINES:])
