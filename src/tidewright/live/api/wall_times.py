"""Times in answers as the wall clock has them: the book and the archive keep the engine's."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from ...engine.book import Book
from ...engine.wall_time import Offsets, wall_time
from ...model.job import JobSpec
from ...wire.job_parts import CauseView

_TIMES = frozenset(
    {
        "at",
        "submit",
        "start",
        "started",
        "end",
        "since",
        "taken",
        "next_image",
        "now",
        "low",
        "middle",
        "high",
        "deadline",
    }
)
"""Fields of answers that are absolute times, microseconds since 1970; 0 and less: none."""


def shown(answer: Struct, book: Book, now: int) -> Struct:
    """An answer as it is to be sent. ``now``: engine time."""
    return _shown(answer, book.wall_offsets, now) if book.wall_offsets else answer


def _shown(value: Any, offsets: Offsets, now: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_shown(each, offsets, now) for each in value) if value and isinstance(value[0], Struct) else value
    if not isinstance(value, Struct):
        return value
    times, nested = _parts(type(value))
    changed: dict[str, Any] = {}
    for name in times:
        at = getattr(value, name)
        if isinstance(at, int) and at > 0:
            changed[name] = wall_time(offsets, at, now)
    for name in nested:
        inner = getattr(value, name)
        if inner:
            changed[name] = _shown(inner, offsets, now)
    return replace(value, **changed) if changed else value


@lru_cache
def _parts(kind: type[Struct]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields of an answer that are times, and those that may hold times in what is in them. Lists have 50,000 jobs: what can
    hold none is not looked at."""
    if kind is JobSpec:
        return (), ()
    known = fields(kind)
    times = tuple(one.name for one in known if one.name in _TIMES)
    return times, tuple(one.name for one in known if one.name not in _TIMES and one.type not in _PLAIN)


_PLAIN = frozenset({int, str, float, bool, CauseView, CauseView | None, tuple[str, ...], tuple[int, ...]})
"""Types of fields that hold no times."""
