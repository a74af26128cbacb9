"""What happens to the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...wire.agent import LaunchArgs
from .actions import ActionFailed, Key
from .outcomes import RankOutcome
from .record import AttemptRecord


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True, slots=True)
class StepDone(Event):
    """The step ``number`` is done."""

    number: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class StepFailed(Event):
    """The step ``number`` failed."""

    number: int
    error: ActionFailed


@dataclass(frozen=True, slots=True)
class Requested(Event):
    """A controller asks for a verb, ``args`` being its arguments (``wire.agent.ARGS``)."""

    ask: int
    verb: str
    args: Any
    op_id: str = ""


@dataclass(frozen=True, slots=True)
class TimerFired(Event):
    timer: int


@dataclass(frozen=True, slots=True)
class Adopted(Event):
    """An attempt that an earlier agent left; ``outcomes`` of the ranks of one that is over."""

    args: LaunchArgs
    record: AttemptRecord
    logs: tuple[tuple[int, str], ...] = ()
    outcomes: dict[int, RankOutcome] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankGone(Event):
    """The shim of a rank is no more."""

    key: Key
    rank: int
    generation: int


@dataclass(frozen=True, slots=True)
class DevicesLost(Event):
    """Ranks of an attempt cannot have their devices back."""

    key: Key
    why: str


@dataclass(frozen=True, slots=True)
class LevelCapped(Event):
    """A wrapper could not wrap something: ``level`` is the highest that works."""

    key: Key
    level: int
    why: str


@dataclass(frozen=True, slots=True)
class Evicted(Event):
    """An attempt is to be ended for what it does."""

    key: Key
    why: str


@dataclass(frozen=True, slots=True)
class NoticeGiven(Event):
    """What the user of an attempt should know."""

    key: Key
    text: str


@dataclass(frozen=True, slots=True)
class HoldRequested(Event):
    """The agent that leads ``cut`` wants to hold the ranks here (None: it does not say for which)."""

    ask: int
    key: Key
    cut: int | None


@dataclass(frozen=True, slots=True)
class CutDecided(Event):
    """The agent that leads a cut says what became of it; empty ``why``: it holds."""

    key: Key
    cut: int
    why: str
