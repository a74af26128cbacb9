"""All that is known of one job that has not ended, in one record.

Each field is in exactly one group (``GROUPS``). A group is as long true as what it is named after: the job, an attempt of it,
a run, a suspension, the devices it holds. What ends that (``engine.lifecycle``) resets the whole group, so that no fact of a
former attempt or run is left behind. Planners see columns (``model.table``) instead; a record never leaves the engine's writer.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import fields

from .cause import Cause
from .job import JobSpec, State
from .node import Allocation

EVERYWHERE = "*"
"""Stands for a store that outlives every node."""


class Image(Struct, frozen=True, omit_defaults=True):
    """One full image of a job. Times in microseconds; ``ideal_us`` is the full-speed run time that is in it."""

    serial: int
    attempt: int
    taken: int
    """When it was ordered, absolute."""
    ideal_us: int
    nodes: tuple[str, ...]
    """Nodes it was taken on, in rank order; each holds its own ranks' part. A dead one is no longer named."""
    kind: str = ""
    """Device kind that it can be restored on, on nodes that take full images; empty: anywhere."""
    save_us: int = 0
    size_bytes: int = 0
    copies: tuple[str, ...] = ()
    """Other nodes that hold all of it, or "*"."""
    torn: bool = False
    """A node it was taken on is dead: only a copy is whole."""
    run_time_us: int = -1
    """Run time that the job's limit had been charged by then; -1: not noted (by an earlier version)."""

    @property
    def whole(self) -> bool:
        return bool(self.copies) or not self.torn

    def survives(self, node: str) -> bool:
        """Whether it is whole without what lies on a node."""
        return any(copy != node for copy in self.copies) or not (self.torn or node in self.nodes)

    @property
    def places(self) -> tuple[str, ...]:
        """Everywhere something of it lies."""
        return tuple(dict.fromkeys((*self.nodes, *self.copies)))


class Saving(Struct, frozen=True):
    """An image in the making: its number, when it was ordered, and the work done and run time charged until then."""

    serial: int
    at: int
    ideal_us: int
    run_time_us: int = -1


class HoldRetry(Struct, frozen=True):
    """A hold whose suspension failed ``tries`` times, last by ``error``; tried again ``at`` (absolute)."""

    tries: int
    at: int
    error: Cause


class Ending(Struct, frozen=True):
    """A job that is being stopped: the state it ends in (QUEUED: it comes back) and why."""

    state: int
    why: Cause


class LevelCap(Struct, frozen=True):
    """The program rules out every preemption level above ``level``."""

    level: int
    why: Cause


class Cooldown(Struct, frozen=True):
    """Planners leave the job alone until ``until`` (absolute) since a suspension failed; ``level`` is its true level."""

    level: int
    until: int


class StartForecast(Struct, frozen=True, omit_defaults=True):
    """When the job was forecast to start (absolute; ``high`` -1: no end). ``counts``: whether its start is held against it; not
    once that has been done, nor when its user has changed the job."""

    low: int
    middle: int
    high: int
    counts: bool = True


FieldValues = tuple[tuple[str, Any], ...]
"""Fields with values."""


class JobRecord(Struct, omit_defaults=True, gc=False):
    """Times are microseconds, absolute unless named ``*_us`` (durations). Not tracked by the collector: no record refers back to
    itself, and there are tens of thousands."""

    spec: JobSpec
    state: int = int(State.HELD)
    attempt: int = 1
    reference: str = ""
    """Kind of device that its full speed is measured on; empty: every kind is alike."""
    dependencies: tuple[int, ...] = ()
    """Unfinished jobs that it waits for."""
    dependents: list[int] | None = None
    """Jobs that wait for this one."""
    runtime_job: int = 0
    """The job of the runtime whose client it is; 0: none."""
    runtime_clients: dict[int, bool] | None = None
    """Jobs that are clients of this one."""
    waiting_array: str | None = None
    """The array that runs as many members as it may."""
    user_hold: int | None = None
    """Held by its user: time of release by the wall clock, 0 for never by itself."""
    size_override: int = 0
    """Its user wants it on just so many devices; 0: on what was submitted."""
    backoff_until: int = 0
    failures: int = 0
    """Attempts that failed by the job's own fault."""
    launch_failures: int = 0
    """In a row."""
    rollback_count: int = 0
    """How often in a row it failed by the world's fault, and no new image between; halved by each hour of run."""
    rollback_free_us: int = 0
    """Run time since the last of these, or since they were last halved."""
    run_time_used_us: int = 0
    """Run time charged to a job with a limit: never more than that of the work it still has."""
    lost_us: int = 0
    """Full-speed run time delivered and lost again."""
    held_milli_us: int = 0
    """Milli-device-microseconds held in earlier, closed spells."""
    refused_by: dict[int, int] | None = None
    """Nodes (the book's indices) that refused to launch it, each with the time until which it is placed elsewhere."""
    images: tuple[Image, ...] = ()
    """Full images that can be restored, oldest first."""
    last_image: int = 0
    """The last number given to an image of it."""
    restore_from: int = 0
    """Number of the image that its next (or present, until it runs) launch starts from."""
    save_measured: bool = False
    """Whether the cost of an image is known."""
    stop_measured: bool = False
    """Whether it is known what a suspension without an image takes."""
    restore_measured: bool = False
    history: list[tuple[int, str, Cause]] = []
    """(time, state or event, why), oldest first."""
    ending: Ending | None = None
    level_cap: LevelCap | None = None
    hold_retry: HoldRetry | None = None
    """It runs, its user wants it suspended, and that could not be done."""
    checkpoint_failures: int = 0
    """In a row."""
    suspend_cooldown: Cooldown | None = None
    phase_at: int = 0
    """When its present phase is over, at its present rate; 0: it has no other to come."""
    checkpoint_at: int = 0
    """When its next periodic image is due."""
    saving: Saving | None = None
    replan_on_release: bool = False
    """On its way out, and to be planned for again as soon as its devices are free."""
    suspended_as: Literal["", "process", "image"] = ""
    """How its suspended attempt can be resumed: with its processes, or from a full image alone."""
    allocation: Allocation | None = None
    """Devices that it occupies."""
    held_since: int = 0
    leaving: bool = False
    """Its devices are no longer committed to it."""
    held_in_place: bool = False
    """Suspended, and keeps its devices, because it must be thawed within a bound."""
    reservation: Allocation | None = None
    """Devices set aside for it: it starts or resumes there without another plan."""

    frozen_memory: Allocation | None = None
    """Host memory that its frozen processes keep on their node (parts without devices)."""
    start_forecast: StartForecast | None = None

    @property
    def image(self) -> Image | None:
        """Its latest image that can be restored."""
        return self.images[-1] if self.images else None

    @property
    def image_only(self) -> bool:
        """Whether it is suspended and lives in its image alone: no process of it is left anywhere."""
        return self.suspended_as == "image" and self.allocation is None

    @property
    def source(self) -> int:
        """Number of the image that it comes back from (suspended, resuming, or to be launched from one); 0: none."""
        if self.restore_from:
            return self.restore_from
        return self.images[-1].serial if self.suspended_as == "image" and self.images else 0

    def reset(self, facts: FieldValues) -> None:
        """These are as in a fresh record."""
        for name, value in facts:
            setattr(self, name, value)


class FieldGroup(Enum):
    """What a fact of a job is about, and so how long it is true."""

    JOB = "until the job ends, or what it counts is over"
    ATTEMPT = "until another attempt takes its place"
    RUN = "while it runs"
    SAVING = "while it is imaged or suspended"
    SUSPENDED = "until it runs again, or another attempt takes its place"
    HELD_IN_PLACE = "while it is frozen on its devices"
    DEVICES = "while it occupies devices"
    RESERVATION = "until it gets the devices, or others do"


GROUPS: dict[FieldGroup, tuple[str, ...]] = {
    FieldGroup.JOB: (
        "spec", "state", "attempt", "reference", "dependencies", "dependents",
        "runtime_job", "runtime_clients", "waiting_array", "user_hold",
        "size_override", "backoff_until", "failures", "launch_failures", "rollback_count", "rollback_free_us", "run_time_used_us",
        "lost_us", "held_milli_us", "refused_by", "images", "last_image", "restore_from", "save_measured", "stop_measured",
        "restore_measured", "history",
        "frozen_memory", "start_forecast",
    ),
    FieldGroup.ATTEMPT: ("ending", "level_cap", "hold_retry", "checkpoint_failures", "suspend_cooldown"),
    FieldGroup.RUN: ("checkpoint_at", "phase_at"),
    FieldGroup.SAVING: ("saving", "replan_on_release"),
    FieldGroup.SUSPENDED: ("suspended_as",),
    FieldGroup.HELD_IN_PLACE: ("held_in_place",),
    FieldGroup.DEVICES: ("allocation", "held_since", "leaving"),
    FieldGroup.RESERVATION: ("reservation",),
}  # fmt: skip

ATTEMPT_GROUPS = (FieldGroup.ATTEMPT, FieldGroup.RUN, FieldGroup.SAVING, FieldGroup.SUSPENDED)
"""What a new attempt begins without."""


_DEFAULT = {one.name: one.default for one in fields(JobRecord)}


def fresh(*groups: FieldGroup) -> FieldValues:
    """The fields of these groups, with what they are in a fresh record."""
    return tuple((name, _DEFAULT[name]) for group in groups for name in GROUPS[group])
