"""The bounded wait: who has waited too long goes first, in order, within a share of the pool, for a quantum.

See docs/why/bounded-wait.md for the argument; ``bound_us`` is its formula.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from ..base.units import HOUR, MINUTE
from ..model.job import Level, State
from ..model.table import Column
from ..model.view import View
from ..placement.victims import Holder, Victims
from .base import first_rows, suspendable
from .compose import Composer


class Patience(Struct, frozen=True, kw_only=True):
    """Times in microseconds; ``share`` is the part of the pool that overdue rows may hold together."""

    max_wait_us: int = 4 * HOUR
    quantum_us: int = 15 * MINUTE
    share: float = 0.1


def bound_us(patience: Patience, ahead: int, settle_us: int) -> int:
    """Longest wait of a job, from the moment it begins to wait until devices are set aside for it, in microseconds.

    ``ahead``: jobs that were already waiting or in their quantum at that moment; ``settle_us``: longest time a job takes
    to start, resume or let go. It holds for jobs whose devices are on nodes that are up and not held by jobs that cannot
    be suspended, however many jobs of whatever tier arrive later: each job ahead is served in turn, and delays the
    next by at most one quantum, its own launch, and the launch and departure of whoever is in its way.
    """
    return patience.max_wait_us + (ahead + 1) * (patience.quantum_us + 3 * settle_us)


def in_quantum(view: View, patience: Patience) -> Column:
    """Rows that were given devices as overdue and are still owed their quantum. Shape (n,), bool."""
    jobs = view.jobs
    running = jobs.state == int(State.RUNNING)
    since = np.where(running, jobs.run_since, jobs.since)
    granted: Column = (since - jobs.wait_since >= patience.max_wait_us) & (jobs.active | jobs.promised)
    granted &= ~running | (view.now - jobs.run_since < patience.quantum_us)
    return granted


def overdue(view: View, patience: Patience) -> Column:
    """Waiting rows whose wait is too long. Shape (n,), bool."""
    jobs = view.jobs
    late: Column = jobs.waiting & (view.now - jobs.wait_since >= patience.max_wait_us)
    return late


def serve(view: View, composer: Composer, patience: Patience, cost: Column) -> bool:
    """Place overdue rows in the order in which their waits began. False when nothing else may start in this plan.

    Others are held back only for the moments until jobs that are just starting can be told to go again: with them out of
    the way there is room, and whoever started now would be in the way next.
    """
    jobs = view.jobs
    late = np.flatnonzero(overdue(view, patience))
    if not len(late):
        return True
    owed = in_quantum(view, patience)
    devices = np.where(jobs.active, jobs.held, jobs.floor)
    granted = 0
    for row in first_rows(late, jobs.wait_since, jobs.id, len(late)).tolist():
        # Whoever began to wait later owes this row its devices, quantum or not: only those before it can delay it.
        since = int(jobs.wait_since[row])
        before = owed & ((jobs.wait_since < since) | ((jobs.wait_since == since) & (jobs.id < jobs.id[row])))
        used = int(devices[before].sum()) + granted
        if used and used + int(jobs.floor[row]) > patience.share * view.capacity:
            break
        if composer.force(row, suspendable(view) & ~before, cost):
            granted += int(jobs.floor[row])
        elif _could(view, composer, row, jobs.active | jobs.promised):
            composer.stuck.append(row)
            return not _could(view, composer, row, (jobs.active | jobs.promised) & ~before)
    return True


def _could(view: View, composer: Composer, row: int, rows: Column) -> bool:
    """Whether there would be room with all of ``rows`` gone that can ever be sent away."""
    jobs = view.jobs
    holders = []
    for other in np.flatnonzero(rows & (jobs.level > int(Level.NONE)) & ~composer.touched).tolist():
        job = int(jobs.id[other])
        promised = jobs.promised[other]
        holders.append(Holder(other, view.promises[job], 1.0) if promised else composer.holder(other, 1.0))
    mark = composer.board.mark()
    room = Victims(composer.board, holders).make_room(composer.ask(row))
    composer.board.undo(mark)
    return room is not None


def next_overdue(view: View, patience: Patience) -> int:
    """When the next waiting row becomes overdue, or the next quantum ends; 0 for neither. Absolute microseconds."""
    jobs = view.jobs
    times = []
    late = overdue(view, patience)
    patient = jobs.waiting & ~late
    if patient.any():
        times.append(int(jobs.wait_since[patient].min()) + patience.max_wait_us)
    owed = in_quantum(view, patience)
    if late.any() and owed.any():
        since = np.where(jobs.state == int(State.RUNNING), jobs.run_since, np.maximum(jobs.since, view.now))
        times.append(int(since[owed].min()) + patience.quantum_us)
    return min(times, default=0)
