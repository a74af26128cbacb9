"""What a user may change of a job that has been submitted; the rest of its spec is what it was submitted with."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class SpecChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a ``JobSpec`` that are to have other values; None: as it is. Times are microseconds."""

    name: str | None = None
    team: str | None = None
    tier: Literal["premium", "standard", "basic"] | None = None
    weight: float | None = None
    deadline_us: int | None = None
    """Wanted end, counted from the change, not from submission; 0: none."""
    max_duration_us: int | None = None
    """Limit on run time; 0: none."""
    limit_by_us: int = 0
    """Added to the limit on run time that there is; negative: taken off it."""
    expected_us: int | None = None
    """The user's estimate of the run time; 0: none."""
    retries: int | None = None
