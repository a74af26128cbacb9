"""Replay: a journal fed into a fresh engine must give the same commands again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..base.errors import Bug
from ..engine.commands import Command
from ..engine.engine import Engine
from ..engine.settings import EngineSettings
from ..model.cause import Cause, Code
from .record import StepRecord, decode, encode, without_environments

_ADDED = ("lost_us", "warning")
"""What commands did not always say and older journals imply; left out of a record where it is zero or empty."""
_RENAMED = {"PROMISED": "RESERVED", "REVOKED": "UNRESERVED"}
"""Words of histories that earlier versions had other names for."""
_SHOWN = 200
"""Characters of each of two commands that differ."""


def replay(records: Iterable[bytes], settings: EngineSettings | None = None, engine: Engine | None = None) -> Engine:
    """Feed encoded steps to ``engine`` (default: a fresh one). Raises Bug at the first that answers differently."""
    engine = engine or Engine(settings)
    for body in records:
        record = decode(body)
        why = difference(record, body, engine.step(record.now, record.events))
        if why:
            raise Bug(
                f"turn {record.turn} replays differently: {why}; "
                "was the journal written by another version or policy setting?"
            )
    return engine


def difference(record: StepRecord, body: bytes, commands: list[Command]) -> str:
    """The first command that is not the one recorded, in one line; empty when all are. ``body`` is the encoded record."""
    if encode(StepRecord(record.turn, record.now, record.events, commands)) == body or same(record.commands, commands):
        return ""
    return _difference(record.commands, commands)


def same(recorded: Any, again: Any) -> bool:
    """Whether two values of commands are the same data. A sentence that an earlier version recorded stands for any cause, and
    a figure that it did not give for any figure."""
    if isinstance(recorded, Cause):
        return isinstance(again, Cause) and (recorded.code is Code.TEXT or recorded == again)
    if isinstance(recorded, list | tuple):
        alike = isinstance(again, list | tuple) and len(again) == len(recorded)
        return alike and all(map(same, recorded, again))
    if not isinstance(recorded, Command):
        return bool(recorded == again or (isinstance(recorded, str) and _RENAMED.get(recorded) == again))
    if type(recorded) is not type(again):
        return False
    pairs = [(name, getattr(recorded, name), getattr(again, name)) for name in recorded.__struct_fields__]
    return all(same(then, now) or (name in _ADDED and not then) for name, then, now in pairs)


def _difference(then: list[Command], now: list[Command]) -> str:
    """The first command that is not the same, in one line."""
    if len(then) != len(now):
        return f"it was recorded with {len(then)} commands, now there are {len(now)}"
    old, new = next((pair for pair in zip(then, now, strict=True) if pair[0] != pair[1]), (then, now))
    # This text reaches logs, notices and reports, where no environment belongs.
    old, new = without_environments([old, new])
    return f"recorded was {repr(old)[:_SHOWN]}, now it is {repr(new)[:_SHOWN]}"
