"""Replay across versions: sentences may change, deeds may not."""

from __future__ import annotations

import msgspec
import pytest

from tidewright.base.errors import Bug
from tidewright.drive.record import TurnRecord, encode
from tidewright.drive.replay import replay
from tidewright.engine import events as ev
from tidewright.engine.commands import Reply
from tidewright.engine.engine import Engine
from tidewright.model.job import JobSpec

EVENTS = [ev.Submit(JobSpec(name="a", command=("x",)), "op-1"), ev.Cancel(99, "op-2")]


def recorded(change: dict[str, object]) -> list[bytes]:
    """One turn, with its last answer (that there is no job 99) changed as if another version had given it."""
    commands = Engine(None).step(5, EVENTS)
    at = max(place for place, command in enumerate(commands) if isinstance(command, Reply))
    commands[at] = msgspec.structs.replace(commands[at], **change)
    return [encode(TurnRecord(1, 5, EVENTS, commands))]


def test_other_sentences_replay_only_without_wording() -> None:
    body = recorded({"error": "no such job as 99"})
    replay(body, wording=False)
    with pytest.raises(Bug, match=r"recorded was .*no such job as 99"):
        replay(body)


def test_other_deeds_never_replay() -> None:
    with pytest.raises(Bug, match="turn 1 replays differently"):
        replay(recorded({"kind": "conflict"}), wording=False)
