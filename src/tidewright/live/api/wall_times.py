"""Times in answers as the wall clock has them: the book and the archive keep the engine's."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...engine.book import Book
from ...engine.wall_time import Offsets, wall_time
from ...model.job import JobSpec

_TIMES = frozenset({"at", "submit", "start", "started", "end", "since", "taken", "next_image", "now"})
"""Fields of answers that are absolute times, microseconds since 1970; 0 and less: none."""


def shown(answer: Struct, book: Book, now: int) -> Struct:
    """An answer as it is to be sent. ``now``: engine time."""
    return _shown(answer, book.wall_offsets, now) if book.wall_offsets else answer


def _shown(value: Any, offsets: Offsets, now: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_shown(each, offsets, now) for each in value) if value and isinstance(value[0], Struct) else value
    if not isinstance(value, Struct) or isinstance(value, JobSpec):
        return value
    changed: dict[str, Any] = {}
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if name in _TIMES and isinstance(field, int) and field > 0:
            changed[name] = wall_time(offsets, field, now)
        elif isinstance(field, tuple | Struct):
            changed[name] = _shown(field, offsets, now)
    return replace(value, **changed)
