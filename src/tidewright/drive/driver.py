"""One step of the engine with its journal record: the events that came and the commands that it gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..engine.commands import Command
from ..engine.engine import Engine
from ..engine.events import Event
from .record import StepRecord, encode


class Recorder(Protocol):
    """Takes encoded steps in order. Making them durable is its own business."""

    def append(self, record: bytes) -> None: ...


class EngineDriver:
    """The place where the two worlds meet: the simulator and the live loop both call ``step``."""

    def __init__(self, engine: Engine, recorder: Recorder | None = None, turn: int = 0) -> None:
        self.engine = engine
        self.recorder = recorder
        self.turns = turn
        """Steps recorded so far; the next record is this plus one."""

    def step(self, now: int, events: Sequence[Event]) -> list[Command]:
        """Step at ``now`` (µs) and record. The commands may be carried out once the record is durable."""
        for _ in self.step_in_parts(now, events):
            pass
        return self.engine.book.out

    def step_in_parts(self, now: int, events: Sequence[Event]) -> Iterator[None]:
        """The same step, with breaks (``Engine.step_in_parts``); its commands are ``engine.book.out`` once it is over."""
        yield from self.engine.step_in_parts(now, events)
        self.turns += 1
        if self.recorder is not None:
            self.recorder.append(encode(StepRecord(self.turns, now, list(events), self.engine.book.out)))
