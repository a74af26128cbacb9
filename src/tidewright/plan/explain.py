"""The answer to "why is my job waiting, and what would start it"."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from ..model.cause import Cause
from .reasons import Reason

Basis: TypeAlias = Literal["", "similar", "estimates", "unknown"]
"""Where run times come from: similar jobs, users' estimates with the errors that these have had, or a general distribution,
because too few jobs have finished. Empty: nothing is forecast."""


class DeviceHolder(Struct, frozen=True):
    """A job that has what the asker needs."""

    job: int
    name: str
    tier: str
    devices: int


class Change(Struct, frozen=True, omit_defaults=True):
    """One change that would start the job now. ``flag``: the option that makes it and with which the job was
    to be submitted, or that ``tide update`` takes; empty where the job itself can be scaled, and for other kinds.

    Of a changed request ``devices``, ``device_types``, ``gpu_memory``, ``gpu_milli``, ``gpu_share``, ``cpus_milli``,
    ``memory``, ``tier`` and ``placement`` are fields of the job's spec and their new values. ``jobs``: those that end, are
    cancelled (``cancel-waiting``: while they wait), are scaled to ``sizes``, or move to ``nodes``; of ``undrain`` ``nodes`` are
    those that take work again; ``count``: nodes to add. ``none`` is no change: nothing that was tried starts the job, and
    ``what`` says what was.
    """

    kind: Literal["request", "tier", "move", "scale", "undrain", "wait", "cancel-waiting", "cancel", "nodes", "none"]
    what: Cause
    flag: str
    devices: int = 0
    device_types: tuple[str, ...] | None = None
    gpu_memory: int = -1
    gpu_milli: int = 0
    gpu_share: int = 0
    cpus_milli: int = 0
    memory: int = 0
    tier: str = ""
    placement: str = ""
    jobs: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    count: int = 0


class Explanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Binding limit, who holds it, smallest changes that start it. ``waiting`` is false for a job that runs."""

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
    """Waiting jobs that the policy serves first."""
    order: tuple[Cause, ...] = ()
    """How many of them for which reason; empty where the policy does not say."""
    first_ahead: Cause | None = None
    """The first of them, and by what it comes before the job, of both."""
    changes: tuple[Change, ...] = ()
    """The least change of each kind that would start the job now, the mildest kind first; a single one of kind ``none`` where
    none does. Empty before any were looked for."""
    history: tuple[tuple[int, str, Cause], ...] = ()

    @property
    def liftable(self) -> bool:
        """Whether a change of the request, of other jobs or of the pool may start the job."""
        return self.waiting and self.reason is not None and self.reason.of_the_pool

    @property
    def change(self) -> Change | None:
        """The mildest change."""
        return self.changes[0] if self.changes and self.dead_end is None else None

    @property
    def dead_end(self) -> Cause | None:
        """That nothing that was tried starts the job, and what was tried."""
        return self.changes[0].what if self.changes and self.changes[0].kind == "none" else None


class Interval(Struct, frozen=True):
    """When something happens, absolute microseconds: as likely before as after ``middle``, and between ``low`` and ``high`` in
    eight of ten futures. ``high`` -1: it may not happen at all within the time looked at; ``middle`` -1: it is likely not to.
    """

    low: int
    middle: int
    high: int


class Forecast(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a job starts and ends. ``start`` None: it has devices, or does not start by itself (``why``). ``why`` beside a
    ``start`` says why that is not foreseen."""

    job: int
    start: Interval | None = None
    end: Interval | None = None
    why: Cause | None = None
    samples: int = 0
    """Futures that were simulated."""
    cancelled: Interval | None = None
    """When it is cancelled before it starts (``why``), in those futures in which it is; ``start`` and ``end`` are of the others,
    None where there are none."""
    cancelled_in: int = 0
    """How many futures ``cancelled`` comes from."""
    method: Literal["simulated", "work-ahead"] = "simulated"
    """``work-ahead``: no future could be simulated up to its start in the time allowed; the device-time before the job says
    when."""
    durations: Basis = ""
    finished: int = 0
    """Finished jobs that ``durations`` come from; of ``unknown`` ones all there are."""


class Rehearsal(Struct, frozen=True):
    """What would become of jobs if they were submitted now: a line, and a forecast, of each; warnings of any."""

    lines: tuple[Cause, ...]
    warnings: tuple[Cause, ...]
    forecasts: tuple[Forecast, ...]
