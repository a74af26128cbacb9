"""What searches for changes share: the pool of a snapshot, forks of it in which a change is tried, and how many of them.

Restoring a fork is what a trial costs. So the forks of one kind of change are few where many jobs are in the book; there all
candidates are tried together first, which for a change that does not help is the only trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..engine import events as ev
from ..engine.book import Book
from ..engine.engine import Engine
from ..engine.requests.amend import aside
from ..placement.find import place
from ..plan.plan import Planner
from .trial import Enough, planned, settle, starts

SINGLES = 24
"""Candidates of one kind that are tried each alone at most."""
TOGETHER = 8
"""Jobs or nodes of one change at most."""
_RESTORED = 60_000
"""Jobs that the forks of one kind of change restore in all: 9 µs each."""
_FEWEST_TRIES = 3

T = TypeVar("T")


class ChangeSearch:
    """A pool in which changes for one waiting job are tried. ``enough``: whether time is up."""

    def __init__(self, image: bytes, planner: Planner, job: int, enough: Enough) -> None:
        self.planner, self.job, self._enough = planner, job, enough
        self.image = image
        self.cut = False
        """Whether time was up before all was tried."""
        self.looked: dict[str, bool] = {}
        """Kinds of changes of which there were candidates, in the order in which they were tried."""
        self.scratch = Engine.restore(image)
        """Changed and changed back between trials."""
        self.board = self.scratch.view().board()
        self.tries = min(SINGLES, max(_FEWEST_TRIES, _RESTORED // max(len(self.book.jobs), 1)))
        """Forks in which candidates of one kind are tried each alone."""

    def enough(self) -> bool:
        """Whether time is up: what is left is not tried."""
        self.cut = self.cut or self._enough()
        return self.cut

    def look(self, *kinds: str) -> None:
        """There are candidates of these kinds, and they are tried now."""
        self.looked.update(dict.fromkeys(kinds, True))

    @property
    def book(self) -> Book:
        """Of the pool as it is."""
        return self.scratch.book

    @property
    def few(self) -> bool:
        """Whether so few jobs are in the book that no trial has to be saved."""
        return self.tries == SINGLES

    def starts_after(self, *events: ev.Event) -> bool:
        """Whether the job starts once these events have happened, in a fresh fork."""
        fork = Engine.restore(self.image)
        fork.replan()
        return settle(fork, self.planner, list(events), self.job)

    def starts_without(self, jobs: Sequence[int]) -> bool:
        """Whether the job starts once others are cancelled: those that run are stopped before the next plan is made."""
        fork = Engine.restore(self.image)
        fork.discard_plan()
        cancels: list[ev.Event] = [ev.Cancel(job) for job in jobs]
        return settle(fork, self.planner, cancels, self.job) or starts(fork, self.planner, self.job)

    def starts_once_ended(self, jobs: Sequence[int]) -> bool:
        """Whether the job starts once others, which have devices, have ended as they should."""
        return self.starts_after(*(ev.Exited(job, self.book.jobs[job].attempt, 0) for job in jobs))

    def planned_without(self, waiting: Sequence[int]) -> bool:
        """Whether one plan starts the job where these waiting jobs are left out: cheaper than a fork."""
        with aside(self.book, waiting):
            return planned(self.scratch, self.planner, self.job)

    def room_without(self, jobs: Sequence[int]) -> bool:
        """Whether the free devices and those of ``jobs`` would hold the job: asked before anything dearer."""
        mark = self.board.mark()
        for job in jobs:
            if not self.book.jobs[job].leaving:
                self.board.release(self.book.allocations[job])
        fits = place(self.board, self.book.request(self.job)) is not None
        self.board.undo(mark)
        return fits

    def fewest(self, candidates: Sequence[T], starts: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
        """The first candidate that is enough alone, else the fewest of the first ones that are together; none: ``()``."""
        some = candidates[: self.tries]
        together = candidates[: max(TOGETHER, len(some))]
        if not self.few and len(together) > 1 and (self.enough() or not starts(together)):
            return ()
        for one in some:
            if self.enough():
                return ()
            if starts([one]):
                return (one,)
        together = candidates[:TOGETHER]
        if len(together) < 2 or self.enough() or not starts(together):
            return ()
        return self.needed(together, starts)

    def needed(self, together: Sequence[T], starts: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
        """Those of ``together`` without which it would not start, in their order."""
        needed = list(together)
        for one in together[:-1]:
            rest = [other for other in needed if other != one]
            if self.enough():
                break
            if rest and starts(rest):
                needed = rest
        return tuple(needed)
