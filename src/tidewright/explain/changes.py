"""The least changes that would start a waiting job now, found by trying them in forks with the planner that runs.

Of each kind the least: of the request, the tier, a move of other jobs, an end that is only to be waited for, a cancellation, and
nodes to add. What is offered has been tried; what would also do, but takes longer to find than its caller allows, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from ..engine import events as ev
from ..engine.book import Book
from ..engine.engine import Engine
from ..engine.requests.amend import amend
from ..estimate.duration import remaining_us
from ..model.cause import Code
from ..model.node import NodeSpec, bits
from ..model.rate import FULL_RATE
from ..placement.defragment import defragment
from ..placement.find import place
from ..plan.explain import Change, Explanation
from ..plan.plan import Planner
from ..policy.consolidate import comes_back, migration_candidates
from .requests import amended, candidates
from .trial import Enough, planned, settle, starts

_LINEAR = 32
"""Candidates of a group up to which each is tried; of more, those where trying changes over from failure to success."""
_SINGLES = 24
"""Single jobs that are tried as the one in the way. Where more hold devices, only those whose devices would be enough."""
_ENDS = 256
"""Jobs whose ends are waited for at most."""
_NAMED = 8
"""Jobs to wait for that are named one by one, and only those that it needs."""
_MOST_NODES = 256
_MIGRATED = 64
"""Running jobs that are looked at for moves, those whose pause costs least."""


def smallest_changes(
    engine: Engine, planner: Planner, found: Explanation, enough: Enough = lambda: False
) -> tuple[Change, ...]:
    """The least change of each kind that starts the job of ``found`` now, mildest kind first. ``engine`` stays as it is."""
    if not found.liftable:
        return ()
    search = _Search(engine, planner, found.job, enough)
    return tuple(search.run())


class _Search:
    def __init__(self, engine: Engine, planner: Planner, job: int, enough: Enough) -> None:
        self.planner, self.job, self.enough = planner, job, enough
        self.image = engine.snapshot()
        self.scratch = Engine.restore(self.image)
        """Changed and changed back between trials."""
        self.board = self.scratch.view().board()

    def run(self) -> Iterator[Change]:
        """Mildest kind first."""
        for group in candidates(self.scratch.book, self.job):
            yield from self._least(group)
        for search in (self._moves, self._ends, self._nodes):
            if not self.enough():
                yield from search()

    # -- the request ------------------------------------------------------------------------------------------------------

    def _least(self, group: Sequence[Change]) -> Iterator[Change]:
        """The first of a group that starts the job; more than ``_LINEAR`` are taken to go from failing to starting once."""
        if len(group) > _LINEAR:
            low, high = 0, len(group)
            while low < high and not self.enough():
                middle = (low + high) // 2
                low, high = (low, middle) if self._works(group[middle]) else (middle + 1, high)
            group = group[low : low + 2]
        for change in group:
            if self.enough():
                return
            if self._works(change) and self._starts_amended(change):
                yield change
                return

    def _works(self, change: Change) -> bool:
        """Whether one plan starts the job with its request changed."""
        book, spec = self.scratch.book, self.scratch.book.specs[self.job]
        amend(book, self.job, amended(spec, change))
        try:
            return planned(self.scratch, self.planner, self.job)
        finally:
            amend(book, self.job, spec)

    def _starts_amended(self, change: Change) -> bool:
        fork = Engine.restore(self.image)
        amend(fork.book, self.job, amended(fork.book.specs[self.job], change))
        return starts(fork, self.planner, self.job)

    # -- other jobs -------------------------------------------------------------------------------------------------------

    def _starts_after(self, *events: ev.Event) -> bool:
        fork = Engine.restore(self.image)
        fork.replan()
        return settle(fork, self.planner, list(events), self.job)

    def _without(self, jobs: Sequence[int]) -> bool:
        """Whether the job starts once others have ended."""
        book = self.scratch.book
        return self._starts_after(*(_end(book, job) for job in jobs))

    def _ends(self) -> Iterator[Change]:
        """Of the jobs without any one of which it starts: the one that ends first, and the one that loses least. Where no single
        end is enough, the fewest that have to be waited for."""
        book, ends = self.scratch.book, _ends(self.scratch)
        few = len(ends) <= _SINGLES  # then also those whose end would only make preempting others enough
        room = [job for job in ends if few or self._room_without((job,))]
        tried: dict[int, bool] = {}
        soonest = self._first(room, tried)
        if soonest is not None:
            yield _after((soonest,), ends[soonest] - book.now)
        cheapest = self._first(sorted(room, key=lambda job: (*_loses(book, job), job)), tried)
        if cheapest is not None:
            spec = book.specs[cheapest]
            what = Code.CANCEL_JOB(cheapest, spec.tier, spec.devices)
            yield Change("cancel", what, "", jobs=(cheapest,))
        if soonest is None:
            yield from self._several_ends(ends, few)

    def _first(self, order: Sequence[int], tried: dict[int, bool]) -> int | None:
        """The first job without which it starts; None where there is none among the first ones, or time is up."""
        for job in order[:_SINGLES]:
            if job not in tried:
                if self.enough():
                    return None
                tried[job] = self._without((job,))
            if tried[job]:
                return job
        return None

    def _room_without(self, jobs: Sequence[int]) -> bool:
        """Whether the free devices and those of ``jobs`` would hold the job: asked before anything dearer."""
        book, mark = self.scratch.book, self.board.mark()
        for job in jobs:
            if not book.jobs[job].leaving:
                self.board.release(book.allocations[job])
        fits = place(self.board, book.request(self.job)) is not None
        self.board.undo(mark)
        return fits

    def _several_ends(self, ends: dict[int, int], few: bool) -> Iterator[Change]:
        """In the order in which they are expected."""
        order = list(ends)[:_ENDS]
        low = 2
        while not few and low <= len(order) and not self._room_without(order[:low]):
            low += 1
        while low <= len(order) and not self.enough():
            if self._without(order[:low]):
                jobs = self._needed(order[:low]) if low <= _NAMED else tuple(order[:low])
                yield _after(jobs, ends[jobs[-1]] - self.scratch.book.now)
                return
            low += max(1, low // 4)

    def _needed(self, jobs: list[int]) -> tuple[int, ...]:
        """Those of ``jobs`` without whose ends it would not start: what was freed for nothing is taken out again."""
        needed = list(jobs)
        for job in jobs[:-1]:
            rest = [other for other in needed if other != job]
            if self.enough():
                break
            if self._without(rest):
                needed = rest
        return tuple(needed)

    def _moves(self) -> Iterator[Change]:
        """Running jobs to move where free devices lie apart."""
        view, book = self.scratch.view(), self.scratch.book
        board, request = view.board(), book.request(self.job)
        if board.free_in(request.kinds) < request.count:
            return
        able = view.jobs.active & (view.jobs.run_since >= 0) & comes_back(view.jobs)
        found = defragment(board, request, migration_candidates(view, able, _MIGRATED))
        if found is None or not found.migrated:
            return
        jobs = tuple(view.jobs.id.item(row) for row, _ in found.migrated)
        nodes = tuple(view.layout.nodes[parts[0].node].name for _, parts in found.migrated)
        fork = Engine.restore(self.image)
        fork.replan()
        moves = [ev.Move(job, (node,), f"explain.{job}") for job, node in zip(jobs, nodes, strict=True)]
        if settle(fork, self.planner, list(moves), self.job) or starts(fork, self.planner, self.job):
            yield Change("move", Code.MOVE_JOBS(jobs, nodes), "", jobs=jobs, nodes=nodes)

    # -- nodes ------------------------------------------------------------------------------------------------------------

    def _nodes(self) -> Iterator[Change]:
        """The fewest more nodes, of the most common sort of each kind that the job accepts."""
        book, layout = self.scratch.book, self.scratch.book.board.layout
        kinds = int(book.table.kinds[book.table.row[self.job]])
        for kind in bits(kinds):
            like = _typical([node for node, of in zip(layout.nodes, layout.node_kind, strict=True) if of == kind])
            count = self._fewest(like) if like is not None else 0
            if like is not None and count:
                yield Change(
                    "nodes", Code.MORE_NODES(count, like.devices, like.kind), "", count=count, nodes=(like.kind,)
                )

    def _fewest(self, like: NodeSpec) -> int:
        """So many nodes like this one have to be added; 0: more than are tried."""
        low, high = 0, 1
        while not self._starts_with(like, high):
            low, high = high, 2 * high
            if high > _MOST_NODES or self.enough():
                return 0
        while high - low > 1 and not self.enough():
            middle = (low + high) // 2
            low, high = (low, middle) if self._starts_with(like, middle) else (middle, high)
        return high

    def _starts_with(self, like: NodeSpec, count: int) -> bool:
        names = [f"+{number}" for number in range(count)]
        return self._starts_after(*(ev.NodeUp(msgspec.structs.replace(like, name=name), name) for name in names))


def _after(jobs: tuple[int, ...], within_us: int) -> Change:
    within_us = max(within_us, 0)
    many = Code.AFTER_MANY_JOBS(len(jobs), within_us)
    return Change("wait", Code.AFTER_JOBS(jobs, within_us) if len(jobs) <= _NAMED else many, "", jobs=jobs)


def _end(book: Book, job: int) -> ev.Event:
    """What ends a job, wherever it is."""
    return ev.Exited(job, book.jobs[job].attempt, 0) if job in book.allocations else ev.Cancel(job)


def _ends(engine: Engine) -> dict[int, int]:
    """Jobs with devices to when they are expected to end, absolute microseconds, the first one first."""
    view = engine.view()
    jobs = view.jobs
    rows = np.flatnonzero(jobs.active)
    rate = np.where(jobs.rate[rows] > 0, jobs.rate[rows], FULL_RATE)
    ends = view.now + (remaining_us(jobs)[rows] * (FULL_RATE / rate)).astype(np.int64)
    order = np.lexsort((jobs.id[rows], ends))
    return dict(zip(jobs.id[rows[order]].tolist(), ends[order].tolist(), strict=True))


def _loses(book: Book, job: int) -> tuple[int, int]:
    """What cancelling a job loses: its tier, then the device-time that it has had."""
    row = book.table.row[job]
    return int(book.table.tier[row]), int(book.table.attained[row])


def _typical(nodes: list[NodeSpec]) -> NodeSpec | None:
    """The most common sort of these nodes."""
    sorts: dict[tuple[int, int, int, int], list[NodeSpec]] = {}
    for node in nodes:
        sorts.setdefault((node.devices, node.device_memory, node.cpus, node.memory), []).append(node)
    return max(sorts.values(), key=len)[0] if sorts else None
