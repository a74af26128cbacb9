"""Which jobs cannot start by themselves, whatever else ends, and why: found without a simulation."""

from __future__ import annotations

from ..engine.book import Book
from ..model.board import relaid
from ..model.cause import Cause, Code
from ..model.job import Level, State
from ..model.node import Allocation
from ..placement.find import place
from .draws import unending
from .trial import RUNNING


def held(book: Book, job: int) -> Cause | None:
    """Why a job does not start by itself, whatever becomes free: it is held, or is on its way out, or waits for the end of a job
    that is held. Both are named where its user holds it and it waits for others besides."""
    why, awaited = _held(book, job), book.jobs[job].awaited
    if why is None:
        return _waits_for_held(book, job)
    if awaited is None or book.state(job) is not State.HELD:
        return why
    return Code.ALSO_HELD(_waits_for_held(book, job) or awaited, why)


def _waits_for_held(book: Book, job: int) -> Cause | None:
    """The first job that is held among those that it waits for, and those that these wait for."""
    looked_at, ahead = {job: True}, list(book.jobs[job].dependencies)
    while ahead:
        other = ahead.pop()
        if other in looked_at or other not in book.jobs:
            continue
        looked_at[other] = True
        if book.state(other) is State.HELD and book.jobs[other].user_hold == 0:
            return Code.WAITS_FOR_HELD(other)
        ahead.extend(book.jobs[other].dependencies)
    return None


def _held(book: Book, job: int) -> Cause | None:
    record, state = book.jobs[job], book.state(job)
    if state is State.STOPPING and record.ending is not None and record.ending.state != State.QUEUED:
        return record.ending.why
    if state in (State.HELD, State.SUSPENDING, State.STOPPING) and record.user_hold == 0:
        return book.services.held_because(record.spec.service, job, record.held_by)[1]
    return None


def without_room(book: Book, job: int) -> Cause | None:
    """Why a job cannot be placed on the nodes that take work as they are now, even when every job has ended that ends by
    itself; None for one that can, or has its devices."""
    spec = book.specs[job]
    if book.state(job) in RUNNING or spec.runtime:
        return None
    stay = {other: parts for other, parts in book.allocations.items() if stays(book, other, spec.tier_rank)}
    if _fits_beside(book, job, list(stay.values())):
        return None
    return Code.NO_ROOM_BESIDE(tuple(stay)) if stay and _fits_beside(book, job, []) else Code.NO_ROOM_ON_NODES()


def taking_work(book: Book) -> list[int]:
    """The nodes that take work, and those that are cordoned, which they are for a while."""
    up, nodes = book.board.up, range(len(book.board.layout.node_size))
    back = [node for node in book.outages.cordoned if node not in book.drained and node not in book.node_down]
    return [node for node in nodes if up >> node & 1 or node in back]


def _fits_beside(book: Book, job: int, others: list[Allocation]) -> bool:
    board = relaid(book.board, book.board.layout, others)
    for node in taking_work(book):
        board.set_up(node, True)
    return place(board, book.request(job)) is not None


def stays(book: Book, job: int, rank: int) -> bool:
    """Whether a job has its devices for good, and is not preempted for one whose tier has this rank."""
    spec = book.specs[job]
    if not unending(spec) or book.state(job) not in RUNNING:
        return False
    return spec.max_duration_us == 0 and (book.true_level(job) == Level.NONE or spec.tier_rank >= rank)
