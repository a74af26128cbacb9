"""From a journal to a running book: the newest snapshot that opens, then every turn since, checked while replayed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from ..base.errors import Bug, DamagedJournal, UsageError
from ..drive.replay import replay
from ..drive.turn import Driver
from ..engine.engine import Engine
from ..engine.settings import EngineSettings
from .hub import Hub
from .store import REMEDY, Journal

log = logging.getLogger(__name__)
SETTINGS = "engine_settings"


def recover(journal: Journal, settings: EngineSettings, hub: Hub) -> Driver:
    """The driver as it was after the last durable turn. ``hub`` hears of the replayed turns too.

    The settings that the journal was begun with stay in force, because its turns only replay under them.
    """
    kept = journal.recall(SETTINGS)
    if kept is None:
        journal.remember(SETTINGS, msgspec.json.encode(settings))
    else:
        begun_with = msgspec.json.decode(kept, type=EngineSettings)
        if begun_with != settings:
            journal.notices.append("engine settings given now differ from those the journal was begun with; those stay")
        settings = begun_with
    start, engine = _starting_point(journal, settings)
    hub.begin(start)
    replay(_observed(journal, start, engine, hub), engine=engine, wording=False)
    hub.publish()
    return Driver(engine, journal, journal.turn)


def _starting_point(journal: Journal, settings: EngineSettings) -> tuple[int, Engine]:
    for snapshot in journal.snapshots():
        try:
            return snapshot.turn, Engine.restore(snapshot.body)
        except (Bug, UsageError, ValueError, TypeError, KeyError, msgspec.MsgspecError) as error:
            text = f"the snapshot of turn {snapshot.turn} cannot be used ({error}); replaying from further back"
            log.warning("%s", text)
            journal.notices.append(text)
    if journal.base:
        raise DamagedJournal(f"no snapshot opens, and turns up to {journal.base} are not held; {REMEDY}", journal.base)
    return 0, Engine(settings)


def _observed(journal: Journal, start: int, engine: Engine, hub: Hub) -> Iterator[bytes]:
    """The turns above ``start``; by the time the next one is asked for, the engine has taken the one before."""
    for turn, body in journal.bodies(start):
        yield body
        hub.observe(turn, engine.book, engine.book.out)
