"""How many ranks may take turns on one device: refused at submit and at scale, with what would be accepted."""

from __future__ import annotations

import pytest

from tidewright.engine import events as ev
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.model.node import Part
from tidewright.plan.moves import Start
from tidewright.plan.render import remedy
from tidewright.testing.worldlet import Worldlet


def pool() -> Worldlet:
    return Worldlet(2, 2, settings=live_settings(check_every=1), kind="cpu", full=True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ranks": 600}, Code.TOO_CROWDED(600, 1, 16, 40, 16)),
        ({"ranks": 34, "devices": 2}, Code.TOO_CROWDED(34, 2, 16, 17, 32)),
        ({"ranks": 64, "devices": 4, "min_devices": 1}, Code.TOO_CROWDED(64, 1, 16, 4, 16)),
    ],
)
def test_too_many_ranks_for_a_device_are_refused_at_submit(fields, why) -> None:
    reply = pool().reply(ev.Submit(JobSpec(command=("true",), **fields), "op"), "op")
    assert (reply.kind, reply.error) == ("usage", why)
    assert "engine.max_ranks_per_device" in remedy(reply.error)


def test_as_many_ranks_as_allowed_are_accepted_and_the_limit_is_a_setting() -> None:
    assert pool().submit(2, ranks=32)
    wider = Worldlet(2, 2, settings=live_settings(check_every=1, max_ranks_per_device=600))
    assert wider.submit(1, ranks=600)
    assert Worldlet(settings=EngineSettings(check_every=1)).submit(1, ranks=600)  # simulations have no limit


def test_a_job_is_not_scaled_down_beyond_the_limit() -> None:
    world = pool()
    job = world.submit(4, ranks=32)
    world.plan(Start(job, (Part(0, 3), Part(1, 3)), "test"))
    refused = world.reply(ev.Scale(job, 1, "k"), "k")
    assert refused.kind == "usage" and refused.error == Code.TOO_CROWDED(32, 1, 16, 2, 16)
    assert not world.reply(ev.Scale(job, 2, "l"), "l").error
