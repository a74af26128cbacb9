"""One thing that was looked at, and what is safe to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

OK, NOTE, BAD = "ok", "note", "bad"
Step = Callable[[str], None]
"""Called now and then during what may take long, with what is being done."""


@dataclass(frozen=True)
class Finding:
    """``what`` names the check; ``level`` is ok, note (worth knowing) or bad; ``next``: what to do, empty for nothing.

    ``mend`` repairs it and returns what it did; it raises OSError and TideError. None: there is nothing that is safe to do."""

    what: str
    level: str
    text: str
    next: str = ""
    mend: Callable[[], str] | None = field(default=None, compare=False, repr=False)
    frees: bool = False
    """Whether the repair frees space: it comes first, for others need some."""


@dataclass(frozen=True)
class Repair:
    """What came of a repair: ``text`` is what was done, or why it could not be."""

    finding: Finding
    ok: bool
    text: str
