"""The book as bytes and back, so that a start-up replays a short tail instead of the whole journal.

MessagePack of one versioned Struct: the records of jobs, the columns of the job table, and what is true of the pool. Boards and
what planners see are rebuilt from the records, which checks them on the way in.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
from msgspec import Struct, convert

from ...base.errors import Bug, UsageError
from ...model.board import Board, Layout
from ...model.job_record import JobRecord
from ...model.node import Allocation, lone_node
from ...model.rate import FULL_RATE
from ...model.table import COLUMNS, RESOURCES, JobTable
from ..book import Book
from ..check import check_all
from ..nodes.failure_rate import Failures
from ..nodes.outages import Outages
from ..nodes.refusals import keep_refusals
from ..services.records import ServiceBook
from ..tier_demand import TierDemand
from . import upcast
from .pool import OF_THE_BOOK, PoolSnapshot, stored_column
from .v1 import SnapshotV1, records

FORMAT = 5
"""Raised when the meaning of a field changes. Formats 1 (snapshot_v1), 2 (sentences where now are causes), 3 (rates in
thousandths) and 4 (arrays by their names) open; any other is passed over and the journal replayed."""

_PLAIN = (*OF_THE_BOOK, "jobs", "world_failures", "outages")


class _Ledger(Struct):
    """Pool sums exceed 64 bits, so they travel as text."""

    at: int
    held_milli: int
    held_total: str
    retired_total: str
    lost_total: str


class Snapshot(PoolSnapshot, kw_only=True):
    """Every field of the book."""

    jobs: dict[int, JobRecord]
    holders: list[int]
    """Jobs that occupy devices, in the order in which they took them: what goes through them goes in this order."""
    reserved: list[int]
    """Jobs with devices set aside, likewise."""
    with_images: list[int]
    """Jobs that have images, likewise."""
    ledger: _Ledger
    world_failures: Failures
    outages: Outages


class _Format(Struct):
    format: int


_ADDED = {
    "restore_kind": -1, "reference": -1, "predicted": 0, "predicted_low": 0, "predicted_high": 0, "gpu_milli": 0,
    "cpus_milli": 0, "host_memory": 0,
}  # fmt: skip
"""Columns added to a format already in use, and what they hold where an older snapshot has none."""


def dump(book: Book) -> bytes:
    """The book as MessagePack."""
    table, ledger = book.table, book.ledger
    ledger.advance(book.now)
    columns = {
        stored_column(name): getattr(table, name)[: table.n].tobytes()
        for name in COLUMNS
        if name not in RESOURCES or table.resourced
    }
    totals = _Ledger(
        ledger.at, ledger.held_milli, str(ledger.held_total), str(ledger.retired_total), str(ledger.lost_total)
    )
    snapshot = Snapshot(
        format=FORMAT, settings=book.settings, layout=book.board.layout.nodes, columns=columns,
        ids=table.id[: table.n].tolist(), holders=list(book.allocations), reserved=list(book.reservations),
        with_images=list(book.with_images),
        ledger=totals, service_records=book.services.records, **{name: getattr(book, name) for name in _PLAIN},
    )  # fmt: skip
    return msgspec.msgpack.encode(snapshot)


def load(data: bytes) -> Book:
    """A book equal to the one dumped. Raises UsageError for another format, Bug when the parts contradict each other."""
    try:
        with _no_collections():
            snapshot = _decode(data)
        return _book(snapshot)
    except msgspec.DecodeError as error:
        raise UsageError(f"not a snapshot of this version: {error}", "replay the journal from its beginning") from error
    except LookupError as error:
        raise Bug(f"the snapshot names what it does not have: {error!r}") from error


def _book(snapshot: Snapshot) -> Book:
    book = Book(snapshot.settings)
    for name in _PLAIN:
        setattr(book, name, getattr(snapshot, name))
    book.services = ServiceBook(snapshot.service_records)
    _show_planners(book, snapshot)
    heapq.heapify(book.timers)
    book.table = _table(snapshot)
    for job, allocation in book.allocations.items():
        book.table.lone_node[book.table.row[job]] = lone_node(allocation)
    book.tier_demand = TierDemand.of(book.table)
    book.board, book.phys = _boards(book, Layout.of(snapshot.layout))
    kept, ledger = snapshot.ledger, book.ledger
    ledger.at, ledger.held_milli = kept.at, kept.held_milli
    ledger.held_total, ledger.retired_total = int(kept.held_total), int(kept.retired_total)
    ledger.lost_total = int(kept.lost_total)
    check_all(book)
    return book


@contextmanager
def _no_collections() -> Iterator[None]:
    """A hundred thousand objects are made at once, all of which stay: to look for garbage among them takes twice the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _decode(data: bytes) -> Snapshot:
    known = msgspec.msgpack.decode(data, type=_Format).format
    if known == FORMAT:
        return msgspec.msgpack.decode(data, type=Snapshot)
    if known in (1, 2, 3, 4):
        plain = msgspec.msgpack.decode(data)
        upcast.arrays(plain)
        if known < 3:
            upcast.snapshot(plain)
        snapshot = _upcast(convert(plain, SnapshotV1)) if known == 1 else convert(plain, Snapshot)
        if known < 4:
            rate = np.frombuffer(snapshot.columns["rate"], COLUMNS["rate"])
            snapshot.columns["rate"] = (rate * (FULL_RATE // 1000)).astype(COLUMNS["rate"]).tobytes()
        return snapshot
    raise UsageError(f"snapshot format {known}, expected {FORMAT}", "replay the journal from its beginning")


def _upcast(old: SnapshotV1) -> Snapshot:
    failures = old.world_failures or Failures(len(old.nodes) - len(old.node_down), old.now)
    totals = (old.ledger.held_total, old.ledger.retired_total, old.ledger.lost_total)
    plain = {name: getattr(old, name) for name in OF_THE_BOOK}
    outages = Outages(old.outages.faults, old.outages.changed, old.outages.cordoned, old.outages.refusals)
    return Snapshot(
        format=FORMAT, settings=old.settings, layout=old.layout, columns=old.columns, ids=old.ids,
        holders=list(old.allocations), reserved=list(old.promises), with_images=list(old.images), jobs=records(old),
        world_failures=failures,
        ledger=_Ledger(old.ledger.at, old.ledger.held_milli, *totals), outages=outages, **plain,
    )  # fmt: skip


def _show_planners(book: Book, snapshot: Snapshot) -> None:
    """What planners see of the records."""
    for job, record in book.jobs.items():
        book.specs[job] = record.spec
        if record.spec.kind == "runtime":
            book.runtimes[job] = True
        if record.refused_by:
            keep_refusals(book, job, record.refused_by)
    for job in snapshot.with_images:
        book.keep_images(job, book.jobs[job].images)
    for job in snapshot.holders:
        book.allocations[job] = _there(book.jobs[job].allocation, job)
    for job in snapshot.reserved:
        book.reservations[job] = _there(book.jobs[job].reservation, job)


def _there(allocation: Allocation | None, job: int) -> Allocation:
    if allocation is None:
        raise Bug(f"job {job} is named among those with devices and has none")
    return allocation


def _table(snapshot: Snapshot) -> JobTable:
    table = JobTable(max(1024, len(snapshot.ids)))
    table.n = len(snapshot.ids)
    table.row = {job: row for row, job in enumerate(snapshot.ids)}
    for name, dtype in COLUMNS.items():
        if name in _ADDED and stored_column(name) not in snapshot.columns:
            getattr(table, name)[: table.n] = _ADDED[name]
            continue
        column = np.frombuffer(snapshot.columns[stored_column(name)], dtype)
        if len(column) != table.n:
            raise Bug(f"snapshot column {name} has {len(column)} rows of {table.n}")
        getattr(table, name)[: table.n] = column
        table.resourced = table.resourced or name in RESOURCES
    return table


def _boards(book: Book, layout: Layout) -> tuple[Board, Board]:
    board, phys = Board(layout), Board(layout)
    for job, allocation in book.allocations.items():
        phys.acquire(allocation)
        if not book.jobs[job].leaving:
            board.acquire(allocation)
    for allocation in book.reservations.values():
        board.acquire(allocation)
    for job, record in book.jobs.items():
        if record.frozen_memory is not None:
            board.acquire(record.frozen_memory)
            if job not in book.allocations:
                phys.acquire(record.frozen_memory)
    for node in (*book.node_down, *book.drained, *book.outages.cordoned):
        board.set_up(node, False)
    for node, size in enumerate(layout.node_size):
        if mask := book.outages.mask(node, size):
            board.close(node, mask)
    return board, phys
