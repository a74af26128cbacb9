"""What journals and snapshots hold keeps the name that it had when it was first stored, whatever the code calls it now."""

from __future__ import annotations

import msgspec
import pytest

from tidewright.drive.replay import same
from tidewright.engine import events as ev
from tidewright.engine.commands import Command, Ended, PlanRequest
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.plan.moves import Move, Suspend
from tidewright.plan.reasons import Blocked, Reason
from tidewright.testing.worldlet import Worldlet

SPEC = JobSpec(command=("true",))


def ended(*labels: str) -> Ended:
    history = tuple((at, label, Code.ADMITTED()) for at, label in enumerate(labels))
    return Ended(1, 8, SPEC, 0, 0, 1, 1, 1, 1, 0, 1, 0, Code.FINISHED(), history)


def test_commands_and_moves() -> None:
    assert msgspec.json.encode(PlanRequest(7)) == b'{"type":"Think","revision":7}'
    assert msgspec.json.decode(b'{"type":"Think","revision":7}', type=Command) == PlanRequest(7)
    assert b'"story":[[0,"QUEUED",' in msgspec.json.encode(ended("QUEUED"))
    assert b'"eager":false' in msgspec.json.encode(Suspend(1, "x", replan=False))
    assert msgspec.json.decode(b'{"type":"Suspend","job":1,"why":"x","eager":false}', type=Move) == Suspend(
        1, "x", False
    )


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("DevicesPromised", Reason.DEVICES_RESERVED),
        ("HomeBusy", Reason.PINNED_NODE_BUSY),
        ("Thinking", Reason.PLANNING),
        ("Behind", Reason.BEHIND),
    ],
)
def test_limits_of_plans(then: str, now: Reason) -> None:
    found = msgspec.json.decode(f'{{"job":1,"reason":"{then}","text":"x"}}'.encode(), type=Blocked)
    assert found.reason is now


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"job":1,"reason":"Nonsense","text":"x"}', type=Blocked)


def test_snapshots() -> None:
    world = Worldlet()
    world.tell(ev.Submit(SPEC))
    image = world.engine.snapshot()
    plain = msgspec.msgpack.decode(image)
    assert {"thinking", "promise_order"} <= plain.keys() and not {"planning", "reservation_order"} & plain.keys()
    assert {"home", "origin", "promised"} <= plain["columns"].keys()
    assert not {"pinned_node", "restore_kind", "reserved"} & plain["columns"].keys()
    assert Engine.restore(image).snapshot() == image


def test_a_history_that_an_earlier_version_recorded_replays() -> None:
    assert same(ended("QUEUED", "PROMISED", "REVOKED"), ended("QUEUED", "RESERVED", "UNRESERVED"))
    assert not same(ended("QUEUED", "PROMISED"), ended("QUEUED", "UNRESERVED"))
    assert not same(ended("RESERVED"), ended("PROMISED"))


def test_settings() -> None:
    stored = msgspec.json.encode(EngineSettings(history_length=0, planning_retry_us=1, suspend_cooldown_us=2))
    assert {b'"story_length":0', b'"think_retry_us":1', b'"shield_us":2'} <= set(stored.strip(b"{}").split(b","))
    assert msgspec.json.decode(stored, type=EngineSettings).history_length == 0
