"""From a journal to a running book: the newest snapshot that opens, then every turn since, checked while replayed."""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct

from ...base.errors import Bug, DamagedJournal, UsageError
from ...base.units import agreeing, counted
from ...drive.driver import EngineDriver
from ...drive.record import StepRecord, decode
from ...drive.replay import difference
from ...engine.engine import Engine
from ...engine.settings import EngineSettings
from ...engine.version_skew import adopt
from ..api.event_stream import EventStream
from .store import REMEDY, Journal

log = logging.getLogger(__name__)
SETTINGS = "engine_settings"
DIVERGED = "diverged"


class Since(Struct, frozen=True):
    """Engine settings in force after turn ``turn``."""

    turn: int
    settings: EngineSettings


class Divergence(Struct, frozen=True):
    """``turns`` turns, the first of them ``first``, replayed otherwise under ``version`` than they were recorded."""

    first: int
    turns: int
    why: str


def recover(journal: Journal, settings: EngineSettings, event_stream: EventStream) -> EngineDriver:
    """The driver as it was after the last durable turn. ``event_stream`` gets the replayed turns, too.

    Turns replay under the settings that were in force then; those given now are in force from here on. Turns that this
    version would have decided otherwise are adopted as they were recorded, with a notice.
    """
    known = settings_since(journal, settings)
    start, engine = _starting_point(journal, known)
    event_stream.begin(start)
    tail = Replayed(engine, known)
    for turn, body in journal.bodies(start):
        tail.turn(turn, body)
        event_stream.observe(turn, engine.book, engine.book.out)
    event_stream.publish()
    if known[-1].settings != settings:
        _change(journal, engine, known, settings)
    elif engine.settings != settings:
        engine.enforce(settings)  # a start died between noting the change and the snapshot, and no turn came after it
    if tail.first:
        _record_divergence(journal, engine, Divergence(tail.first, tail.turns, tail.why))
    return EngineDriver(engine, journal, journal.turn)


def settings_since(journal: Journal, settings: EngineSettings) -> list[Since]:
    """Which settings were in force when; a fresh journal begins with ``settings``."""
    kept = journal.recall(SETTINGS)
    if kept is None:
        known = [Since(0, settings)]
        journal.remember(SETTINGS, msgspec.json.encode(known))
        return known
    return settings_of(kept)


def settings_of(kept: bytes) -> list[Since]:
    """What the journal keeps under ``SETTINGS``: oldest first, never empty."""
    found = msgspec.json.decode(kept, type=list[Since] | EngineSettings)
    return [Since(0, found)] if isinstance(found, EngineSettings) else found


def _change(journal: Journal, engine: Engine, known: list[Since], settings: EngineSettings) -> None:
    """Settings of the engine have been changed: they hold for the turns to come."""
    engine.enforce(settings)
    journal.remember(SETTINGS, msgspec.json.encode([*known, Since(journal.turn, settings)]))
    journal.snapshot(engine.snapshot())
    text = f"engine settings were changed; the new ones are in force after turn {journal.turn}"
    log.info("%s", text)
    journal.notices.append(text)


def _record_divergence(journal: Journal, engine: Engine, found: Divergence) -> None:
    """Log what happened, keep it for tide doctor, and take a snapshot so that those turns are not replayed again."""
    text = (
        f"{counted(found.turns, 'turn')} from turn {found.first} on {agreeing(found.turns, 'was', 'were')} decided otherwise "
        f"by the version that wrote the journal; what it did was adopted ({found.why}); tide doctor says more"
    )
    log.error("%s", text)
    journal.notices.append(text)
    journal.remember(DIVERGED, msgspec.json.encode(found))
    journal.snapshot(engine.snapshot())


def _starting_point(journal: Journal, known: list[Since]) -> tuple[int, Engine]:
    for snapshot in journal.snapshots():
        try:
            return snapshot.turn, Engine.restore(snapshot.body)
        except (Bug, UsageError, ValueError, TypeError, KeyError, msgspec.MsgspecError) as error:
            text = f"the snapshot of turn {snapshot.turn} cannot be used ({error}); replaying from further back"
            log.warning("%s", text)
            journal.notices.append(text)
    if journal.base:
        raise DamagedJournal(f"no snapshot opens, and turns up to {journal.base} are not held; {REMEDY}", journal.base)
    return 0, Engine(known[0].settings)


class Replayed:
    """Recorded turns fed into ``engine`` again, each under the settings of its time.

    ``first`` is the first turn that went otherwise than recorded, and was adopted as it was; 0: none did.
    """

    def __init__(self, engine: Engine, known: list[Since]) -> None:
        self._engine = engine
        self._changes = {since.turn: since.settings for since in known}
        self.first = self.turns = 0
        self.why = ""

    def turn(self, turn: int, body: bytes) -> StepRecord:
        """Replay one turn. Raises DamagedJournal for another turn's record, MsgspecError for none at all, and Bug when not
        even adopting what was done makes sense."""
        if turn - 1 in self._changes:
            self._engine.enforce(self._changes[turn - 1])
        record = decode(body)
        if record.turn != turn:
            raise DamagedJournal(f"turn {turn} of the journal is missing; {REMEDY}", turn)
        commands = self._engine.step(record.now, record.events)
        why = difference(record, body, commands)
        if why:
            self._adopt_recorded(turn, record, why)
        return record

    def _adopt_recorded(self, turn: int, record: StepRecord, why: str) -> None:
        if not self.first:
            self.first, self.why = turn, why
        self.turns += 1
        adopt(self._engine.book, record.commands, list(self._engine.book.out))
