"""Least attained service in two dimensions, discretised: Tiresias (Gu et al., NSDI'19, section 3.3).

Attained service is devices times time. A job starts in the first queue and falls to the next when its service passes a
threshold; earlier queues go first, and inside a queue jobs keep the order of their first start, so equals do not take
turns. No run time needs to be known.
"""

from __future__ import annotations

import numpy as np
from msgspec import structs

from ...base.units import SECOND, WHOLE_DEVICE
from ...model.cause import Cause, Code
from ...model.job import State
from ...model.table import Column
from ...model.view import View
from ...plan.order import OrderTerm, QueueOrder
from ...plan.plan import Plan, Wake
from ..compose import Composer
from ..preferences import Preferences, suspendable
from ..wakes import starting
from .preemptive import compose, preemptive_wake

_QUEUE_BIT = 53
"""Keys are the queue above a time in microseconds; 2**53 of them are 285 years."""


class Las:
    """``thresholds_us``: device-microseconds that end each queue but the last; the defaults are those of the Tiresias
    simulator (3,250 and 7,200 GPU-seconds). ``round_us``: plan only at multiples of it (0: at every event), and when a
    job arrives while devices are idle.
    """

    name = "las"
    reads_estimates = False

    def __init__(
        self,
        *,
        thresholds_us: tuple[int, ...] = (3_250 * SECOND, 7_200 * SECOND),
        round_us: int = 0,
        min_run_us: int = 0,
    ) -> None:
        self.thresholds = np.array(sorted(thresholds_us), dtype=np.int64) * WHOLE_DEVICE
        self.round_us = round_us
        self.min_run_us = min_run_us

    def plan(self, view: View) -> Plan:
        """The pool goes to the lowest queues; victims are those with the most service per device."""
        jobs = view.jobs
        service = jobs.attained_now
        queue, started = self._queue(view), _started(view)
        preferences = Preferences(
            key=(queue << _QUEUE_BIT) + started,
            waiting=jobs.waiting,
            why=lambda row: Code.ATTAINED_SERVICE(int(queue[row]) + 1, len(self.thresholds) + 1),
            victims=suspendable(view, self.min_run_us),
            cost=np.maximum(jobs.held_milli, 1) / (service + 1.0),
        )
        composer = compose(view, preferences)
        return composer.plan(self._wake(view, service, preferences, composer))

    def _wake(self, view: View, service: Column, preferences: Preferences, composer: Composer) -> Wake:
        everyone = len(composer.started) == int(view.jobs.waiting.sum())
        if self.round_us:
            settled = everyone and not _suspends(view, composer)
            at = 0 if settled else (view.now // self.round_us + 1) * self.round_us
            return Wake(on_arrival=settled or any(composer.board.free_total), on_free=False, at=at)
        if everyone:
            return Wake()
        jobs = view.jobs
        falls = self._falls_in(service, jobs.held_milli, (jobs.rate > 0).nonzero()[0])
        wake = preemptive_wake(view, preferences, composer, self.min_run_us, view.now + falls if falls >= 0 else 0)
        later = self._falls_in(service, jobs.demand * WHOLE_DEVICE, starting(view, composer.started).nonzero()[0])
        if later < 0 or 0 <= wake.after_run < later:
            return wake
        return structs.replace(wake, after_run=later)

    def _falls_in(self, service: Column, milli: Column, rows: Column) -> int:
        """So long from now, or from when they run, microseconds, the first of ``rows`` falls into a lower queue, on so many
        thousandths of devices; -1 for never."""
        place = np.searchsorted(self.thresholds, service[rows], side="right")
        rows, place = rows[place < len(self.thresholds)], place[place < len(self.thresholds)]
        if not len(rows):
            return -1
        missing = self.thresholds[place] - service[rows]
        return int(np.ceil(missing / np.maximum(milli[rows], 1)).min())

    def order(self, view: View) -> QueueOrder:
        """By queue of attained service, then by first start."""
        queue, started = self._queue(view), _started(view)
        count = len(self.thresholds) + 1
        terms = (
            OrderTerm(Code.AHEAD_BY_SERVICE, queue, lambda row: Code.ATTAINED_SERVICE(int(queue[row]) + 1, count)),
            OrderTerm(Code.AHEAD_BY_START, started, lambda row: _first_start(view, row)),
        )
        return QueueOrder(terms)

    def _queue(self, view: View) -> Column:
        found: Column = np.searchsorted(self.thresholds, view.jobs.attained_now, side="right")
        return found


def _suspends(view: View, composer: Composer) -> bool:
    """Whether rows will wait that do not wait yet: this plan suspends them, or an earlier one did and they still save."""
    moved = int(np.count_nonzero(composer.touched)) > len(composer.started)
    return moved or bool((view.jobs.state == int(State.SUSPENDING)).any())


def _first_start(view: View, row: int) -> Cause:
    first = int(view.jobs.first_start[row])
    return Code.STARTED_AGO(view.now - first) if first >= 0 else Code.NOT_STARTED_YET()


def _started(view: View) -> Column:
    """When each row first started; now for those that have not."""
    first = view.jobs.first_start
    return np.where(first >= 0, first, view.now)
