"""When jobs start and end: the live pool simulated forward, again and again, with what is not known drawn anew each time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from msgspec import Struct

from ..base.units import DAY, WHOLE_DEVICE
from ..engine.book import Book
from ..engine.engine import Engine
from ..model.cause import Cause
from ..model.node import milli_devices
from ..plan.explain import Forecast, Interval
from ..plan.plan import Planner
from .ahead import ahead_of
from .draws import UNENDING_US, arrivals, duration_basis, total_us, unending
from .forward import ForwardRun, learnt_costs
from .stuck import held, stays, taking_work, without_room
from .trial import RUNNING, Enough

SAMPLES = 20
"""Futures; the second and the last but one of twenty hold eight of ten between them (17 of 21)."""
_LEAST_SAMPLES = 5
_HORIZON_US = 60 * DAY
_TURNS = 100_000
"""Most turns of one future."""
_END_TURNS = 200
"""Turns after the start, in which what may still preempt a job is simulated; its end is then reckoned."""
_DRAWS = 10
_DRAWN = 50_000
"""Run times drawn in all for one answer: sums of many vary little, and fewer of them do."""
_WIDER = 1.5
"""What is reckoned from the work ahead is off by so much either way: kinds, sizes and later arrivals are left out."""
_UTILISATION = 0.9
_LEAST_SHARE = 0.1
"""Of the pool's device-time is left for the jobs ahead at least, whatever arrives."""


_NOT_FORESEEN = Interval(-1, -1, -1)


class _Outcomes(Struct):
    """Starts and ends of one job in the futures seen so far, -1: not within the time looked at; and when it was cancelled before
    it started, in other futures, and why in the last of these."""

    starts: list[int] = []
    ends: list[int] = []
    cancelled: list[int] = []
    why: Cause | None = None
    not_before: int = 0
    """It had not started by then in the future that could not be followed to its start, absolute; 0: there was none."""


def forecast(
    image: bytes, planner: Planner, jobs: Sequence[int], enough: Enough = lambda: False, samples: int = SAMPLES
) -> tuple[Forecast, ...]:
    """When each of ``jobs`` next runs and when it ends. ``image``: a snapshot of the engine; the same snapshot gives the
    same answer as long as ``enough`` never says so. Raises KeyError for a job that is not in it."""
    engine = Engine.restore(image)
    book = engine.book
    not_at_all = {job: why for job in jobs if (why := held(book, job)) is not None}
    without = {job: why for job in jobs if job not in not_at_all and (why := without_room(book, job)) is not None}
    futures = {job: _Outcomes() for job in jobs if job not in not_at_all and job not in without}
    costs, seed = learnt_costs(book), book.revision
    for sample in range(samples if futures else 0):
        if enough():
            break
        coming = arrivals(book, Random(f"{seed}.{sample}.arrivals"))
        if not _follow(ForwardRun(image, planner, costs, Random(f"{seed}.{sample}"), coming), futures, enough):
            break
    found = []
    for job in jobs:
        if job in not_at_all:
            found.append(Forecast(job=job, why=not_at_all[job]))
        elif job in without:
            found.append(Forecast(job=job, start=_NOT_FORESEEN, end=_NOT_FORESEEN, why=without[job]))
        elif futures[job].ends or futures[job].cancelled:
            found.append(_simulated(book, job, futures[job], book.state(job) in RUNNING))
        else:
            found.append(_by_work(engine, planner, job, futures[job].not_before))
    return tuple(found)


def _simulated(book: Book, job: int, seen: _Outcomes, running: bool) -> Forecast:
    basis = duration_basis(book.run_times, book.specs[job])
    return Forecast(
        job=job, start=None if running or not seen.starts else interval(seen.starts),
        end=interval(seen.ends) if seen.ends else None, why=seen.why, samples=len(seen.ends) + len(seen.cancelled),
        cancelled=interval(seen.cancelled) if seen.cancelled else None, cancelled_in=len(seen.cancelled),
        durations=basis.kind, finished=basis.finished,
    )  # fmt: skip


def _follow(run: ForwardRun, futures: dict[int, _Outcomes], enough: Enough) -> bool:
    """One future; false when it could not be followed for long enough. A job that has not started by then starts later than in
    the futures before, or says nothing."""
    jobs, horizon, has = list(futures), run.now + _HORIZON_US, run.started
    running = {job: True for job in jobs if run.engine.book.state(job) in RUNNING}

    def all_started() -> bool:
        return all(job in has or job in running or job in run.ended for job in jobs)

    whole = run.run(all_started, horizon, lambda: run.turns > _TURNS or enough())
    turns = run.turns + _END_TURNS
    if whole:
        run.run(lambda: all(job in run.ended for job in jobs), horizon, lambda: run.turns > turns or enough())
    for job, seen in futures.items():
        started = job in has or job in running
        if job in run.ended and not started:
            seen.cancelled.append(run.ended[job])
            seen.why = run.why_ended[job]
        elif started or whole or 0 <= max(seen.starts, default=run.now) < run.now:
            seen.starts.append(has.get(job, -1))
            seen.ends.append(run.end_of(job) if started else -1)
        else:
            seen.not_before = run.now
    return whole


def interval(times: Sequence[int]) -> Interval:
    """The middle and the ends of an interval that holds eight of ten, of equally likely times; -1 is later than any."""
    ordered = sorted(times, key=lambda at: (at < 0, at))
    last = len(ordered) - 1
    edge = max(int(0.1 * (len(ordered) + 1)) - 1, 0) if len(ordered) >= _LEAST_SAMPLES else 0
    return Interval(ordered[edge], ordered[last // 2], ordered[last - edge])


# -- where no future was followed to a start ----------------------------------------------------------------------------------


def _by_work(engine: Engine, planner: Planner, job: int, not_before: int) -> Forecast:
    """By the device-time that the jobs before it still need, over what the pool has left for them; or that it does not start
    before a future ended that was followed for longer than that."""
    book, view = engine.book, engine.view()
    running = book.state(job) in RUNNING
    before: tuple[int, ...] = ()
    left = 1.0
    if not running:
        ahead = ahead_of(view, planner, job)
        before = (*ahead.jobs, *book.allocations)
        left = _left_for(book, job, ahead.count / max(int(np.count_nonzero(view.jobs.waiting)), 1))
    if left <= 0:
        return Forecast(job=job, start=_NOT_FORESEEN, end=_NOT_FORESEEN, method="work-ahead")
    starts, ends = [], []
    draws = min(_DRAWS, max(_DRAWN // max(len(before), 1), _LEAST_SAMPLES))
    for sample in range(draws):
        dice = Random(f"{book.revision}.{sample}.work")
        starts.append(max(book.now + round(sum(_work(book, other, dice) for other in before) / left), not_before))
        done = book.table.ideal.item(book.table.row[job])
        total = total_us(book.run_times, book.specs[job], done, dice)
        ends.append(starts[-1] + total - done if total < UNENDING_US else -1)
    start = None if running else _wider(interval(starts), max(book.now, not_before))
    basis = duration_basis(book.run_times, book.specs[job])
    if start is not None and book.now < start.high == not_before:
        later = Interval(not_before, -1, -1)
        return Forecast(
            job=job, start=later, end=later, samples=1, durations=basis.kind, finished=basis.finished,
        )  # fmt: skip
    return Forecast(
        job=job, start=start, end=_wider(interval(ends), max(book.now, not_before)), samples=draws, method="work-ahead",
        durations=basis.kind, finished=basis.finished,
    )  # fmt: skip


def _left_for(book: Book, job: int, share: float) -> float:
    """Devices that work for the jobs before it, where so large a ``share`` of those to come is served before it; 0 where none of
    its kinds is on a node that takes work, or all of these have jobs that run on and are not preempted for it."""
    kinds, rank = int(book.table.kinds[book.table.row[job]]), book.specs[job].tier_rank
    nodes = [node for node in taking_work(book) if kinds >> book.board.layout.node_kind[node] & 1]
    left = {node: float(book.board.layout.node_size[node]) for node in nodes}
    for other in book.allocations:
        for part in book.allocations[other] if stays(book, other, rank) else ():
            if part.node in left:
                left[part.node] -= milli_devices((part,)) / WHOLE_DEVICE
    capacity = sum(left.values()) * _UTILISATION
    coming = sum(one.ran_us * one.devices for one in book.run_times.recent)
    window = max(book.now - book.run_times.recent_since, 1)
    return max(capacity - share * coming / window, _LEAST_SHARE * capacity)


def _work(book: Book, job: int, dice: Random) -> float:
    if unending(book.specs[job]):  # has its devices for good: they are no part of the pool's capacity
        return 0.0
    done = book.table.ideal.item(book.table.row[job])
    return float(total_us(book.run_times, book.specs[job], done, dice) - done) * _devices(book, job)


def _devices(book: Book, job: int) -> float:
    """Devices that a job holds, or asks for while it waits; a share counts as such."""
    row = book.table.row[job]
    asked: int = book.table.demand.item(row)
    held: int = book.table.held_milli.item(row)
    return held / WHOLE_DEVICE or asked


def _wider(found: Interval, now: int) -> Interval:
    if found.middle < 0:
        return found
    return Interval(now + round((found.low - now) / _WIDER), found.middle, now + round((found.high - now) * _WIDER))
