"""Launches that a node refused: the job goes elsewhere, and a node that refuses one after the other is cordoned.

A refusal is never the job's failure. What looks like its own fault (no such directory) may hold for one node alone, so it is
tried on a second one that has devices free.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...model.cause import Cause, Code
from ..book import Book
from .outages import Cordon, Refusals


def refused(book: Book, job: int, node: str, error: Cause, fault: str) -> bool:
    """Note that ``node`` did not launch ``job``. Returns whether another node can be tried."""
    index = book.nodes.get(node)
    if index is None:
        return False
    before = book.jobs[job].refused_by or {}
    again, until = index in before, book.now + book.settings.avoid_us
    known = before | {index: until}
    keep_refusals(book, job, known)
    book.set_timer(until, "avoid", job, until)
    if fault == "user":
        return not again and len(known) < 2 and _room_elsewhere(book, job, free=True)
    _count(book, job, index, error)
    if _room_elsewhere(book, job, free=False):
        return True
    keep_refusals(book, job, {})
    return False


def keep_refusals(book: Book, job: int, known: dict[int, int]) -> None:
    """These nodes refused the job, each until the time at which it may be asked again."""
    book.jobs[job].refused_by = known or None
    if known:
        book.avoided[job] = sum(1 << node for node in known)
    else:
        book.avoided.pop(job, None)


def _room_elsewhere(book: Book, job: int, *, free: bool) -> bool:
    """Whether nodes that have not refused the job have devices enough for it (``free``: now)."""
    board = book.board
    wanted = replace(book.request(job), refused=book.avoided.get(job, 0))
    counts = [mask.bit_count() for mask in board.free] if free else board.layout.node_size
    return wanted.most_devices(board.layout, counts, board.up) >= max(1, wanted.floor)


def _count(book: Book, job: int, index: int, error: Cause) -> None:
    before = book.outages.refusals.get(index, Refusals(0, ()))
    jobs = (*(other for other in before.jobs if other != job), job)[-8:]
    now = book.outages.refusals[index] = Refusals(before.count + 1, jobs, before.cordons)
    # One job alone may be what no node can launch; two are the node's fault.
    if now.count >= book.settings.cordon_after and len(jobs) > 1 and index not in book.outages.cordoned:
        _cordon(book, index, now, error)


def _cordon(book: Book, index: int, now: Refusals, error: Cause) -> None:
    settings, name = book.settings, book.board.layout.nodes[index].name
    pause = min(settings.cordon_us << min(now.cordons, 20), settings.cordon_max_us)
    why = Code.CORDONED(now.count, pause, error)
    book.outages.cordoned[index] = Cordon(why, book.now + pause)
    book.outages.refusals[index] = Refusals(now.count, now.jobs, now.cordons + 1)
    book.set_timer(book.now + pause, "cordon", -1, index)
    for other in list(book.reservation_order.get(index, ())):
        book.cancel_reservation(other)
        book.record(other, "UNRESERVED", Code.NODE_CORDONED(name, why))
    book.set_node_up(index)


def launched(book: Book, job: int) -> None:
    """All ranks run: the nodes they are on refuse nothing."""
    keep_refusals(book, job, {})
    for part in book.allocations[job]:
        book.outages.refusals.pop(part.node, None)


def lift(book: Book, index: int) -> None:
    """The node takes work again, as if it had refused nothing: an operator says so, or its agent is a new one."""
    book.outages.refusals.pop(index, None)
    if book.outages.cordoned.pop(index, None) is not None:
        book.set_node_up(index)


def expired(book: Book, index: int) -> None:
    """A cordon's pause is over: launches are tried again, and the first that is refused cordons the node for longer."""
    cordon = book.outages.cordoned.get(index)
    if cordon is None or cordon.until > book.now:
        return
    del book.outages.cordoned[index]
    row = book.outages.refusals.get(index)
    if row is not None:
        book.outages.refusals[index] = Refusals(book.settings.cordon_after - 1, row.jobs, row.cordons)
    book.set_node_up(index)


def forgive(book: Book, job: int) -> None:
    """Nodes that refused the job long enough ago may be asked again."""
    known = book.jobs[job].refused_by or {}
    keep_refusals(book, job, {node: until for node, until in known.items() if until > book.now})
    book.forced = True
