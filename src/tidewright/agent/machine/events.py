"""What happens to the machine."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from ...wire.agent import LaunchArgs
from .actions import ActionFailed, Key
from .outcomes import RankOutcome
from .record import AttemptRecord


class Event(Struct, frozen=True):
    """Something that happened."""


class StepDone(Event, frozen=True):
    """The step ``number`` is done."""

    number: int
    value: Any = None


class StepFailed(Event, frozen=True):
    """The step ``number`` failed."""

    number: int
    error: ActionFailed


class Requested(Event, frozen=True):
    """A controller asks for a verb, ``args`` being its arguments (``wire.agent.ARGS``)."""

    ask: int
    verb: str
    args: Any
    op_id: str = ""


class TimerFired(Event, frozen=True):
    timer: int


class Adopted(Event, frozen=True):
    """An attempt that an earlier agent left; ``outcomes`` of the ranks of one that is over."""

    args: LaunchArgs
    record: AttemptRecord
    logs: tuple[tuple[int, str], ...] = ()
    outcomes: dict[int, RankOutcome] = field(default_factory=dict)


class RankGone(Event, frozen=True):
    """The shim of a rank is no more."""

    key: Key
    rank: int
    generation: int


class DevicesLost(Event, frozen=True):
    """Ranks of an attempt cannot have their devices back."""

    key: Key
    why: str


class LevelCapped(Event, frozen=True):
    """A wrapper could not wrap something: ``level`` is the highest that works."""

    key: Key
    level: int
    why: str


class Evicted(Event, frozen=True):
    """An attempt is to be ended for what it does."""

    key: Key
    why: str


class NoticeGiven(Event, frozen=True):
    """What the user of an attempt should know."""

    key: Key
    text: str


class HoldRequested(Event, frozen=True):
    """The agent that leads ``cut`` wants to hold the ranks here (None: it does not say for which)."""

    ask: int
    key: Key
    cut: int | None


class CutDecided(Event, frozen=True):
    """The agent that leads a cut says what became of it; empty ``why``: it holds."""

    key: Key
    cut: int
    why: str
