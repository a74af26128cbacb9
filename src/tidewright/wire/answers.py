"""Answers to questions about a job: why it is where it is, and when it starts and ends."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .job_parts import CauseView, ChangeView, FailureView, Holder, StoryLine, TimeInterval

SCHEMA = "tidewright/v2"
"""v2: everything that says why has a ``cause`` (code, arguments, text) beside its words, which readers of v1 know."""

StateName = Literal[
    "held", "queued", "starting", "running", "suspending", "suspended", "resuming", "stopping",
    "completed", "failed", "cancelled", "timeout",
]  # fmt: skip


class WhyView(Struct, frozen=True, kw_only=True):
    """Why a job is where it is: the binding limit, who holds it, the smallest change that would start it."""

    job: int
    name: str
    state: StateName
    summary: str
    """One sentence."""
    cause: CauseView | None = None
    """The same as data."""
    reason: str = ""
    consequence: str = ""
    """What happens next, in the words of plan.reasons."""
    need: int = 0
    free: int = 0
    holders: tuple[Holder, ...] = ()
    ahead: int = -1
    """Waiting jobs that the policy serves first."""
    order: tuple[CauseView, ...] = ()
    """How many of them for which reason, where the policy says."""
    first_ahead: CauseView | None = None
    """The first of them, and by what it comes before this job."""
    change: str = ""
    """The smallest change that would start it, in words; empty when none was found or none is needed."""
    change_cause: CauseView | None = None
    changes: tuple[ChangeView, ...] = ()
    """The least change of each kind that would start it, the mildest first; ``change`` is the first of them."""
    searched: bool = False
    """Whether changes were looked for: they are where they may lift the limit, unless it was asked without."""
    dead_end: CauseView | None = None
    """Where they were and none starts the job: what was tried."""
    remedy: str = ""
    """What to do next where no change is offered."""
    details: tuple[str, ...] = ()
    array: int = 0
    """Asked of an array: its id; the job is the first of the members that wait, else of those that have not ended."""
    waiting: int = 0
    """Asked of several members: how many of them wait."""
    failure: FailureView | None = None
    """Of a failed job: which rank failed first, and how."""
    story: tuple[StoryLine, ...] = ()
    now: int = 0
    schema: str = SCHEMA


class CalibrationView(Struct, frozen=True, kw_only=True):
    """How the latest starts compare with the intervals that the controller had forecast for them."""

    starts: int
    """How many they are; the three that follow sum up to it."""
    earlier: int
    inside: int
    later: int
    median_error_us: int
    """By how much they came after the middle of their interval, in the median; negative: before it."""


class EtaView(Struct, frozen=True, kw_only=True):
    """When a job starts and ends, by the live pool simulated forward. ``starts`` None: it has devices, or waits for its user
    (``why``). ``why`` beside ``starts`` says why these are not foreseen."""

    job: int
    name: str
    state: StateName
    starts: TimeInterval | None = None
    ends: TimeInterval | None = None
    why: str = ""
    cause: CauseView | None = None
    samples: int = 0
    """Futures that were simulated."""
    cancelled: TimeInterval | None = None
    """When it is cancelled before it starts (``why``), in those futures in which it is; ``starts`` and ``ends`` are of the
    others, None where there are none."""
    cancelled_in: int = 0
    """How many futures ``cancelled`` comes from."""
    method: str = "simulated"
    """``work-ahead`` where no future could be simulated up to its start in the time allowed: reckoned from the device-time before
    it."""
    durations: Literal["", "similar", "estimates", "unknown"] = ""
    """Where run times come from: similar jobs, users' estimates with the errors that these have had, or, too few jobs having
    finished, a general distribution; empty where nothing is forecast."""
    finished: int = 0
    """Finished jobs that the run times come from."""
    calibration: CalibrationView | None = None
    """How far such forecasts are to be trusted; None before enough of them have come true or not."""
    now: int = 0
    schema: str = SCHEMA
