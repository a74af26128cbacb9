"""When a newer version would have decided otherwise: what was decided then, and carried out, stays done.

Used only while a journal is replayed whose last steps were written by another version. Events are facts and apply by
themselves; of the commands, those that put ranks somewhere or ended jobs are adopted, the rest is made good when the
agents are asked what they have.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..model.cause import Code
from ..model.job import State
from ..model.node import Allocation
from . import frozen_memory, termination
from .book import Book
from .check import check_all
from .commands import Command, Ended, Launch, ResumeRanks
from .lifecycle import transition

Placing = Launch | ResumeRanks


def adopt(book: Book, recorded: Iterable[Command], mine: Iterable[Command]) -> None:
    """Bring the book of this very step in line with what the recorded commands did. Raises Bug when that is impossible."""
    then, now = list(recorded), list(mine)
    placed = {command.job: command for command in then if isinstance(command, Placing)}
    for command in now:
        if isinstance(command, Placing) and placed.get(command.job) != command:
            _take_back(book, command)
    for command in then:
        if isinstance(command, Ended) and command.job in book.specs:
            termination.end(book, command.job, command.state, command.code, command.why)
    for command in placed.values():
        if command not in now and command.job in book.specs:
            _place(book, command)
    book.forced = True
    check_all(book)


def _take_back(book: Book, command: Placing) -> None:
    """This version would have given the job these devices now; then, it was not given them."""
    if command.job in book.allocations:
        back = State.QUEUED if isinstance(command, Launch) else State.SUSPENDED
        transition(book, command.job, int(back), Code.AS_EARLIER_VERSION())


def _place(book: Book, command: Placing) -> None:
    """Give the job the devices that it was given then, if they are free."""
    job, launch, record = command.job, isinstance(command, Launch), book.jobs[command.job]
    if not launch and not record.suspended_as:
        return
    before = int(State.QUEUED if launch else State.SUSPENDED)
    record.hold_retry = None
    if record.state != before:
        transition(book, job, before, Code.AS_EARLIER_VERSION())
    if record.reservation is not None:
        book.cancel_reservation(job)
    _make_room(book, job, command.allocation)
    allocation = frozen_memory.without(record, command.allocation)
    if not (book.phys.fits(allocation) and book.board.fits(allocation)):
        return
    book.table.attempt[book.table.row[job]] = record.attempt = command.attempt
    book.reserve(job, command.allocation)
    transition(book, job, int(State.STARTING if launch else State.RESUMING), Code.AS_EARLIER_VERSION())


def _make_room(book: Book, job: int, wanted: Allocation) -> None:
    masks = {part.node: part.mask for part in wanted}
    for other, parts in list(book.reservations.items()):
        if other != job and any(part.mask & masks.get(part.node, 0) for part in parts):
            book.cancel_reservation(other)
