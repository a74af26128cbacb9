"""The least changes that would start a waiting job now, found by trying them in forks with the planner that runs.

Of each kind the least: of the request, the tier, moves and sizes of running jobs, nodes that take work again, an end that is only
to be waited for, a cancellation of a waiting or of a running job, and nodes to add. What is offered has been tried; what would
also do, but takes longer to find than its caller allows, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from ..engine import events as ev
from ..engine.engine import Engine
from ..engine.requests.amend import amend
from ..model.cause import Code
from ..plan.explain import Change
from ..plan.plan import Planner
from . import other_jobs, pool_changes
from .requests import Candidates, amended, candidates
from .search import ChangeSearch
from .trial import Enough, planned, starts

_LINEAR = 32
"""Candidates of a group up to which each is tried; of more, those where trying changes over from failure to success."""

_SEARCHES: tuple[Callable[[ChangeSearch], Iterator[Change]], ...] = (
    other_jobs.moves, other_jobs.scaled, pool_changes.undrained, other_jobs.ends, other_jobs.waiting, pool_changes.more_nodes,
)  # fmt: skip
_MILDEST_FIRST = ("request", "tier", "move", "scale", "undrain", "wait", "cancel-waiting", "cancel", "nodes")


def smallest_changes(image: bytes, planner: Planner, job: int, enough: Enough = lambda: False) -> tuple[Change, ...]:
    """The least change of each kind that starts a job in the pool of a snapshot, mildest kind first; one of kind ``none``
    where there is none. For jobs whose limit may be lifted (``Explanation.liftable``)."""
    search = ChangeSearch(image, planner, job, enough)
    changes = sorted(_changes(search), key=lambda change: _MILDEST_FIRST.index(change.kind))
    return tuple(changes) or (_dead_end(search),)


def _dead_end(search: ChangeSearch) -> Change:
    """Nothing that was tried starts the job."""
    if search.cut:
        return Change("none", Code.NO_CHANGE_IN_TIME(tuple(search.looked), search.job), "")
    if search.looked:
        return Change("none", Code.NO_CHANGE_STARTS(tuple(search.looked), search.job), "")
    return Change("none", Code.NOTHING_TO_CHANGE(), "")


def _changes(search: ChangeSearch) -> Iterator[Change]:
    for group in candidates(search.book, search.job):
        yield from _least(search, group)
    for kind in _SEARCHES:
        if not search.enough():
            yield from kind(search)


def _least(search: ChangeSearch, group: Candidates) -> Iterator[Change]:
    """The first of a group that starts the job; more than ``_LINEAR`` are taken to go from failing to starting once."""
    values = group.values
    if values and not search.enough():
        search.look(group.change(values[0]).kind)
    if len(values) > _LINEAR:
        if search.enough() or not _works(search, group.change(values[-1])):
            return
        low, high = 0, len(values) - 1
        while low < high and not search.enough():
            middle = (low + high) // 2
            low, high = (low, middle) if _works(search, group.change(values[middle])) else (middle + 1, high)
        values = values[high : high + 1]
    for value in values:
        if search.enough():
            return
        change = group.change(value)
        if _works(search, change) and _starts_amended(search, change):
            scaled = change.devices and search.starts_after(ev.Scale(search.job, change.devices, "explain"))
            yield msgspec.structs.replace(change, flag="") if scaled else change
            return


def _works(search: ChangeSearch, change: Change) -> bool:
    """Whether one plan starts the job with its request changed."""
    book, spec = search.book, search.book.specs[search.job]
    amend(book, search.job, amended(spec, change))
    try:
        return planned(search.scratch, search.planner, search.job)
    finally:
        amend(book, search.job, spec)


def _starts_amended(search: ChangeSearch, change: Change) -> bool:
    fork = Engine.restore(search.image)
    amend(fork.book, search.job, amended(fork.book.specs[search.job], change))
    return starts(fork, search.planner, search.job)
