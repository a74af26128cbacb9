"""Nodes that an operator drains: no new work, and with ``move`` jobs go on elsewhere where that loses none of their work."""

from __future__ import annotations

from ...model.cause import Cause, Code, reported
from ...model.job import Level, State
from .. import events as ev
from ..apply_plan import unsuspendable
from ..book import Book
from ..lifecycle import transition
from . import refusals
from .outages import Drain


def begin(book: Book, index: int, event: ev.NodeDrain) -> list[int]:
    """Drain a node, or drain it in another way. Returns the jobs that are to leave it and cannot: with those that are frozen in
    its memory."""
    known = book.outages.drains.get(index)  # none where an earlier version drained it
    book.drained[index] = event.why or book.drained.get(index, Code.DRAINED())
    book.outages.drains[index] = Drain(known.since if known else book.now, event.move)
    for job in list(book.reservation_order.get(index, ())):
        book.cancel_reservation(job)
    here = [job for job, parts in book.allocations.items() if any(part.node == index for part in parts)]
    if not event.move:
        return []
    return sorted([*(job for job in here if not leave(book, job)), *_frozen_on(book, index)])


def _frozen_on(book: Book, index: int) -> list[int]:
    """Jobs without devices whose processes are in the memory of the node."""
    return [
        job
        for job, record in book.jobs.items()
        if record.allocation is None
        and record.suspended_as == "process"
        and book.table.pinned_node.item(book.table.row[job]) == index
    ]


def end(book: Book, index: int) -> None:
    """Let the node take work again."""
    book.drained.pop(index, None)
    book.outages.drains.pop(index, None)
    refusals.lift(book, index)


def leave(book: Book, job: int) -> bool:
    """Have a running job leave the nodes that are drained so. Returns whether it is on its way, or need not; one that cannot
    leave without a loss runs on, and says so."""
    index = _moved_from(book, job)
    if index is None or book.state(job) is not State.RUNNING:
        return True
    why = Code.NODE_DRAINED(book.board.layout.nodes[index].name, reported(book.drained[index]))
    reason = _bound(book, job)
    if reason is not None:
        book.record(job, State.RUNNING.name, Code.RUNS_ON_THERE(why, reason))
        return False
    transition(book, job, int(State.SUSPENDING), why)
    book.jobs[job].replan_on_release = True
    return True


def _moved_from(book: Book, job: int) -> int | None:
    """A node of the job that the jobs there are to leave."""
    drains = book.outages.drains
    nodes = (part.node for part in book.allocations.get(job, ()))
    return next((node for node in nodes if node in drains and drains[node].moves), None) if drains else None


def _bound(book: Book, job: int) -> Cause | None:
    """Why a running job cannot go on elsewhere with all its work. One that was submitted to be requeued may lose it."""
    row = book.table.row[job]
    reason, level = unsuspendable(book, job, row), Level(book.table.level.item(row))
    if reason is not None:
        return reason
    if level is Level.FREEZE:
        return Code.MEMORY_PINNED(level.name.lower())
    if level is Level.REQUEUE and book.specs[job].preempt != "requeue":
        return Code.WOULD_RESTART_ELSEWHERE(level.name.lower())
    return None
