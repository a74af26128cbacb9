"""A controller that was first started at a wrong wall clock, ten years ahead, and which has been set right since."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import msgspec
import pytest

from tidewright.app import health
from tidewright.base.units import DAY, HOUR, MINUTE, SECOND
from tidewright.live.controller.clock import Base, _boot_id, _steady_us, _wall_us
from tidewright.model.job import JobSpec
from tidewright.wire import api
from tidewright.wire.client import Client

from .fakes import FakeFabric
from .harness import Running

TEN_YEARS = 3650 * DAY


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory whose clock was taken from the wrong time in this very boot."""
    made = tmp_path / "s"
    made.mkdir(mode=0o700)
    base = Base(_boot_id(), _steady_us(), _wall_us() + TEN_YEARS)
    (made / "clock.json").write_bytes(msgspec.json.encode(base))
    return made


def until(client: Client, job: int, state: str) -> api.JobView:
    for _ in range(1000):
        view = client.job(job)
        if view.state == state:
            return view
        threading.Event().wait(0.01)
    raise AssertionError(f"job {job} is {view.state}, never became {state}: {view.why}")


def recent(*times: int) -> bool:
    return all(abs(one - time.time_ns() // 1000) < HOUR for one in times)


def test_shown_times_and_times_of_day_are_those_of_the_wall_clock(state: Path) -> None:
    with Running(state, FakeFabric()) as server, server.client() as client:
        assert server.controller is not None
        assert recent(client.info().now, client.info().started)
        (job,) = client.submit([JobSpec(command=("sleep", "9"))]).ids
        view = until(client, job, "running")
        assert recent(view.submit, view.start, view.since, *(line.at for line in view.story))
        assert recent(client.jobs().jobs[0].submit, client.why(job).now, client.nodes().now)
        client.suspend(job, time.time_ns() // 1000 + SECOND)
        until(client, job, "held")
        until(client, job, "running")
        client.cancel(job)
        ended = client.wait(job, timeout=10)
        assert ended.final and recent(client.job(job).end)
        found = {finding.what: finding for finding in health.examine(state)[0]}
        assert found["clock"].level == "note" and "ahead of this machine's clock" in found["clock"].text
        rows = [json.loads(line) for line in client.journal()]
    times = [row[1] for row in rows[1:]]
    assert times == sorted(times) and times[0] > time.time_ns() // 1000 + TEN_YEARS - MINUTE, "the journal's only grows"
    with Running(state, FakeFabric()) as server, server.client() as client:
        assert recent(client.job(job).end, client.job(job).submit), "from the journal, after another start"
