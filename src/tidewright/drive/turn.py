"""One turn: step the engine, record what it was told and what it said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..engine.commands import Command
from ..engine.engine import Engine
from ..engine.events import Event
from .record import TurnRecord, encode


class Recorder(Protocol):
    """Takes encoded turns in order. Making them durable is its own business."""

    def append(self, record: bytes) -> None: ...


class Driver:
    """The place where the two worlds meet: the simulator and the live loop both call ``turn``."""

    def __init__(self, engine: Engine, recorder: Recorder | None = None, turn: int = 0) -> None:
        self.engine = engine
        self.recorder = recorder
        self.turns = turn
        """Turns recorded so far; the next record is this plus one."""

    def turn(self, now: int, events: Sequence[Event]) -> list[Command]:
        """Step at ``now`` (µs) and record. The commands may be carried out once the record is durable."""
        for _ in self.turn_in_parts(now, events):
            pass
        return self.engine.book.out

    def turn_in_parts(self, now: int, events: Sequence[Event]) -> Iterator[None]:
        """The same turn, with breaks (``Engine.step_in_parts``); its commands are ``engine.book.out`` once it is over."""
        yield from self.engine.step_in_parts(now, events)
        self.turns += 1
        if self.recorder is not None:
            self.recorder.append(encode(TurnRecord(self.turns, now, list(events), self.engine.book.out)))
