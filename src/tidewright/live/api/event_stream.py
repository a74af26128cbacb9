"""State changes, published as they become durable: numbered, and kept for a while for clients that reconnect."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator

from ...engine.book import Book
from ...engine.commands import Command, Ended
from ...engine.wall_time import wall_time
from ...model.cause import Cause
from ...model.job import JobSpec, State
from ...wire.api import JobEvent
from .cause_views import cause_view_or_none
from .views import exit_code, state_name

KEPT = 20_000
"""Events kept for clients that reconnect."""
_WHOLE_TURN = 2**62
"""Number of an event after all events of its turn."""


class EventStream:
    """Turns into events. ``observe`` is called after each turn, ``publish`` once they are durable."""

    def __init__(self, kept: int = KEPT) -> None:
        self.events: deque[JobEvent] = deque(maxlen=kept)
        self._unpublished: list[JobEvent] = []
        self._states: dict[int, int] = {}
        self._changed = asyncio.Event()
        self.notifies = False
        """Whether a job was seen whose user wants notifications."""
        self._gap = (0, 0)
        """The newest place whose event is not kept: a client whose last event is older has missed some."""

    def begin(self, turn: int) -> None:
        """The first turn to be observed is the one after ``turn``; the events of earlier ones are not known here."""
        self._gap = (turn, _WHOLE_TURN)

    def observe(self, turn: int, book: Book, commands: Iterable[Command]) -> None:
        """Note which jobs changed state in this turn."""
        for _ in self.observe_in_parts(turn, book, commands):
            pass

    def observe_in_parts(self, turn: int, book: Book, commands: Iterable[Command]) -> Iterator[None]:
        """The same, with a break after every job."""
        found: list[tuple[int, JobSpec, int, Cause | None, int]] = []
        for job in book.touched:
            yield
            record = book.jobs.get(job)
            if record is None:
                continue
            state = record.state
            if self._states.get(job) != state:
                self._states[job] = state
                why = record.history[-1][2] if record.history else None
                found.append((job, record.spec, state, why, 0))
        for command in commands:
            if isinstance(command, Ended):
                self._states.pop(command.job, None)
                code = exit_code(command)
                found.append((command.job, command.spec, command.state, command.why, code))
        at = wall_time(book.wall_offsets, book.now, book.now)
        for number, (job, spec, state, why, code) in enumerate(found):
            yield
            cause = cause_view_or_none(why)
            event = JobEvent(
                seq=f"{turn}.{number}", at=at, job=job, name=spec.name, state=state_name(state), why=cause.text if cause else "",
                cause=cause, what=state_name(state), exit_code=code if state >= State.COMPLETED else -1,
                notify=spec.notify is not None,
            )  # fmt: skip
            self.notifies = self.notifies or event.notify
            self._unpublished.append(event)

    def publish(self) -> None:
        """Everything observed is durable: publish it."""
        if self._unpublished:
            for event in self._unpublished:
                if len(self.events) == self.events.maxlen:
                    self._gap = point(self.events[0].seq)
                self.events.append(event)
            self._unpublished.clear()
            self.wake()

    def wake(self) -> None:
        """Wake all waiting clients."""
        self._changed.set()
        self._changed = asyncio.Event()

    def change(self) -> asyncio.Event:
        """Set at the next publication. Take it before looking, then wait for it."""
        return self._changed

    def after(self, last: tuple[int, int]) -> tuple[list[JobEvent], bool]:
        """Events after ``last``, and whether none between were dropped."""
        found: list[JobEvent] = []
        for event in reversed(self.events):
            if point(event.seq) <= last:
                break
            found.append(event)
        return found[::-1], last >= self._gap

    @property
    def last(self) -> tuple[int, int]:
        """Place of the newest event."""
        return point(self.events[-1].seq) if self.events else self._gap


def point(seq: str) -> tuple[int, int]:
    """``"17.2"`` as (17, 2). Raises ValueError."""
    turn, _, number = seq.partition(".")
    return int(turn), int(number or 0)
