"""Rates of progress in the book: the kinds a job may have, the one its full speed is measured on, and changes on the way.

It refuses to know how a rate is estimated (``estimate.rates``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..estimate.learnt_rates import merged, with_learnt, without
from ..estimate.rates import Rates, rate_on, rates_of
from ..model.board import Board
from ..model.cause import Cause, Code
from ..model.job import JobSpec, State
from ..model.job_record import JobRecord
from ..model.node import Allocation
from ..model.rate import NOTHING_LEARNT as NOTHING_LEARNT
from ..model.rate import LearntRates, RateSettings, lasts_us, phase_at, rated
from ..model.table import JobTable
from .events import RatesLearnt
from .ledger import accrue
from .settings import EngineSettings

_RUNNING = int(State.RUNNING)
_FEW = 64
"""Numbers of devices that are looked at one by one."""


class RatedBook(Protocol):
    """What of the book decides and keeps rates."""

    settings: EngineSettings
    now: int
    board: Board
    table: JobTable
    jobs: dict[int, JobRecord]
    specs: dict[int, JobSpec]
    allocations: dict[int, Allocation]
    freed: bool
    forced: bool
    learnt_rates: LearntRates

    def set_timer(self, at: int, kind: str, job: int = -1, token: int = 0) -> None: ...


def in_force(book: RatedBook) -> RateSettings:
    """What is declared, with what running jobs have shown in its place."""
    return with_learnt(book.settings.rates, book.learnt_rates)


def estimator(book: RatedBook) -> Rates:
    """The estimator of what is in force."""
    return rates_of(in_force(book), book.settings.splice_milli)


def declared(book: RatedBook) -> Rates:
    """The estimator of what is declared alone."""
    return rates_of(book.settings.rates, book.settings.splice_milli)


def learn(book: RatedBook, event: RatesLearnt) -> None:
    """Running jobs have shown their rates."""
    book.learnt_rates = merged(book.learnt_rates, event.rates)
    refresh(book)


def forget(book: RatedBook, workload: str) -> bool:
    """What running jobs have shown of a workload holds no longer. Returns whether there was anything."""
    kept = without(book.learnt_rates, workload)
    if kept == book.learnt_rates:
        return False
    book.learnt_rates = kept
    refresh(book)
    return True


def kinds_of(book: RatedBook, spec: JobSpec) -> int:
    """The set of kinds that the job accepts and is not known to be unable to run on."""
    layout, known = book.board.layout, estimator(book)
    kinds = layout.kind_mask(spec.device_types)
    if not known.by_kind:
        return kinds
    for index, kind in enumerate(layout.kinds):
        if not all(known.runs_on(workload, kind, count) for workload in spec.workloads for count in _counts(spec)):
            kinds &= ~(1 << index)
    return kinds


def _counts(spec: JobSpec) -> Iterable[int]:
    """Numbers of devices that the job may get to run on; of a wide range the ends, powers of two and what lies near."""
    if spec.devices - spec.floor < _FEW:
        return range(spec.floor, spec.devices + 1)
    powers = [1 << bit for bit in range(17) if spec.floor < 1 << bit < spec.devices]
    return (spec.floor, *powers, spec.devices)


def unknown(book: RatedBook, spec: JobSpec) -> Cause | None:
    """A warning when a workload that the job names is in no table of rates, and something is declared of others."""
    if not declared(book).by_kind:
        return None
    known = estimator(book)
    missing = [workload for workload in spec.workloads if workload and not known.knows(workload)]
    return Code.NO_RATES(missing[0]) if missing else None


def set_reference(book: RatedBook, job: int) -> None:
    """Settle which kind the job's full speed is measured on: the fastest in the pool, and for all its life once it has run."""
    record = book.jobs[job]
    if not record.reference or book.table.first_start.item(book.table.row[job]) < 0:
        record.reference = estimator(book).reference(record.spec, book.board.layout.kinds)
    book.table.reference[book.table.row[job]] = book.board.layout.kind_index(record.reference)


def begin(book: RatedBook, job: int, row: int) -> int:
    """The rate of a job that begins to run, or goes on with its next phase. In millionths of full speed."""
    spec, allocation, layout = book.specs[job], book.allocations[job], book.board.layout
    done = book.table.ideal.item(row)
    workload, ends = phase_at(spec, done)
    rate = rate_on(estimator(book), rated(spec, book.jobs[job].reference, workload), layout, allocation)
    if ends:
        at = book.jobs[job].phase_at = book.now + lasts_us(ends - done, rate)
        book.set_timer(at, "phase", job, at)
    return rate


def next_phase(book: RatedBook, job: int, row: int) -> None:
    """A phase is over: what comes next may run at another rate."""
    accrue(book.table, row, book.now)
    book.table.rate[row] = begin(book, job, row)
    book.freed = True  # how much longer it runs is another question now


def refresh(book: RatedBook) -> None:
    """Other rates are in force: running jobs go on at theirs, and jobs admitted before any were known get a reference."""
    for job, row in book.table.row.items():
        set_reference(book, job)
        book.table.kinds[row] = kinds_of(book, book.specs[job])
        if book.table.state.item(row) == _RUNNING and book.table.run_since.item(row) >= 0:
            accrue(book.table, row, book.now)
            book.table.rate[row] = begin(book, job, row)
    book.forced = True
