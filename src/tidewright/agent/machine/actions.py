"""What the machine has done for it. Each action about an attempt is carried out on all its ranks on this node.

Those below ``Effect`` have no result. Those below ``ActionStep`` end in an event: ``StepDone`` with the result named in
their docstring, or ``StepFailed``; the machine goes on with what it was doing then. ``INSTANT`` steps are carried out before
anything else happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from ...base.errors import TideError, WorldError
from ...checkpoint.protocol import GangImage
from ...model.job import Level
from ...wire.agent import JobReport, LaunchArgs, NewSeat, Peer
from .outcomes import RankOutcome
from .record import AttemptRecord

Key = tuple[int, int]
"""(job, attempt)"""
Failure = Literal["", "damaged image", "device state lost", "ranks lost", "unneeded"]


class ActionFailed(WorldError):
    """A step could not be carried out. ``no_room``: the disk is full; ``ranks``: those that ended over it; ``cause``: the error
    that a caller is to see."""

    def __init__(
        self,
        message: str,
        kind: Failure = "",
        *,
        no_room: bool = False,
        ranks: tuple[int, ...] = (),
        cause: TideError | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.no_room, self.ranks = kind, no_room, ranks
        self.cause = cause or WorldError(message)


@dataclass(frozen=True, slots=True)
class Effect:
    """Has no result."""


@dataclass(frozen=True, slots=True)
class ActionStep:
    """Ends in ``StepDone`` or ``StepFailed``."""

    INSTANT: ClassVar[bool] = False


class Do(NamedTuple):
    """An action about the attempt ``key`` (None: about the node). ``number`` names the step in its ``StepDone`` or
    ``StepFailed``; 0: it has no result."""

    number: int
    key: Key | None
    action: Effect | ActionStep


# -- answers, reports, records, timers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerRequest(Effect):
    """To the request ``ask``."""

    ask: int
    report: JobReport


@dataclass(frozen=True, slots=True)
class Refuse(Effect):
    """The request ``ask``."""

    ask: int
    error: TideError


@dataclass(frozen=True, slots=True)
class PublishReport(Effect):
    """To every controller that is connected."""

    report: JobReport


@dataclass(frozen=True, slots=True)
class Log(Effect):
    """``bug``: a script of the machine failed; ``text`` is its traceback."""

    level: Literal["info", "warning", "error", "bug"]
    text: str


@dataclass(frozen=True, slots=True)
class StartTimer(Effect):
    """``TimerFired(timer)`` after so many seconds."""

    timer: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CancelTimer(Effect):
    timer: int


@dataclass(frozen=True, slots=True)
class SaveRecord(Effect):
    """Put the record on disk where there is room: a full disk costs the next agent its memory, not the job."""


@dataclass(frozen=True, slots=True)
class CommitRecord(ActionStep):
    """Put the record on disk; ``what`` depends on it. Fails on a full disk."""

    what: str = "the record"
    INSTANT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CreateAttempt(ActionStep):
    """Put a new attempt on disk, whole and once, and fill in ``cpus`` and ``memory_limit`` of its record. Result: path of each
    rank's log, as in ``JobReport.logs``. Fails (cause UsageError: no such devices) with nothing left."""

    args: LaunchArgs
    record: AttemptRecord
    INSTANT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CheckSeats(ActionStep):
    """Put on disk what a suspended attempt is to come back as. Result: cores by rank, of ``seats``, and the path of each rank's
    log. Fails for devices that do not exist."""

    launch: LaunchArgs | None
    seats: tuple[NewSeat, ...]
    INSTANT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class RemoveAttempt(Effect):
    """Drop its records; logs stay. ``last``: no other attempt of the job is here."""

    last: bool


# -- processes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpawnRanks(ActionStep):
    """Start every rank that was not started before. Result: outcome by rank, of those that could not be."""


@dataclass(frozen=True, slots=True)
class WatchRanks(Effect):
    """``RankGone`` when the shim of one of ``ranks`` is no more."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnwatchRanks(Effect):
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TerminateRanks(ActionStep):
    """SIGTERM to everything of ``ranks`` but their shims."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SweepRanks(ActionStep):
    """SIGKILL to everything of ``ranks`` but their shims, frozen or not, until nothing is left. Result: ranks that survive."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillRanks(ActionStep):
    """End ``ranks`` and their shims, without a record of how they ended."""

    ranks: tuple[int, ...]


class RankEnding(NamedTuple):
    """What is known of a rank's end: ``outcome`` None when its shim lives (``alive``) or left no record."""

    alive: bool
    outcome: RankOutcome | None


@dataclass(frozen=True, slots=True)
class ReadEnding(ActionStep):
    """Result: a ``RankEnding``."""

    rank: int
    INSTANT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class TidyRank(ActionStep):
    """Remove the freezer groups of a rank of ``generation``. Result: False while something is in them."""

    rank: int
    generation: int
    INSTANT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class FindDeviceFault(ActionStep):
    """Result: why a rank on these devices may have died through no fault of its own; empty when they are sound."""

    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadLastLines(ActionStep):
    """Result: the last lines of a rank's log."""

    rank: int


# -- rendezvous and control pages ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteEndpoints(ActionStep):
    """Write the endpoint of the rendezvous for the ranks, once it is open for ``generation`` (empty: any). ``reset``: the ranks
    start from the beginning, and find no keys. Fails when the node that hosts the rendezvous does not answer."""

    generation: str
    reset: bool = False


@dataclass(frozen=True, slots=True)
class AdoptRendezvous(Effect):
    """Open the rendezvous for ranks that an earlier agent started."""


@dataclass(frozen=True, slots=True)
class PackRendezvous(ActionStep):
    """Result: the keys of the rendezvous here, to be stored with an image."""

    INSTANT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class FailRendezvous(Effect):
    """The ranks are not restored here: other nodes need not wait for the rendezvous."""

    why: str


@dataclass(frozen=True, slots=True)
class FindControlPages(ActionStep):
    """Result: whether any rank has joined others through the wrapper, and can be quiesced by it."""

    INSTANT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CutGang(ActionStep):
    """Quiesce the ranks of a gang, those of ``others`` (agents of its other nodes) included. Result: microseconds from the
    request to the standstill. Fails with all ranks running on. Without ``hurry`` longer steps are trained to their end."""

    others: tuple[Peer, ...]
    cut: int
    hurry: bool


@dataclass(frozen=True, slots=True)
class SendCutResult(ActionStep):
    """Send ``others`` the result of the cut; empty ``why``: it holds. Never fails: a node without a result releases its ranks."""

    others: tuple[Peer, ...]
    cut: int
    why: str


@dataclass(frozen=True, slots=True)
class ReleaseRanks(ActionStep):
    """Quiesced ranks build their connections anew and run on. Harmless for others."""


@dataclass(frozen=True, slots=True)
class GrantHold(Effect):
    """Another node may hold the ranks here for its cut: the answer to ``HoldRequested``."""

    ask: int


# -- suspension ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckLevel(ActionStep):
    """Result: why the ranks cannot be suspended by ``level`` now; empty when they can."""

    level: int


@dataclass(frozen=True, slots=True)
class SuspendByDriver(ActionStep):
    """By a level below FULL. Result: an ``Image``; None when they end by themselves within their grace. Fails with the ranks
    running as before."""

    level: Level


@dataclass(frozen=True, slots=True)
class ResumeByDriver(ActionStep):
    """The other way."""

    level: Level
    image: GangImage


@dataclass(frozen=True, slots=True)
class DiscardImage(ActionStep):
    """An image of a level below FULL will not be restored."""

    level: Level
    image: GangImage


@dataclass(frozen=True, slots=True)
class StartTimeSlices(Effect):
    """Start time slicing of ranks that share a device by swapping; ``DevicesLost`` when it fails."""


@dataclass(frozen=True, slots=True)
class StopTimeSlices(ActionStep):
    """No time slice begins until the next ``StartTimeSlices``."""
