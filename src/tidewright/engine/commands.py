"""Commands: everything the engine asks of the world. The world answers with events; asking twice must be harmless."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from ..model.job import JobSpec
from ..model.node import Allocation


class Reply(Struct, frozen=True, tag=True, omit_defaults=True):
    """The answer to a user's request. ``error`` is empty on success; ``remedy`` says what to do next."""

    op_id: str
    job: int = -1
    error: str = ""
    remedy: str = ""
    kind: str = ""
    """``usage``, ``notfound`` or ``conflict`` when ``error`` is set."""
    warning: str = ""


class Think(Struct, frozen=True, tag=True):
    """Ask the planner for a plan of the book at this revision."""

    revision: int


class Launch(Struct, frozen=True, tag=True):
    """Start every rank of an attempt. Answered by Started or StartFailed, and later Exited."""

    job: int
    attempt: int
    allocation: Allocation


class SuspendRanks(Struct, frozen=True, tag=True):
    """Make the job let go by ``level`` (model.job.Level). Answered by Suspended or SuspendFailed, or Exited for the levels
    that end the attempt."""

    job: int
    attempt: int
    level: int
    allocation: Allocation


class ResumeRanks(Struct, frozen=True, tag=True):
    """Bring a suspended job back on these devices. Answered by Resumed or ResumeFailed."""

    job: int
    attempt: int
    level: int
    allocation: Allocation


class StopRanks(Struct, frozen=True, tag=True):
    """SIGTERM, grace, SIGKILL. Answered by Exited, also when nothing of it is left."""

    job: int
    attempt: int
    grace_us: int
    why: str


class Ended(Struct, frozen=True, tag=True, omit_defaults=True):
    """A job has reached its final state: its whole record, for archive and metrics. The book forgets it."""

    job: int
    state: int
    spec: JobSpec
    submit: int
    first_start: int
    end: int
    ideal_us: int
    """Run time at full speed that it was delivered."""
    attained_milli_us: int
    """Milli-device-microseconds it was delivered."""
    held_milli_us: int
    """Milli-device-microseconds it kept from others, saving and restoring included."""
    preemptions: int
    attempts: int
    code: int
    why: str
    story: tuple[tuple[int, str, str], ...] = ()
    """(time, state or move, why), oldest first."""


Command: TypeAlias = Reply | Think | Launch | SuspendRanks | ResumeRanks | StopRanks | Ended
