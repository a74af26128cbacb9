"""When the next plan could preempt for a row that waits, and this one could not: most running rows can be preempted at once, and
another plan is for those that only start now, or have not run for long enough."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from ..model.job import Level, State
from ..model.node import Allocation, device_count
from ..model.table import Column
from ..model.view import JobColumns, View
from ..placement.could_hold import could_hold
from .compose import Composer
from .preferences import first_rows
from .shapes import Shape

_RUNNING, _SUSPENDING, _NONE = int(State.RUNNING), int(State.SUSPENDING), int(Level.NONE)
_STARTING, _RESUMING = int(State.STARTING), int(State.RESUMING)


class PreemptionWake(Struct, frozen=True):
    """``at``: when the next running row can be preempted for one that waits, absolute (0: none); ``after_run``: how long after it
    has begun to run a row can be that does not run yet (-1: none). Microseconds. See ``plan.Wake``."""

    at: int = 0
    after_run: int = -1


def preemption_wake(
    composer: Composer, rows: Column, least_key: float, min_run_us: int | Column, asked_us: int | Column
) -> PreemptionWake:
    """The wake for a waiting row of ``least_key`` that may preempt those of ``rows`` (flags) with greater keys: a running one
    after ``min_run_us``; one that does not run yet is asked for it ``asked_us`` after its start."""
    view, jobs = composer.view, composer.jobs
    able = rows & suspendable_later(jobs) & (composer.preferences.key > least_key)
    young = (able & young_rows(view, min_run_us)).nonzero()[0] if np.count_nonzero(min_run_us) else able[:0]
    later = (able & starting(view, composer.started)).nonzero()[0]
    at = int((jobs.run_since + min_run_us)[young].min()) if len(young) else 0
    if not len(later):
        return PreemptionWake(at)
    return PreemptionWake(at, int(asked_us[later].min() if isinstance(asked_us, np.ndarray) else asked_us))


def suspendable_later(jobs: JobColumns) -> Column:
    """Rows that can be suspended, or perhaps once they run: the nodes that they are launched on settle it. Shape (n,), bool."""
    found: Column = (jobs.level > _NONE) | (jobs.state != _RUNNING)
    return found


def young_rows(view: View, min_run_us: int | Column) -> Column:
    """Running rows that have not run for ``min_run_us``. Shape (n,), bool."""
    found: Column = (view.jobs.state == _RUNNING) & (view.now - view.jobs.run_since < min_run_us)
    return found


def starting(view: View, started: list[int]) -> Column:
    """Rows that do not run yet but will without another plan, those ``started`` by this one too. Shape (n,), bool."""
    jobs = view.jobs
    found: Column = (jobs.state == _STARTING) | (jobs.state == _RESUMING)
    found[started] = True
    return found


def leaving(composer: Composer) -> Column:
    """Rows that will wait once they have released their devices. Shape (n,), bool."""
    flags: Column = composer.jobs.state == _SUSPENDING
    for step in composer.steps:
        flags[list(step.suspended)] = True
    return flags


class Reach:
    """Which waiting rows could have devices if all rows with greater keys could be preempted, those too that do not run yet."""

    def __init__(self, composer: Composer, kept: Allocation, never: Column) -> None:
        """``kept``: devices that are free and are not on the composer's board. ``never``: flags of rows that stay."""
        self._composer, self._jobs, self._key = composer, composer.jobs, composer.preferences.key
        self._kept, self._never = (*composer.reserved, *kept), never
        self.free = sum(composer.board.free_total) + device_count(self._kept)
        """Devices that are free in all after the plan."""

    def least_key(self, waiting: Column, later: Column) -> int | float | None:
        """Key of the most wanted of the ``waiting`` rows (flags) that could have devices when those of ``later`` (flags) with
        greater keys can be preempted as well; None for none. A necessary condition."""
        jobs, key = self._jobs, self._key
        keys = key[later & suspendable_later(jobs)]
        if not len(keys):
            return None
        rows = (waiting & (key < np.maximum.reduce(keys))).nonzero()[0]
        if not len(rows):
            return None
        rows = rows[self._missing(rows, key[rows]) <= 0]
        rows = first_rows(rows, key, jobs.id, len(rows)) if len(rows) > 1 else rows
        # Later rows have fewer others to preempt, so what one could not have none of its shape could.
        failed: dict[Shape, bool] = {}
        for row, shape in zip(rows.tolist(), self._composer.shapes(rows), strict=True):
            if shape in failed:
                continue
            if self._could_hold(row):
                found: int | float = key.item(row)  # an integer of up to 57 bits stays one
                return found
            failed[shape] = True
        return None

    def least_free(self, waiting: Column, preempting: Column, kept: int, served_first: Column, aged: Column) -> int:
        """``Wake.min_free``: so many devices are free in all before another of the ``waiting`` rows (flags) could start. Those of
        ``preempting`` may preempt, with keys as small as ``aged``. ``kept``: devices that are kept from all but those of
        ``served_first``."""
        jobs = self._jobs
        if np.count_nonzero(jobs.memory) or jobs.resourced:
            return 0
        needs = jobs.floor + np.where(served_first, 0, kept) if kept else jobs.floor
        found, rows = int(needs[waiting].min()), preempting.nonzero()[0]
        if not len(rows) or found <= self.free:
            return found
        return min(found, max(self.free + int(self._missing(rows, aged[rows]).min()), 0))

    @cached_property
    def _others(self) -> Column:
        """Rows that could be preempted at some time, the most wanted first."""
        jobs, moved = self._jobs, self._composer.moved
        others = jobs.active | jobs.reserved
        others[self._composer.started] = True
        others &= suspendable_later(jobs)
        if moved:
            others[list(moved)] = False
        others &= ~self._never
        rows = others.nonzero()[0]
        ordered: Column = rows[self._key[rows].argsort()]
        return ordered

    def _devices(self, rows: Column) -> Column:
        """How many each of ``rows`` has; one that does not run yet, at most."""
        held: Column = self._jobs.held[rows]
        return np.where(held > 0, held, self._jobs.demand[rows])

    @cached_property
    def _sums(self) -> tuple[Column, Column]:
        """Keys of those that could be preempted, and how many devices all from each on have; 0 after the last."""
        others = self._others
        sums = np.zeros(len(others) + 1, np.int64)
        self._devices(others)[::-1].cumsum(out=sums[1:])
        return self._key[others], sums[::-1]

    def passing(self, rows: Column, least: Column) -> Column:
        """Which of ``rows`` (numbers) could have devices with keys as small as ``least``, and pass another row until then, where
        the keys of those that run only fall. Shape (len(rows),), bool. A necessary condition as long as no devices come free."""
        keys, _ = self._sums
        passed = keys.searchsorted(least, side="right") < keys.searchsorted(self._key[rows], side="right")
        found: Column = passed & (self._missing(rows, least) <= 0)
        return found

    def _missing(self, rows: Column, wanted: Column) -> Column:
        """Devices that each of ``rows`` would lack, were its key ``wanted``, with those of all with greater keys, wherever
        these lie; 0 or less: none."""
        jobs, (keys, sums) = self._jobs, self._sums
        missing: Column = jobs.floor[rows] - sums[keys.searchsorted(wanted, side="right")] - self.free
        return np.where(jobs.shares[rows], 0, missing) if np.count_nonzero(jobs.memory) or jobs.resourced else missing

    def _could_hold(self, row: int) -> bool:
        """Whether they lie so that the row could have its devices."""
        keys, nodes, counts = self._parts
        at = keys.searchsorted(self._key.item(row), side="right")
        gain = np.bincount(nodes[at:], counts[at:], len(self._composer.view.layout.nodes))
        for part in self._kept:
            gain[part.node] += part.mask.bit_count()
        return could_hold(self._composer.board, self._composer.request(row), gain.tolist())

    @cached_property
    def _parts(self) -> tuple[Column, Column, Column]:
        """Keys, nodes and numbers of devices of what could be freed on each node, the most wanted first."""
        jobs, view, rows = self._jobs, self._composer.view, self._others
        # One that migrates is counted where it goes.
        lone = np.where(jobs.reserved[rows], 0, jobs.lone_node[rows])
        spread = rows[lone == 0].tolist()
        placed = {step.row: step.allocation for step in self._composer.steps}
        parts: list[tuple[int, int, int]] = []
        for row in spread:
            job = jobs.id.item(row)
            held = placed.get(row) or view.reservations.get(job) or view.allocations[job]
            parts += [(row, part.node, part.mask.bit_count()) for part in held]
        single = rows[lone > 0]
        alone = np.stack([single, lone[lone > 0] - 1, self._devices(single)], axis=1)
        listed = np.concatenate([alone, np.array(parts, np.int64).reshape(-1, 3)])
        keys = self._key[listed[:, 0]]
        order = keys.argsort(kind="stable")
        return keys[order], listed[order, 1], listed[order, 2]
