"""Snapshots of format 1, and how their facts become records."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, field

from ...model.cause import Cause
from ...model.job import JobSpec
from ...model.job_record import Cooldown, Ending, HoldRetry, Image, JobRecord, LevelCap, Saving
from ...model.node import Allocation
from ...model.table import COLUMNS
from ..nodes.failure_rate import Failures
from ..nodes.outages import Outages
from .pool import PoolSnapshot


class OutagesV1(Outages):
    """With the nodes that refused each job."""

    refused_by: dict[int, dict[int, int]] = field(default_factory=dict)


class LedgerV1(Struct):
    """Pool sums exceed 64 bits, so they travel as text."""

    at: int
    held_milli: int
    held_total: str
    retired_total: str
    opened: dict[int, int]
    spent: dict[int, int]
    lost_total: str = "0"


class SnapshotV1(PoolSnapshot, kw_only=True):
    """The book as it was: a dict by job for each fact."""

    ledger: LedgerV1
    specs: dict[int, JobSpec]
    allocations: dict[int, Allocation]
    promises: dict[int, Allocation]
    leaving: dict[int, bool]
    ending: dict[int, tuple[int, Cause]]
    imaged: dict[int, bool]
    user_holds: dict[int, int]
    pins: dict[int, bool]
    waits_for: dict[int, list[int]]
    dependents: dict[int, list[int]]
    array_waiting: dict[int, str]
    backoffs: dict[int, int]
    failures: dict[int, int]
    launch_failures: dict[int, int]
    ran: dict[int, int]
    shields: dict[int, int]
    eager: dict[int, bool] = field(default_factory=dict)
    stories: dict[int, list[tuple[int, str, Cause]]]
    # Fields below were added to a format already in use: an older snapshot opens with these defaults.
    images: dict[int, tuple[Image, ...]] = field(default_factory=dict)
    serials: dict[int, int] = field(default_factory=dict)
    saving: dict[int, Saving] = field(default_factory=dict)
    from_image: dict[int, int] = field(default_factory=dict)
    lowered: dict[int, tuple[int, Cause]] = field(default_factory=dict)
    measured: dict[int, bool] = field(default_factory=dict)
    checkpoint_at: dict[int, int] = field(default_factory=dict)
    checkpoint_failures: dict[int, int] = field(default_factory=dict)
    falls: dict[int, int] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    wishes: dict[int, int] = field(default_factory=dict)
    world_failures: Failures | None = None
    hold_retries: dict[int, HoldRetry] = field(default_factory=dict)
    shielded_until: dict[int, int] = field(default_factory=dict)
    rollback_free_us: dict[int, int] = field(default_factory=dict)
    outages: OutagesV1 = field(default_factory=OutagesV1)


def records(old: SnapshotV1) -> dict[int, JobRecord]:
    """One record for each job."""
    return {job: _record(old, job, row) for row, job in _in_order(old)}


def _in_order(old: SnapshotV1) -> list[tuple[int, int]]:
    rows = {job: row for row, job in enumerate(old.ids)}
    return [(rows[job], job) for job in old.specs]


def _record(old: SnapshotV1, job: int, row: int) -> JobRecord:
    held, ending, cap = old.user_holds.get(job), old.ending.get(job), old.lowered.get(job)
    leaving = job in old.leaving
    shield = old.shields.get(job)
    return JobRecord(
        spec=old.specs[job], state=_column(old, "state", row), attempt=_column(old, "attempt", row),
        dependencies=tuple(old.waits_for.get(job, ())), dependents=old.dependents.get(job),
        waiting_array=old.array_waiting.get(job), user_hold=held, size_override=old.wishes.get(job, 0),
        backoff_until=old.backoffs.get(job, 0), failures=old.failures.get(job, 0),
        launch_failures=old.launch_failures.get(job, 0), rollback_count=old.falls.get(job, 0),
        rollback_free_us=old.rollback_free_us.get(job, 0), run_time_used_us=old.ran.get(job, 0), lost_us=old.lost.get(job, 0),
        held_milli_us=old.ledger.spent.get(job, 0), refused_by=old.outages.refused_by.get(job),
        images=old.images.get(job, ()), last_image=old.serials.get(job, 0), restore_from=old.from_image.get(job, 0),
        save_measured=job in old.measured, history=old.stories.get(job, []), ending=Ending(*ending) if ending else None,
        level_cap=LevelCap(*cap) if cap else None, hold_retry=old.hold_retries.get(job),
        checkpoint_failures=old.checkpoint_failures.get(job, 0),
        suspend_cooldown=None if shield is None else Cooldown(shield, old.shielded_until.get(job, 0)),
        checkpoint_at=old.checkpoint_at.get(job, 0), saving=old.saving.get(job),
        # Earlier versions kept this fact of one suspension beyond its end.
        replan_on_release=job in old.eager and leaving,
        suspended_as=_SUSPENDED_AS[old.imaged.get(job)], allocation=old.allocations.get(job),
        held_since=old.ledger.opened.get(job, 0), leaving=leaving, held_in_place=job in old.pins,
        reservation=old.promises.get(job),
    )  # fmt: skip


_SUSPENDED_AS: dict[bool | None, Any] = {True: "process", False: "image", None: ""}


def _column(old: SnapshotV1, name: str, row: int) -> int:
    return int(np.frombuffer(old.columns[name], COLUMNS[name])[row])
