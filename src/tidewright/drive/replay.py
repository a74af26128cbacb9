"""Replay: a journal fed into a fresh engine must say again what was said then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..base.errors import Bug
from ..engine.commands import Command
from ..engine.engine import Engine
from ..engine.settings import EngineSettings
from .record import TurnRecord, decode, encode, without_environments

_ADDED = ("lost_us", "warning")
"""What commands did not always say and older journals imply; left out of a record where it is zero or empty."""
_SHOWN = 200
"""Characters of each of two commands that differ."""


def replay(
    records: Iterable[bytes],
    settings: EngineSettings | None = None,
    engine: Engine | None = None,
    wording: bool = True,
) -> Engine:
    """Feed encoded turns to ``engine`` (default: a fresh one). Raises Bug at the first turn that answers differently.

    Without ``wording``, sentences may differ: a journal outlives the version whose sentences it holds.
    """
    engine = engine or Engine(settings)
    for body in records:
        record = decode(body)
        why = difference(record, body, engine.step(record.now, record.events), wording)
        if why:
            raise Bug(
                f"turn {record.turn} replays differently: {why}; "
                "was the journal written by another version or policy setting?"
            )
    return engine


def difference(record: TurnRecord, body: bytes, commands: list[Command], wording: bool = False) -> str:
    """The first command that is not the one recorded, in one line; empty when all are. ``body`` is the encoded record."""
    again = encode(TurnRecord(record.turn, record.now, record.events, commands))
    if again == body or (not wording and _same(record.commands, commands)):
        return ""
    return _difference(record.commands, commands)


def _same(recorded: list[Command], commands: list[Command]) -> bool:
    """Whether these are the same deeds, but for figures that the version which wrote the record did not give."""
    then, now = _deeds(recorded), _deeds(commands)
    for old, new in zip(then, now, strict=False):
        for name in _ADDED:
            if name not in old:
                new.pop(name, None)
    return bool(then == now)


def _deeds(commands: list[Command]) -> Any:
    """Commands without their sentences: every text with a space in it, which no id and no name has."""
    return _blanked(msgspec.to_builtins(commands))


def _blanked(value: Any) -> Any:
    if isinstance(value, str):
        return "" if " " in value else value
    if isinstance(value, dict):
        return {key: _blanked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_blanked(item) for item in value]
    return value


def _difference(then: list[Command], now: list[Command]) -> str:
    """The first command that is not the same, in one line."""
    if len(then) != len(now):
        return f"it was recorded with {len(then)} commands, now there are {len(now)}"
    old, new = next((pair for pair in zip(then, now, strict=True) if pair[0] != pair[1]), (then, now))
    # This text reaches logs, notices and reports, where nobody's environment belongs.
    old, new = without_environments([old, new])
    return f"recorded was {repr(old)[:_SHOWN]}, now it is {repr(new)[:_SHOWN]}"
