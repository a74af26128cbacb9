"""Replay: a journal fed into a fresh engine must say again what was said then."""

from __future__ import annotations

from collections.abc import Iterable

from ..base.errors import Bug
from ..engine.engine import Engine
from ..engine.settings import EngineSettings
from .record import TurnRecord, decode, encode


def replay(records: Iterable[bytes], settings: EngineSettings | None = None, engine: Engine | None = None) -> Engine:
    """Feed encoded turns to ``engine`` (default: a fresh one). Raises Bug at the first turn that answers differently."""
    engine = engine or Engine(settings)
    for body in records:
        record = decode(body)
        commands = engine.step(record.now, record.events)
        again = encode(TurnRecord(record.turn, record.now, record.events, commands))
        if again != body:
            raise Bug(
                f"turn {record.turn} replays differently: it was recorded as {len(record.commands)} commands, "
                f"now there are {len(commands)}; was the journal written by another version or policy setting?"
            )
    return engine
