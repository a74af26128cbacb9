"""Changes of other jobs that would start a waiting one: some move, shrink, end or are cancelled while they run, or are cancelled
while they wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..engine import events as ev
from ..engine.book import Book
from ..engine.engine import Engine
from ..estimate.duration import remaining_us
from ..model.cause import Code
from ..model.job import State
from ..model.node import device_count
from ..model.rate import FULL_RATE
from ..placement.defragment import defragment
from ..plan.explain import Change
from ..policy.consolidate import comes_back, elsewhere, migration_candidates
from .ahead import ahead_of
from .draws import unending
from .search import SINGLES, TOGETHER, ChangeSearch
from .trial import settle, starts

_ENDS = 256
"""Jobs whose ends are waited for at most."""
_MIGRATED = 64
"""Running jobs that are looked at for moves, those whose pause costs least."""


def moves(search: ChangeSearch) -> Iterator[Change]:
    """Running jobs to move where free devices lie apart."""
    view, book = search.scratch.view(), search.book
    board, request = view.board(), book.request(search.job)
    if board.free_in(request.kinds) < request.count:
        return
    able = view.jobs.active & (view.jobs.run_since >= 0) & comes_back(view.jobs)
    found = defragment(board, request, migration_candidates(view, able, _MIGRATED), lambda one: elsewhere(view, one))
    if found is None or not found.migrated:
        return
    search.look("move")
    jobs = tuple(view.jobs.id.item(row) for row, _ in found.migrated)
    nodes = tuple(view.layout.nodes[parts[0].node].name for _, parts in found.migrated)
    fork = Engine.restore(search.image)
    fork.replan()
    events = [ev.Move(job, (node,), f"explain.{job}") for job, node in zip(jobs, nodes, strict=True)]
    if settle(fork, search.planner, list(events), search.job) or starts(fork, search.planner, search.job):
        yield Change("move", Code.MOVE_JOBS(jobs, nodes), "", jobs=jobs, nodes=nodes)


def scaled(search: ChangeSearch) -> Iterator[Change]:
    """Elastic jobs that hold more devices than they need, on as few as they run on; those that lose least first."""
    book = search.book
    surplus = {
        job: device_count(parts) - book.specs[job].floor
        for job, parts in book.allocations.items()
        if book.specs[job].elastic and book.state(job) is State.RUNNING
    }
    order = sorted(
        (job for job, more in surplus.items() if more > 0 and (search.few or search.room_without((job,)))),
        key=lambda job: (book.specs[job].tier_rank, surplus[job], job),
    )
    if order:
        search.look("scale")
    jobs = search.fewest(order, lambda some: search.starts_after(*(_scale(book, job) for job in some)))
    if jobs:
        sizes = tuple(book.specs[job].floor for job in jobs)
        yield Change("scale", Code.SCALE_JOBS(jobs, sizes), "", jobs=jobs, sizes=sizes)


def _scale(book: Book, job: int) -> ev.Event:
    return ev.Scale(job, book.specs[job].floor, f"explain.{job}")


def waiting(search: ChangeSearch) -> Iterator[Change]:
    """The waiting job without which it starts, of those served before it or with devices reserved, that loses least."""
    book, view = search.book, search.scratch.view()
    ahead = (*book.reservations, *ahead_of(view, search.planner, search.job).jobs)
    before = [job for job in ahead if job not in book.allocations and job != search.job]
    few = search.few and len(before) <= SINGLES
    if not before:
        return
    search.look("cancel-waiting")
    if not few and not search.planned_without(before):
        return
    tried = 0
    for job in sorted(before[:SINGLES], key=lambda job: (*_loses(book, job), job)):
        if search.enough() or tried == search.tries:
            return
        if not few and not search.planned_without((job,)):
            continue
        tried += 1
        if search.starts_without((job,)):
            spec = book.specs[job]
            what = Code.CANCEL_WAITING(job, spec.tier, spec.devices)
            yield Change("cancel-waiting", what, "", jobs=(job,))
            return


def ends(search: ChangeSearch) -> Iterator[Change]:
    """Of the jobs whose end starts it, the one that ends first; of those that start it by being cancelled, the one that loses
    least: jobs that depend on one start after either, or after one of the two. Where no single end is enough, the fewest that
    have to be waited for."""
    book, held = search.book, _ends(search.scratch)
    if not held:
        return
    found = {job: at for job, at in held.items() if not unending(book.specs[job])}
    search.look(*(["wait"] if found else []), "cancel")
    few = search.few and len(held) <= SINGLES  # then also those whose end would only make preempting others enough
    room = [job for job in held if few or search.room_without((job,))]
    singles = room[:SINGLES]
    worth = search.few or len(singles) < 2 or search.starts_without(singles)
    soonest = _first(search, [job for job in room if job in found], search.starts_once_ended) if worth else None
    if soonest is not None:
        yield _after((soonest,), found[soonest] - book.now)
    least = sorted(room, key=lambda job: (*_loses(book, job), job))
    cheapest = _first(search, least, search.starts_without) if worth else None
    if cheapest is not None:
        spec = book.specs[cheapest]
        yield Change("cancel", Code.CANCEL_JOB(cheapest, spec.tier, spec.devices), "", jobs=(cheapest,))
    if soonest is None:
        yield from _several_ends(search, found, few)


def _first(search: ChangeSearch, order: Sequence[int], starts: Callable[[Sequence[int]], bool]) -> int | None:
    """The first job that alone is enough; None where there is none among the first ones, or time is up."""
    for job in order[: search.tries]:
        if search.enough():
            return None
        if starts((job,)):
            return job
    return None


def _several_ends(search: ChangeSearch, found: dict[int, int], few: bool) -> Iterator[Change]:
    """In the order in which they are expected."""
    order, low = list(found)[:_ENDS], 2
    while not few and low <= len(order) and not search.room_without(order[:low]):
        low += 1
    if low > len(order) or search.enough():
        return
    count = _by_steps(search, order, low) if search.few else _by_halving(search, order, low)
    if count:
        jobs = search.needed(order[:count], search.starts_once_ended) if count <= TOGETHER else tuple(order[:count])
        yield _after(jobs, found[jobs[-1]] - search.book.now)


def _by_steps(search: ChangeSearch, order: Sequence[int], low: int) -> int:
    """The first ``low`` or more that are enough, tried in growing steps; 0: there are none."""
    while low <= len(order) and not search.enough():
        if search.starts_once_ended(order[:low]):
            return low
        low += max(1, low // 4)
    return 0


def _by_halving(search: ChangeSearch, order: Sequence[int], low: int) -> int:
    """The same where trials are dear: all first, then by halving for as long as time allows."""
    high = len(order)
    if not search.starts_once_ended(order):
        return 0
    while low < high and not search.enough():
        middle = (low + high) // 2
        low, high = (low, middle) if search.starts_once_ended(order[:middle]) else (middle + 1, high)
    return high


def _after(jobs: tuple[int, ...], within_us: int) -> Change:
    within_us = max(within_us, 0)
    many = Code.AFTER_MANY_JOBS(len(jobs), within_us)
    return Change("wait", Code.AFTER_JOBS(jobs, within_us) if len(jobs) <= TOGETHER else many, "", jobs=jobs)


def _ends(engine: Engine) -> dict[int, int]:
    """Jobs with devices of their own to when they are expected to end, absolute microseconds, the first one first."""
    view = engine.view()
    jobs = view.jobs
    rows = np.flatnonzero(jobs.active)
    rate = np.where(jobs.rate[rows] > 0, jobs.rate[rows], FULL_RATE)
    found = view.now + (remaining_us(jobs)[rows] * (FULL_RATE / rate)).astype(np.int64)
    order = np.lexsort((jobs.id[rows], found))
    ends = zip(jobs.id[rows[order]].tolist(), found[order].tolist(), strict=True)
    return {job: at for job, at in ends if job in view.allocations}


def _loses(book: Book, job: int) -> tuple[int, int]:
    """What cancelling a job loses: its tier, then the device-time that it has had."""
    row = book.table.row[job]
    return int(book.table.tier[row]), int(book.table.attained[row])
