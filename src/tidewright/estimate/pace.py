"""How the work of a job in phases goes on at one allocation: each phase has a rate of its own there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..model.job import JobSpec
from ..model.rate import lasts_us, phase_at, progress_us

RateOf = Callable[[str], int]
"""The rate of a workload on the allocation, millionths of full speed."""


def _stretches(spec: JobSpec, done_us: int, rate: RateOf) -> Iterator[tuple[int, int]]:
    """(rate, full-speed microseconds left in the phase; -1: without end) from ``done_us`` on."""
    while True:
        workload, ends = phase_at(spec, done_us)
        yield rate(workload), ends - done_us if ends else -1
        if not ends:
            return
        done_us = ends


def finish_us(spec: JobSpec, done_us: int, total_us: int, rate: RateOf) -> int:
    """Microseconds until ``total_us`` of full-speed work are done; each phase's share is rounded up."""
    lasts = 0
    for speed, left in _stretches(spec, done_us, rate):
        work = total_us - done_us if left < 0 else min(left, total_us - done_us)
        lasts += lasts_us(work, speed)
        done_us += work
        if done_us >= total_us:
            break
    return lasts


def done_after(spec: JobSpec, done_us: int, elapsed_us: int, rate: RateOf) -> int:
    """Full-speed microseconds done ``elapsed_us`` later; what runs to the microsecond of a phase's end has done that phase."""
    for speed, left in _stretches(spec, done_us, rate):
        lasts = lasts_us(left, speed) if left >= 0 else elapsed_us + 1
        if elapsed_us < lasts:
            return done_us + progress_us(elapsed_us, speed)
        done_us += left
        elapsed_us -= lasts
    return done_us
