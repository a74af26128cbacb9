"""Lists of arrays as long as they may be."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tidewright.engine import events as ev
from tidewright.live.api import views
from tidewright.live.api.listing import Query, listing
from tidewright.model.job import ArrayMember, JobSpec
from tidewright.testing.worldlet import Worldlet
from tidewright.wire import api
from tidewright.wire.array_refs import MAX_MEMBERS


def test_the_list_of_a_long_array_is_short_and_costs_a_view_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    world, made = Worldlet(), []
    events = [
        ev.Submit(
            JobSpec(name=f"a[{at}]", command=("x",), array=ArrayMember("a", at, MAX_MEMBERS, 4)), f"o.{at}", "o.0"
        )
        for at in range(MAX_MEMBERS)
    ]
    world.driver.step(0, events)
    real = views.live_job

    def counted(*given: Any, **more: Any) -> api.JobView:
        made.append(given)
        return real(*given, **more)

    monkeypatch.setattr(views, "live_job", counted)
    body = asyncio.run(listing(world.engine.book, None, Query(collapse=True), 1))  # type: ignore[arg-type]
    rows = msgspec.json.decode(body, type=api.JobList).jobs
    assert [(row.state, row.array_waiting) for row in rows] == [("queued", "0-3"), ("held", f"4-{MAX_MEMBERS - 1}")]
    assert len(made) == 2 and len(body) < 10_000
