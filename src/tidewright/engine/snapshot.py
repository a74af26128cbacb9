"""The book as bytes and back, so that a start-up replays a short tail instead of the whole journal.

MessagePack of one versioned Struct; boards are rebuilt from their holders, which checks them on the way in.
"""

from __future__ import annotations

import heapq

import msgspec
import numpy as np
from msgspec import Struct

from ..base.errors import Bug, UsageError
from ..model.board import Board, Layout
from ..model.job import JobSpec
from ..model.node import Allocation, NodeSpec
from ..model.table import COLUMNS, JobTable
from ..plan.plan import Wake
from ..plan.reasons import Blocked
from .book import Book, Sizes
from .check import check_all
from .commands import Reply
from .failures import Failures
from .gallery import HoldRetry, Image, Saving
from .outages import Outages
from .settings import EngineSettings
from .wall_time import Offsets

FORMAT = 1
"""Raised when the meaning of a field changes; an older snapshot is then passed over and the journal replayed."""

_PLAIN = (
    "now", "revision", "steps", "next_job", "specs", "allocations", "promises", "nodes", "incarnations", "node_down", "drained",
    "leaving", "ending", "imaged", "user_holds", "pins", "waits_for", "dependents", "array_active", "array_queue",
    "array_waiting", "backoffs", "failures", "launch_failures", "ran", "shields", "eager", "outcomes", "answers", "teams",
    "stories", "timers", "timer_seq", "counts", "elastic_jobs", "wake", "wake_due", "arrived", "freed", "forced", "thinking",
    "refused", "blocked", "promise_order", "images", "serials", "saving", "from_image", "lowered", "measured", "checkpoint_at",
    "checkpoint_failures", "falls", "lost", "wishes", "dead", "world_failures", "hold_retries", "shielded_until",
    "rollback_free_us", "wall_offsets", "outages",
)  # fmt: skip


class _Ledger(Struct):
    """Pool sums exceed 64 bits, so they travel as text."""

    at: int
    held_milli: int
    held_total: str
    retired_total: str
    opened: dict[int, int]
    spent: dict[int, int]
    lost_total: str = "0"


class Snapshot(Struct, kw_only=True):
    """Every field of the book, in types MessagePack knows."""

    format: int
    settings: EngineSettings
    layout: tuple[NodeSpec, ...]
    columns: dict[str, bytes]
    ids: list[int]
    ledger: _Ledger
    now: int
    revision: int
    steps: int
    next_job: int
    specs: dict[int, JobSpec]
    allocations: dict[int, Allocation]
    promises: dict[int, Allocation]
    nodes: dict[str, int]
    incarnations: dict[str, str]
    node_down: dict[int, str]
    drained: dict[int, str]
    leaving: dict[int, bool]
    ending: dict[int, tuple[int, str]]
    imaged: dict[int, bool]
    user_holds: dict[int, int]
    pins: dict[int, bool]
    waits_for: dict[int, list[int]]
    dependents: dict[int, list[int]]
    array_active: dict[str, int]
    array_queue: dict[str, list[int]]
    array_waiting: dict[int, str]
    backoffs: dict[int, int]
    failures: dict[int, int]
    launch_failures: dict[int, int]
    ran: dict[int, int]
    shields: dict[int, int]
    eager: dict[int, bool] = {}
    outcomes: dict[int, int]
    answers: dict[str, Reply]
    teams: dict[str, int]
    stories: dict[int, list[tuple[int, str, str]]]
    timers: list[tuple[int, int, str, int, int]]
    timer_seq: int
    counts: list[int]
    elastic_jobs: int
    wake: Wake
    wake_due: int = 0
    arrived: bool
    freed: bool
    forced: bool
    thinking: bool
    refused: bool
    blocked: dict[int, Blocked]
    promise_order: dict[int, dict[int, bool]]
    # Fields below were added to a format already in use: an older snapshot opens with these defaults.
    images: dict[int, tuple[Image, ...]] = {}
    serials: dict[int, int] = {}
    saving: dict[int, Saving] = {}
    from_image: dict[int, int] = {}
    lowered: dict[int, tuple[int, str]] = {}
    measured: dict[int, bool] = {}
    checkpoint_at: dict[int, int] = {}
    checkpoint_failures: dict[int, int] = {}
    falls: dict[int, int] = {}
    lost: dict[int, int] = {}
    wishes: dict[int, int] = {}
    dead: dict[int, bool] = {}
    world_failures: Failures | None = None
    hold_retries: dict[int, HoldRetry] = {}
    shielded_until: dict[int, int] = {}
    rollback_free_us: dict[int, int] = {}
    wall_offsets: Offsets = ()
    outages: Outages = msgspec.field(default_factory=Outages)


_ADDED = {"origin": -1}
"""Columns added to a format already in use, and what they hold where an older snapshot has none."""


def dump(book: Book) -> bytes:
    """The book as MessagePack."""
    table, ledger = book.table, book.ledger
    ledger.advance(book.now)
    columns = {name: getattr(table, name)[: table.n].tobytes() for name in COLUMNS}
    totals = _Ledger(
        ledger.at, ledger.held_milli, str(ledger.held_total), str(ledger.retired_total), ledger.opened, ledger.spent,
        str(ledger.lost_total),
    )  # fmt: skip
    plain = {name: getattr(book, name) for name in _PLAIN}
    ids = [int(job) for job in table.id[: table.n]]
    layout = book.board.layout.nodes
    snapshot = Snapshot(
        format=FORMAT, settings=book.settings, layout=layout, columns=columns, ids=ids, ledger=totals, **plain
    )  # fmt: skip
    return msgspec.msgpack.encode(snapshot)


def load(data: bytes) -> Book:
    """A book equal to the one dumped. Raises UsageError for another format, Bug when the parts contradict each other."""
    try:
        snapshot = msgspec.msgpack.decode(data, type=Snapshot)
    except msgspec.DecodeError as error:
        raise UsageError(f"not a snapshot of this version: {error}", "replay the journal from its beginning") from error
    if snapshot.format != FORMAT:
        raise UsageError(
            f"snapshot format {snapshot.format}, expected {FORMAT}", "replay the journal from its beginning"
        )
    book = Book(snapshot.settings)
    for name in _PLAIN:
        setattr(book, name, getattr(snapshot, name))
    # Earlier versions kept this fact of one suspension beyond its end.
    book.eager = {job: True for job in book.eager if job in book.leaving}
    for job, images in snapshot.images.items():
        book.keep_images(job, images)
    heapq.heapify(book.timers)
    book.table = _table(snapshot)
    book.board, book.phys = _boards(book, Layout.of(snapshot.layout))
    book.sizes = Sizes.of(snapshot.layout)
    kept = snapshot.ledger
    ledger = book.ledger
    ledger.at, ledger.held_milli = kept.at, kept.held_milli
    ledger.held_total, ledger.retired_total = int(kept.held_total), int(kept.retired_total)
    ledger.opened, ledger.spent = kept.opened, kept.spent
    ledger.lost_total = int(kept.lost_total)
    if snapshot.world_failures is None:
        book.world_failures = Failures(len(book.nodes) - len(book.node_down), book.now)
    check_all(book)
    return book


def _table(snapshot: Snapshot) -> JobTable:
    table = JobTable(max(1024, len(snapshot.ids)))
    table.n = len(snapshot.ids)
    table.row = {job: row for row, job in enumerate(snapshot.ids)}
    for name, dtype in COLUMNS.items():
        if name in _ADDED and name not in snapshot.columns:
            getattr(table, name)[: table.n] = _ADDED[name]
            continue
        column = np.frombuffer(snapshot.columns[name], dtype)
        if len(column) != table.n:
            raise Bug(f"snapshot column {name} has {len(column)} rows of {table.n}")
        getattr(table, name)[: table.n] = column
    return table


def _boards(book: Book, layout: Layout) -> tuple[Board, Board]:
    board, phys = Board(layout), Board(layout)
    for job, allocation in book.allocations.items():
        phys.take(allocation)
        if job not in book.leaving:
            board.take(allocation)
    for allocation in book.promises.values():
        board.take(allocation)
    for node in (*book.node_down, *book.drained, *book.outages.cordoned):
        board.set_up(node, False)
    for node, size in enumerate(layout.node_size):
        if mask := book.outages.mask(node, size):
            board.close(node, mask)
    return board, phys
