"""Commands: everything the engine asks of the world. The world answers with events; asking twice must be harmless."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field

from ..model.cause import Cause
from ..model.failure import RankFailure
from ..model.job import JobSpec
from ..model.node import Allocation


class Reply(Struct, frozen=True, tag=True, omit_defaults=True):
    """The answer to a user's request. ``error``: why it is refused, None on success."""

    op_id: str
    job: int = -1
    error: Cause | None = None
    kind: str = ""
    """``usage``, ``notfound`` or ``conflict`` when ``error`` is set."""
    warning: Cause | None = None


class PlanRequest(Struct, frozen=True, tag="Think"):
    """Ask the planner for a plan of the book at this revision."""

    revision: int


class Launch(Struct, frozen=True, tag=True, omit_defaults=True):
    """Start every rank of an attempt. Answered by Started or StartFailed, and later Exited.

    ``image``: serial of the full image to start from; 0: from the beginning. It was made of an earlier attempt, or of another
    job, ``image_job``.
    """

    job: int
    attempt: int
    allocation: Allocation
    image: int = 0
    image_job: int = 0


class SuspendRanks(Struct, frozen=True, tag=True, omit_defaults=True):
    """Make the job release its devices by ``level`` (model.job.Level). Answered by Suspended or SuspendFailed, or Exited for
    the levels that end the attempt. At level FULL the image gets the number ``serial``, the same for all ranks."""

    job: int
    attempt: int
    level: int
    allocation: Allocation
    serial: int = 0


class ResumeRanks(Struct, frozen=True, tag=True, omit_defaults=True):
    """Bring a suspended job back on these devices, at level FULL from the image ``serial``. Answered by Resumed or
    ResumeFailed."""

    job: int
    attempt: int
    level: int
    allocation: Allocation
    serial: int = 0


class CheckpointRanks(Struct, frozen=True, tag=True):
    """Take the full image ``serial`` of a running job, which then runs on. Answered by Checkpointed or CheckpointFailed."""

    job: int
    attempt: int
    serial: int
    allocation: Allocation


class DropImages(Struct, frozen=True, tag=True):
    """Images of the job other than those numbered in ``keep`` are not needed any more; ``nodes`` (names) hold some of them,
    "*" for the store that outlives nodes. Needs no answer.

    With an empty ``keep`` nothing of the suspended ``attempt`` is needed either: a job that is only an image has ended, or
    starts over.
    """

    job: int
    attempt: int
    keep: tuple[int, ...]
    nodes: tuple[str, ...]


class StopRanks(Struct, frozen=True, tag=True):
    """SIGTERM, ``grace_us``, SIGKILL (at once with 0). Answered by Exited, also when nothing of it is left."""

    job: int
    attempt: int
    grace_us: int
    why: Cause


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
    why: Cause
    history: tuple[tuple[int, str, Cause], ...] = field(name="story", default=())
    """(time, state or move, why), oldest first."""
    lost_us: int = 0
    """Run time at full speed that was delivered and lost again: rolled back, or started over."""
    failure: RankFailure | None = None
    """The rank that the job's failure is put down to."""
    promised_us: int = 0
    """Full-speed run time that it was promised, of a job whose tier was changed; 0: what its tier promises."""


Command: TypeAlias = (
    Reply | PlanRequest | Launch | SuspendRanks | ResumeRanks | CheckpointRanks | DropImages | StopRanks | Ended
)
