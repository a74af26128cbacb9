"""GPU-seconds owed and delivered, per job and for the pool.

Per job: ``ideal`` (run time × speed on k devices / speed on the full allotment) and ``attained`` (milli-device-µs of
service). For the pool: milli-device-µs held by anyone, counted independently, so that the two sides can be balanced.
Pool sums outgrow 64 bits on real traces and are Python integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Protocol

from ..model.job import TIER_TARGET, Tier
from ..model.job_record import JobRecord
from ..model.node import Allocation, device_count, milli_devices
from ..model.rate import progress_us
from ..model.table import JobTable

_MOST = 2**63 - 1
"""What a column holds at most."""


class PoolLedger:
    """Milli-device-microseconds held since the beginning, by open and by ended jobs."""

    __slots__ = ("at", "held_milli", "held_total", "lost_total", "retired_total")

    def __init__(self) -> None:
        self.at = 0
        self.held_milli = 0
        self.held_total = 0
        self.retired_total = 0
        self.lost_total = 0
        """Milli-device-µs of work that was delivered and lost again, all jobs ever."""

    def advance(self, now: int) -> None:
        """Bring the pool's side up to ``now``."""
        self.held_total += self.held_milli * (now - self.at)
        self.at = now

    def open(self, record: JobRecord, milli: int, now: int) -> None:
        """The job takes devices."""
        self.advance(now)
        self.held_milli += milli
        record.held_since = now

    def close(self, record: JobRecord, milli: int, now: int) -> None:
        """The job releases its devices."""
        self.advance(now)
        self.held_milli -= milli
        record.held_milli_us += milli * (now - record.held_since)

    def retire(self, record: JobRecord) -> int:
        """The job has ended: its total moves to the pool's account. Returns milli-device-µs."""
        self.retired_total += record.held_milli_us
        return record.held_milli_us

    def open_total(self, records: Iterable[JobRecord], now: int) -> int:
        """Held by jobs still in the book, until ``now``."""
        records = list(records)
        holders = [record for record in records if record.allocation is not None]
        present = sum(milli_devices(record.allocation or ()) * (now - record.held_since) for record in holders)
        # Thousands of waiting jobs hold nothing, and all are counted every 256 steps.
        past: int = sum(map(attrgetter("held_milli_us"), records))
        return past + present


def held_milli_us(record: JobRecord, now: int) -> int:
    """Milli-device-microseconds that a job has held until ``now``."""
    if record.allocation is None:
        return record.held_milli_us
    return record.held_milli_us + milli_devices(record.allocation) * (now - record.held_since)


def accrue(table: JobTable, row: int, now: int) -> None:
    """Add the service since the last accrual to the job's columns."""
    rate = table.rate.item(row)
    if rate:
        elapsed = now - table.accrued.item(row)
        table.ideal[row] = table.ideal.item(row) + progress_us(elapsed, rate)
        # 64 bits are full after 52 days on 2,048 devices.
        table.attained[row] = min(table.attained.item(row) + elapsed * table.held_milli.item(row), _MOST)
    table.accrued[row] = now


def start_service(table: JobTable, row: int, allocation: Allocation, now: int, rate: int) -> None:
    """The job runs on ``allocation`` from now on, at a rate in millionths of full speed."""
    table.accrued[row] = now
    table.run_since[row] = now
    table.held[row] = device_count(allocation)
    table.held_milli[row] = milli_devices(allocation)
    table.rate[row] = rate


def stop_service(table: JobTable, row: int, now: int) -> None:
    """The job stops making progress."""
    accrue(table, row, now)
    table.rate[row] = 0
    table.run_since[row] = -1


# -- what is promised -------------------------------------------------------------------------------------------------------


def promised_us(record: JobRecord, submit: int, now: int) -> int:
    """Full-speed run time that a job was promised from its submission until ``now``, each tier for as long as it had it."""
    return record.promised_us + round(TIER_TARGET[record.spec.tier_rank] * (now - (record.tier_since or submit)))


def change_tier(table: JobTable, row: int, record: JobRecord, tier: Tier, now: int) -> None:
    """The job is promised ``tier`` from now on; what it was promised until now stays promised (docs/why/gpu-fraction.md).

    The caller changes its spec afterwards.
    """
    submit, target = table.submit.item(row), TIER_TARGET[tier]
    record.promised_us = promised_us(record, submit, now)
    record.tier_since = now
    table.tier[row] = int(tier)
    table.waived[row] = now - submit - round(record.promised_us / target) if target else 0


# -- run time and its limit -------------------------------------------------------------------------------------------------


class LimitedBook(Protocol):
    """What of the book is read and written here."""

    now: int
    table: JobTable
    jobs: dict[int, JobRecord]

    def set_timer(self, at: int, kind: str, job: int = -1, token: int = 0) -> None:
        """Ask to be stepped at a time."""


def run_time_us(book: LimitedBook, job: int) -> int:
    """Run time charged to a job so far, the present run included, microseconds."""
    since = book.table.run_since.item(book.table.row[job])
    return book.jobs[job].run_time_used_us + (book.now - since if since >= 0 else 0)


def over_limit(book: LimitedBook, job: int) -> bool:
    """Whether a job has run for as long as it may."""
    limit = book.table.limit.item(book.table.row[job])
    return bool(0 < limit <= run_time_us(book, job))


def arm_limit(book: LimitedBook, job: int) -> None:
    """Set the timer for the end of the run of a job that has a limit.

    A limit may change while the job runs (``requests.update``): an earlier timer, which may come too early, does nothing then.
    """
    row = book.table.row[job]
    limit, since = book.table.limit.item(row), book.table.run_since.item(row)
    if limit and since >= 0:
        book.set_timer(book.now + max(0, limit - run_time_us(book, job)), "limit", job, since)
