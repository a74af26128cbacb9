"""Replay compares data: codes, arguments and deeds. What an earlier version said in a sentence stands for any cause."""

from __future__ import annotations

import msgspec
import pytest

from tidewright.base.errors import Bug
from tidewright.drive.record import StepRecord, decode, encode
from tidewright.drive.replay import replay
from tidewright.engine import events as ev
from tidewright.engine.commands import Reply
from tidewright.engine.engine import Engine
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec

EVENTS = [ev.Submit(JobSpec(name="a", command=("x",)), "op-1"), ev.Cancel(99, "op-2")]


def recorded(change: dict[str, object]) -> list[bytes]:
    """One turn, with its last answer (that there is no job 99) changed as if another version had given it."""
    commands = Engine(None).step(5, EVENTS)
    at = max(place for place, command in enumerate(commands) if isinstance(command, Reply))
    commands[at] = msgspec.structs.replace(commands[at], **change)
    return [encode(StepRecord(1, 5, EVENTS, commands))]


def test_a_sentence_of_an_earlier_version_stands_for_any_cause() -> None:
    replay(recorded({"error": Code.TEXT("no such job as 99", "look again")}))


@pytest.mark.parametrize(
    "change",
    [
        {"error": Code.NO_SUCH_JOB(98)},
        {"error": Code.BEING_STOPPED(99)},
        {"error": None},
        {"kind": "conflict"},
        {"job": 1},
    ],
)
def test_other_codes_arguments_and_deeds_never_replay(change: dict[str, object]) -> None:
    with pytest.raises(Bug, match="turn 1 replays differently"):
        replay(recorded(change))


def test_a_sentence_is_no_excuse_for_another_deed() -> None:
    with pytest.raises(Bug, match="turn 1 replays differently"):
        replay(recorded({"error": Code.TEXT("no such job as 99"), "kind": "conflict"}))


def test_a_recorded_refusal_in_words_is_read_with_its_remedy() -> None:
    """As turns were written before causes were data."""
    body = recorded({})[0].replace(
        b'"error":{"code":"NoSuchJob","args":[99]}', b'"error":"no job 99","remedy":"list jobs"'
    )
    assert b'"error":"no job 99"' in body
    (answer,) = [one for one in decode(body).commands if isinstance(one, Reply) and one.error]
    assert answer.error == Code.TEXT("no job 99", "list jobs")
    replay([body])
