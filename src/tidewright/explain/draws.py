"""What is not known of the jobs of a pool, drawn at random: how long each still runs, and which will be submitted next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from msgspec import Struct

from ..base.units import DAY, MINUTE
from ..engine.book import Book
from ..estimate.duration import LEAST_US, OVERRUN_US
from ..estimate.history import ENOUGH, PastJob, RunTimeHistory
from ..model.job import JobSpec
from ..plan.explain import Basis

_SIGMA_UNKNOWN = 0.5
"""Standard deviation of the logarithm of users' estimates before enough of them could be checked."""
_PRIOR = (13.0 * MINUTE, 2.0)
"""Median and standard deviation of the logarithm of run times of which nothing is known (Philly: Jeon et al., ATC'19)."""
_LONGEST = 64.0
"""A job runs so many times longer than it has at most, where nothing says how long."""
_BLUR = 0.1
"""Standard deviation of the logarithm that a run time drawn from past ones is changed by: none comes twice."""
UNENDING_US = 1_000 * 365 * DAY
"""Run time drawn for what does not end by itself: longer than anything that is looked at."""
_TRIES = 16
_WINDOW_US = 7 * DAY
_LEAST_WINDOW_US = 10 * MINUTE


class DurationBasis(NamedTuple):
    """From what run times are drawn, and from how many finished jobs that comes."""

    kind: Basis
    finished: int


def duration_basis(history: RunTimeHistory, spec: JobSpec) -> DurationBasis:
    """What ``work_us`` goes by for a job of which nothing is known but its spec."""
    if spec.expected_us:
        return DurationBasis("estimates", history.ended)
    similar = history.similar(spec)
    return (
        DurationBasis("similar", len(similar)) if similar else DurationBasis("unknown", len(history.groups.get("", ())))
    )


def unending(spec: JobSpec) -> bool:
    """Whether a job does not end by itself: a replica of a service, or a device runtime."""
    return bool(spec.service) or spec.kind == "runtime"


def work_us(history: RunTimeHistory, spec: JobSpec, done_us: int, dice: Random) -> int:
    """Full-speed run time of a job in all, more than ``done_us``, whatever its limit: by its user's estimate and the errors of
    such estimates, by similar jobs, or by how long it has run (the heavy-tail rule); UNENDING_US more where it does not end by
    itself."""
    if unending(spec):
        return done_us + UNENDING_US
    total = _by_estimate(history, spec, done_us, dice) if spec.expected_us else _by_others(history, spec, done_us, dice)
    return max(total, done_us + 1)


def total_us(history: RunTimeHistory, spec: JobSpec, done_us: int, dice: Random) -> int:
    """The same, no more than its limit lets it run."""
    total = work_us(history, spec, done_us, dice)
    return min(total, max(spec.max_duration_us, done_us + 1)) if spec.max_duration_us else total


def _by_estimate(history: RunTimeHistory, spec: JobSpec, done_us: int, dice: Random) -> int:
    sigma = history.sigma if history.ended >= ENOUGH else _SIGMA_UNKNOWN
    for _ in range(_TRIES):
        total = round(spec.expected_us * math.exp(sigma * dice.gauss(0.0, 1.0)))
        if total > done_us:
            return total
    return done_us + max(done_us - spec.expected_us, OVERRUN_US)


def _by_others(history: RunTimeHistory, spec: JobSpec, done_us: int, dice: Random) -> int:
    longer = [time for time in history.similar(spec) if time > done_us]
    if longer:
        return round(max(dice.choice(longer) * math.exp(_BLUR * dice.gauss(0.0, 1.0)), done_us + 1))
    if not done_us:
        median, sigma = _PRIOR
        return round(median * math.exp(sigma * dice.gauss(0.0, 1.0)))
    return round(max(done_us, LEAST_US) * min(1.0 / max(dice.random(), 1e-9), _LONGEST))


class Arrival(Struct, frozen=True):
    """A job to come: when, what it asks for, and its full-speed run time (0: to be drawn)."""

    at: int
    spec: JobSpec
    total_us: int


def arrivals(book: Book, dice: Random) -> Iterator[Arrival]:
    """Jobs to come, without end, in order: those of the last while again, from a moment of it drawn at random on, so that
    bursts stay bursts. None where too little has been seen."""
    past, since = _submitted(book)
    window = book.now - since
    if window < _LEAST_WINDOW_US or not past:
        return
    start = since + dice.randrange(window)
    later = [one for one in past if one.at >= start]
    shifted = [(one.at - start, one) for one in later]
    shifted += [(one.at - start + window, one) for one in past if one.at < start]
    around = 0
    while True:
        for offset, one in shifted:
            yield Arrival(book.now + around + offset + 1, one.spec, one.total_us)
        around += window


def _submitted(book: Book) -> tuple[list[Arrival], int]:
    """The jobs submitted in the last while, oldest first, and since when that is all of them."""
    history, table = book.run_times, book.table
    submits = table.submit[: table.n]
    first = history.recent_since if history.recent else int(submits.min()) if table.n else book.now
    since = max(first, book.now - _WINDOW_US, 0)
    found = [Arrival(one.submit, _like(one, (), "any"), one.ran_us) for one in history.recent if one.submit >= since]
    for job, row in table.row.items():
        spec = book.specs[job]
        if table.submit.item(row) >= since and not spec.runtime and not unending(spec):
            found.append(Arrival(table.submit.item(row), _like(spec, spec.device_types, spec.placement), 0))
    return sorted(found, key=lambda one: one.at), since


def _like(one: PastJob | JobSpec, types: tuple[str, ...], placement: str) -> JobSpec:
    """A job like another, but one that waits for no others."""
    return JobSpec(
        command=("past",), name=one.name, devices=one.devices, ranks=one.devices, tier=one.tier,  # type: ignore[arg-type]
        expected_us=one.expected_us, user=one.user, team=one.team, device_types=types, placement=placement,  # type: ignore[arg-type]
    )  # fmt: skip
