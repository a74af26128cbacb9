"""Causes as the API shows them: code, arguments by name, and words."""

from __future__ import annotations

import msgspec

from tidewright.base.units import SECOND
from tidewright.engine import events as ev
from tidewright.live.api import views
from tidewright.live.api.cause_views import cause_view
from tidewright.model.cause import Code, reported
from tidewright.model.job import JobSpec
from tidewright.model.node import Part
from tidewright.plan.moves import Start
from tidewright.testing.worldlet import Worldlet
from tidewright.wire import api


def plain(view: api.CauseView) -> dict:
    return msgspec.json.decode(msgspec.json.encode(view))


def test_arguments_have_names_and_causes_among_them_are_shown_alike() -> None:
    why = Code.WITH(Code.NODE_DOWN("n1", reported("power")), Code.ROLLED_BACK(41 * SECOND, 3))
    assert plain(cause_view(why)) == {
        "code": "With",
        "args": {
            "first": {
                "code": "NodeDown",
                "args": {"node": "n1", "why": {"code": "Reported", "args": {"text": "power"}, "text": "power"}},
                "text": "node n1 is down: power",
            },
            "second": {
                "code": "RolledBack",
                "args": {"lost": 41 * SECOND, "serial": 3},
                "text": "rolled back 41s to image 3",
            },
        },
        "text": "node n1 is down: power; rolled back 41s to image 3",
    }


def test_lists_are_lists() -> None:
    assert plain(cause_view(Code.WAITS_FOR_JOBS((3, 4))))["args"] == {"jobs": [3, 4]}
    shown = plain(cause_view(Code.ALL_UNSCHEDULABLE((Code.NODE_BECAUSE("n1", Code.DRAINED()),))))
    assert shown["args"]["nodes"][0]["args"]["why"] == {"code": "Drained", "args": {}, "text": "drained by an operator"}


def test_what_a_view_says_as_data_it_says_in_words() -> None:
    world = Worldlet(1, 1)
    runs, waits = world.submit(1), world.submit(1)
    world.plan(Start(runs, (Part(0, 1),), "its turn"))
    world.tell(ev.NodeDrain("n0", True))
    shown = [views.live_job(world.engine.book, job, world.now, full=True) for job in (runs, waits)]
    world.tell(ev.Exited(runs, 1, 3))
    shown.append(views.ended_job(world.ended[runs], full=True))
    for view in shown:
        assert view.cause is not None and view.cause.text == view.why
        assert all(line.cause is not None and line.cause.text == line.why for line in view.story)
    assert shown[0].story[2].cause == api.CauseView("Text", {"text": "its turn"}, "its turn"), "a planner's own words"
    assert shown[1].cause == api.CauseView("WaitsForDevices", {}, "waits for devices")
    assert shown[2].cause == api.CauseView("ExitCode", {"code": 3}, "exit code 3")
    (node,) = views.nodes(world.engine.book)
    assert (node.state, node.cause) == ("draining", cause_view(Code.DRAINED()))


def test_a_request_that_is_refused_says_so_with_its_arguments() -> None:
    world = Worldlet(1, 2)
    reply = world.reply(ev.Submit(JobSpec(command=("x",), ranks=3, devices=3), "a"), "a")
    assert reply.error is not None
    assert plain(cause_view(reply.error))["args"] == {"count": 3, "types": [], "placement": "consolidate", "most": 2}
