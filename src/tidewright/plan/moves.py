"""Moves: what a plan proposes for one job. Each carries its ``why``: a cause, or words of a planner from elsewhere."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field

from ..model.cause import Cause
from ..model.node import Allocation


class Start(Struct, frozen=True, tag=True):
    """Give a queued job these devices; it launches when they are physically free."""

    job: int
    allocation: Allocation
    why: Cause | str


class Suspend(Struct, frozen=True, tag=True, omit_defaults=True):
    """Take the devices away by the job's own level (freeze, full image, cooperative exit, requeue).

    ``replan``: the job is entitled to devices elsewhere, so a planning round is due as soon as it can be resumed, even if
    nothing is free then. A planner that knows better saves a round per suspension with False.

    ``within_us``: where a full image takes longer than this, the job is frozen instead if that releases its devices; 0: never.
    """

    job: int
    why: Cause | str
    replan: bool = field(name="eager", default=True)
    within_us: int = 0


class Resume(Struct, frozen=True, tag=True):
    """Bring a suspended job back on these devices."""

    job: int
    allocation: Allocation
    why: Cause | str


class Migrate(Struct, frozen=True, tag=True):
    """Move a running job to other devices: suspend, then resume there."""

    job: int
    allocation: Allocation
    why: Cause | str


class Resize(Struct, frozen=True, tag=True):
    """Change how many devices an elastic job has; its world size stays."""

    job: int
    allocation: Allocation
    why: Cause | str


class Stop(Struct, frozen=True, tag=True):
    """End a job for good (a policy's early stop)."""

    job: int
    why: Cause | str


Move: TypeAlias = Start | Suspend | Resume | Migrate | Resize | Stop
