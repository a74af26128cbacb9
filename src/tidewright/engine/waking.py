"""When another plan is made: what the last one waits for (``plan.Wake``)."""

from __future__ import annotations

from msgspec.structs import replace

from ..model.job import State
from ..plan.plan import ArrivalDelay
from . import rates
from .book import Book

_QUEUED, _SUSPENDED = int(State.QUEUED), int(State.SUSPENDED)


def set_timer(book: Book) -> None:
    """Be stepped when the last plan wants it. An earlier timer of an earlier plan serves too: it sets the next one."""
    at = book.wake.at
    if at > book.now and not book.now < book.wake_due <= at:
        book.wake_due = at
        book.set_timer(at, "wake")


def plan_worthwhile(book: Book) -> bool:
    """Whether anything has happened since the last plan that may change it."""
    wake = book.wake
    waiting = book.counts[_QUEUED] + book.counts[_SUSPENDED]
    if not waiting and not book.elastic_jobs and not rates.estimator(book).by_place:
        return False
    if book.forced or (wake.at and book.now >= wake.at):
        return True
    if book.refused and book.touched:
        return True
    if book.arrived and wake.on_arrival:
        if book.now >= wake.behind_until or book.first_arrival <= wake.behind:
            return True
        book.arrived = False  # nothing is to be planned for them, now or later
    return book.freed and wake.on_free and sum(book.board.free_total) >= wake.min_free


def enough_free(book: Book, job: int) -> bool:
    """Whether so much is free that a job, which has just released its devices, or another one might start on it."""
    free = sum(book.board.free_total)
    least = min(book.wake.min_free, book.specs[job].floor) if book.settings.rules else 1
    return free >= max(least, 1) or bool(book.board.partial)


def left_queue(book: Book) -> None:
    """A job does not wait for devices any more: others are first now, who may need fewer than those that the last plan waits for
    (``Wake.min_free``), or lie among those that it looked at (``Wake.behind``)."""
    wake = book.wake
    book.forced = book.forced or wake.behind > 0 or wake.min_free > 0 or not wake.on_free or book.settings.rules > 0


def began_to_wait(book: Book, job: int) -> None:
    """A job waits for devices from now on: a plan is due, at once or within a while (``Wake.arrival_delay``)."""
    delay = book.wake.arrival_delay
    within = 0 if delay is None or book.planning or not book.wake.on_arrival else _within_us(book, job, delay)
    if delay is None or within <= 0:
        book.note_arrival(job)
        return
    if book.wake.min_free:
        least = book.specs[job].floor + delay.kept
        book.wake = replace(book.wake, min_free=min(book.wake.min_free, least))
    _plan_by(book, book.now + within)


def _within_us(book: Book, job: int, delay: ArrivalDelay) -> int:
    """How long a job that has just come may wait for a plan; 0: not at all."""
    spec, table = book.specs[job], book.table
    if spec.tier_rank != delay.tier or spec.deadline_us or spec.service or spec.shares or not spec.expected_us:
        return 0
    if table.submit.item(table.row[job]) != book.now:
        return 0  # it has waited or run before
    if spec.floor <= sum(book.board.free_total) - delay.kept:
        return 0
    return min((delay.within_us, *(int(share * spec.expected_us) - less for share, less in delay.due)))


def ended_meanwhile(book: Book) -> None:
    """A plan has landed: jobs whose end it waits for may have ended while it was made."""
    book.forced = book.forced or any(job not in book.jobs for job in book.wake.on_end)


def began_to_run(book: Book) -> None:
    """A job may be preempted from now on, or once it has run for a while: where the last plan waits for that, another is due."""
    after = book.wake.after_run
    if book.planning and book.settings.rules:
        book.forced = True  # the last plan may not have waited for it: the one that is being made does, and too late
    if after < 0:
        return
    if not after or book.planning:  # the plan that is being made has seen it starting
        book.forced = True
    else:
        _plan_by(book, book.now + after)


def _plan_by(book: Book, at: int) -> None:
    """A plan is due at ``at`` at the latest."""
    if not book.wake.at or at < book.wake.at:
        book.wake = replace(book.wake, at=at)
        set_timer(book)
