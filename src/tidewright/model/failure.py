"""Which rank of a job failed first, and how: the cause of a job's end, as opposed to what was done to its other ranks."""

from __future__ import annotations

from msgspec import Struct


class RankFailure(Struct, frozen=True, omit_defaults=True):
    """The first rank that ended badly by itself. ``code`` is its exit code, 128 + signal for a signal."""

    rank: int
    code: int
    why: str = ""
    """In words: exit code or signal, and what else is known of its cause."""
    node: str = ""
    ended: float = 0.0
    """When, wall-clock seconds of its node; 0: not known."""
    lines: tuple[str, ...] = ()
    """The last lines of its output."""
    memory_limit: int = 0
    """Bytes of host memory that it was limited to and passed; 0: that is not why."""
