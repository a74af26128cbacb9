"""Which job ids were ever given out here, by what they left in the state directory.

An id names a job for good: its logs lie under it, and people remember it. What a journal has lost must not let an id be
given out again; the watermark knows the next one, and where that is lost too, this looks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_LEADING = re.compile(r"\d{1,18}(?=$|\.)")
_PLACES = ("logs", "ranks", "images/work")
"""Directories of one agent whose entries begin with a job's id."""


def next_unused(state: Path) -> int:
    """One more than the highest id that anything in the state directory is named after; 1 when nothing is."""
    return max((job for folder in _folders(state) for job in _ids(folder)), default=0) + 1


def _folders(state: Path) -> Iterator[Path]:
    for agent in (state, *state.glob("hosts/*")):
        yield from (agent / place for place in _PLACES)


def _ids(folder: Path) -> Iterator[int]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                found = _LEADING.match(entry.name.lstrip("."))
                if found:
                    yield int(found.group())
    except OSError:
        return
