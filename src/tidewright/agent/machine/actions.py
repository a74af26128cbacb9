"""What the machine has done for it. Each action about an attempt is carried out on all its ranks on this node.

Those below ``Effect`` have no result. Those below ``ActionStep`` end in an event: ``StepDone`` with the result named in
their docstring, or ``StepFailed``; the machine goes on with what it was doing then. ``INSTANT`` steps are carried out before
anything else happens.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from msgspec import Struct

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


class Effect(Struct, frozen=True):
    """Has no result."""


class ActionStep(Struct, frozen=True):
    """Ends in ``StepDone`` or ``StepFailed``."""

    INSTANT: ClassVar[bool] = False


class Do(NamedTuple):
    """An action about the attempt ``key`` (None: about the node). ``number`` names the step in its ``StepDone`` or
    ``StepFailed``; 0: it has no result."""

    number: int
    key: Key | None
    action: Effect | ActionStep


# -- answers, reports, records, timers ----------------------------------------------------------------------------------


class AnswerRequest(Effect, frozen=True):
    """To the request ``ask``."""

    ask: int
    report: JobReport


class Refuse(Effect, frozen=True):
    """The request ``ask``."""

    ask: int
    error: TideError


class PublishReport(Effect, frozen=True):
    """To every controller that is connected."""

    report: JobReport


class Log(Effect, frozen=True):
    """``bug``: a script of the machine failed; ``text`` is its traceback."""

    level: Literal["info", "warning", "error", "bug"]
    text: str


class StartTimer(Effect, frozen=True):
    """``TimerFired(timer)`` after so many seconds."""

    timer: int
    seconds: float


class CancelTimer(Effect, frozen=True):
    timer: int


class SaveRecord(Effect, frozen=True):
    """Put the record on disk where there is room: a full disk costs the next agent its memory, not the job."""


class CommitRecord(ActionStep, frozen=True):
    """Put the record on disk; ``what`` depends on it. Fails on a full disk."""

    what: str = "the record"
    INSTANT: ClassVar[bool] = True


class CreateAttempt(ActionStep, frozen=True):
    """Put a new attempt on disk, whole and once, with its share of a device acquired; fill in ``cpus`` and how limits are
    enforced in its record. Result: path of each rank's log, as in ``JobReport.logs``. Fails (cause UsageError: no such devices,
    or not so much of one left) with nothing left."""

    args: LaunchArgs
    record: AttemptRecord
    INSTANT: ClassVar[bool] = True


class CheckSeats(ActionStep, frozen=True):
    """Put on disk what a suspended attempt is to come back as, with its share of a device acquired. Result: cores by rank, of
    ``seats``, and the path of each rank's log. Fails for devices that do not exist or have not so much left."""

    launch: LaunchArgs | None
    seats: tuple[NewSeat, ...]
    INSTANT: ClassVar[bool] = True


class RemoveAttempt(Effect, frozen=True):
    """Drop its records; logs stay. ``last``: no other attempt of the job is here."""

    last: bool


# -- processes ----------------------------------------------------------------------------------------------------------


class SpawnRanks(ActionStep, frozen=True):
    """Start every rank that was not started before. Result: outcome by rank, of those that could not be."""


class WatchRanks(Effect, frozen=True):
    """``RankGone`` when the shim of one of ``ranks`` is no more."""

    ranks: tuple[int, ...]


class UnwatchRanks(Effect, frozen=True):
    ranks: tuple[int, ...]


class TerminateRanks(ActionStep, frozen=True):
    """SIGTERM to everything of ``ranks`` but their shims."""

    ranks: tuple[int, ...]


class SweepRanks(ActionStep, frozen=True):
    """SIGKILL to everything of ``ranks`` but their shims, frozen or not, until nothing is left. Result: ranks that survive."""

    ranks: tuple[int, ...]


class KillRanks(ActionStep, frozen=True):
    """End ``ranks`` and their shims, without a record of how they ended."""

    ranks: tuple[int, ...]


class RankEnding(NamedTuple):
    """What is known of a rank's end: ``outcome`` None when its shim lives (``alive``) or left no record."""

    alive: bool
    outcome: RankOutcome | None


class ReadEnding(ActionStep, frozen=True):
    """Result: a ``RankEnding``."""

    rank: int
    INSTANT: ClassVar[bool] = True


class TidyRank(ActionStep, frozen=True):
    """Remove the freezer groups of a rank of ``generation``. Result: False while something is in them."""

    rank: int
    generation: int
    INSTANT: ClassVar[bool] = True


class FindDeviceFault(ActionStep, frozen=True):
    """Result: why a rank on these devices may have died through no fault of its own; empty when they are sound."""

    devices: tuple[int, ...]


class ReadLastLines(ActionStep, frozen=True):
    """Result: the last lines of a rank's log."""

    rank: int


# -- rendezvous and control pages ---------------------------------------------------------------------------------------


class WriteEndpoints(ActionStep, frozen=True):
    """Write the endpoint of the rendezvous for the ranks, once it is open for ``generation`` (empty: any). ``reset``: the ranks
    start from the beginning, and find no keys. Fails when the node that hosts the rendezvous does not answer."""

    generation: str
    reset: bool = False


class AdoptRendezvous(Effect, frozen=True):
    """Open the rendezvous for ranks that an earlier agent started."""


class PackRendezvous(ActionStep, frozen=True):
    """Result: the keys of the rendezvous here, to be stored with an image."""

    INSTANT: ClassVar[bool] = True


class FailRendezvous(Effect, frozen=True):
    """The ranks are not restored here: other nodes need not wait for the rendezvous."""

    why: str


class FindControlPages(ActionStep, frozen=True):
    """Result: whether any rank has joined others through the wrapper, and can be quiesced by it."""

    INSTANT: ClassVar[bool] = True


class CutGang(ActionStep, frozen=True):
    """Quiesce the ranks of a gang, those of ``others`` (agents of its other nodes) included. Result: microseconds from the
    request to the standstill. Fails with all ranks running on. Without ``hurry`` longer steps are trained to their end."""

    others: tuple[Peer, ...]
    cut: int
    hurry: bool


class SendCutResult(ActionStep, frozen=True):
    """Send ``others`` the result of the cut; empty ``why``: it holds. Never fails: a node without a result releases its ranks."""

    others: tuple[Peer, ...]
    cut: int
    why: str


class ReleaseRanks(ActionStep, frozen=True):
    """Quiesced ranks build their connections anew and run on. Harmless for others."""


class GrantHold(Effect, frozen=True):
    """Another node may hold the ranks here for its cut: the answer to ``HoldRequested``."""

    ask: int


# -- suspension ---------------------------------------------------------------------------------------------------------


class CheckLevel(ActionStep, frozen=True):
    """Result: why the ranks cannot be suspended by ``level`` now; empty when they can."""

    level: int


class SuspendByDriver(ActionStep, frozen=True):
    """By a level below FULL. Result: an ``Image``; None when they end by themselves within their grace. Fails with the ranks
    running as before."""

    level: Level


class ResumeByDriver(ActionStep, frozen=True):
    """The other way."""

    level: Level
    image: GangImage


class DiscardImage(ActionStep, frozen=True):
    """An image of a level below FULL will not be restored."""

    level: Level
    image: GangImage


class StartTimeSlices(Effect, frozen=True):
    """Start time slicing of ranks that share a device by swapping; ``DevicesLost`` when it fails."""


class StopTimeSlices(ActionStep, frozen=True):
    """No time slice begins until the next ``StartTimeSlices``."""
