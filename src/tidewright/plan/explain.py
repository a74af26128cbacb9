"""The answer to "why is my job waiting, and what would start it"."""

from __future__ import annotations

from msgspec import Struct

from ..model.cause import Cause
from .reasons import Reason


class DeviceHolder(Struct, frozen=True):
    """A job that has what the asker needs."""

    job: int
    name: str
    tier: str
    devices: int


class Change(Struct, frozen=True, omit_defaults=True):
    """One change that would start the job now. ``fields`` are job-spec fields and their new values, ``flag`` how to type it."""

    what: Cause
    flag: str
    devices: int = 0
    device_types: tuple[str, ...] | None = None
    gpu_memory: int = -1
    tier: str = ""
    placement: str = ""


class Explanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Binding limit, who holds it, smallest change that starts it. ``waiting`` is false for a job that runs."""

    job: int
    state: str
    waiting: bool
    reason: Reason | None = None
    why: Cause | None = None
    consequence: str = ""
    need: int = 0
    free: int = 0
    holders: tuple[DeviceHolder, ...] = ()
    ahead: int = 0
    """Waiting jobs that were submitted earlier or are more urgent, as far as the last plan said."""
    change: Change | None = None
    history: tuple[tuple[int, str, Cause], ...] = ()
