"""The controller forecasts starts of waiting jobs for itself, now and then, and says how often that held."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidewright.base.errors import Conflict, UsageError
from tidewright.base.units import SECOND
from tidewright.engine import events as ev
from tidewright.live.controller import forecast_probe
from tidewright.live.controller.forecast_probe import WAITED_US, ForecastProbe
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.plan.explain import Forecast, Interval
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet
from tidewright.wire.client import Client

from .fakes import FakeFabric
from .test_processes import Site

SAID = Interval(1, 2, 3)


class Asked:
    """An explainer that notes its questions, and a loop that notes what is posted to it."""

    def __init__(self, world: Worldlet, said: Any = SAID) -> None:
        self.world, self.said = world, said
        self.jobs: list[int] = []
        self.posted: list[ev.Event] = []
        self.loop = SimpleNamespace(
            driver=world.driver, clock=SimpleNamespace(now=lambda: world.now), journal_error="", low="", rejected={},
            post=self.posted.append,
        )  # fmt: skip

    async def forecast_when_idle(self, engine: object, job: int, now: int) -> Forecast | None:
        self.jobs.append(job)
        if isinstance(self.said, Exception):
            raise self.said
        return self.said if isinstance(self.said, Forecast | None) else Forecast(job=job, start=self.said)

    def ask(self, seed: int = 0, tell: bool = True) -> None:
        asyncio.run(ForecastProbe(self.loop, self, dice=Random(seed)).ask())  # type: ignore[arg-type]
        if tell and self.posted:
            self.world.tell(self.posted[-1])


@pytest.fixture
def busy() -> Worldlet:
    """Six jobs on four devices: five wait."""
    world = Worldlet(1, 4, planner=make("fifo"))
    for _ in range(6):
        world.submit(4)
    world.later(WAITED_US)
    return world


def test_each_waiting_job_is_asked_of_once(busy: Worldlet) -> None:
    asked = Asked(busy)
    for seed in range(20):
        asked.ask(seed)
    assert sorted(asked.jobs) == [2, 3, 4, 5, 6]
    assert asked.posted[0] == ev.ForecastMade(asked.jobs[0], busy.now, 1, 2, 3)


def test_jobs_are_drawn_from_all_that_wait(busy: Worldlet) -> None:
    asked = Asked(busy)
    for seed in range(60):
        asked.ask(seed, tell=False)
    assert set(asked.jobs) == {2, 3, 4, 5, 6}


def test_nothing_is_asked_while_nothing_has_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Worldlet(1, 4, planner=make("fifo"))
    asked = Asked(world)
    monkeypatch.setattr(world.engine, "snapshot", lambda: pytest.fail("a snapshot for no question"))
    asked.ask()
    for _ in range(2):
        world.submit(4)
    world.later(WAITED_US - 1)
    asked.ask()
    world.tell(ev.Hold(2, "h"))
    world.later(WAITED_US)
    asked.ask()
    assert not asked.jobs


def test_nothing_is_asked_while_the_disk_is_full_nor_of_jobs_that_were_rejected(busy: Worldlet) -> None:
    asked = Asked(busy)
    for name in ("journal_error", "low"):
        setattr(asked.loop, name, "full")
        asked.ask()
        setattr(asked.loop, name, "")
    asked.loop.rejected = dict.fromkeys(range(2, 7), True)
    asked.ask()
    assert not asked.jobs


@pytest.mark.parametrize(
    "said",
    [
        None, UsageError("no answer within 30 s"), Interval(5, -1, -1), Interval(-1, -1, -1),
        Forecast(job=2, why=Code.HELD_BY_USER()),
    ],
)  # fmt: skip
def test_without_an_interval_nothing_is_recorded(busy: Worldlet, said: object) -> None:
    asked = Asked(busy, said)
    asked.ask()
    assert asked.jobs and not asked.posted


def test_the_pause_grows_with_what_answers_take_and_none_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times, pauses = iter([0.0, 0.1, 10.0, 12.0]), []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    async def ask() -> None:
        raise ValueError("a mistake in one question ends no other")

    monkeypatch.setattr(forecast_probe.asyncio, "sleep", sleep)
    monkeypatch.setattr(forecast_probe.time, "monotonic", lambda: next(times))
    probe = ForecastProbe(None, None, 15 * SECOND)  # type: ignore[arg-type]
    monkeypatch.setattr(probe, "ask", ask)
    coroutine = probe.run()
    with pytest.raises(asyncio.CancelledError):
        coroutine.send(None)
    assert pauses == [15, 15, 40]
    with pytest.raises(StopIteration):
        ForecastProbe(None, None, 0).run().send(None)  # type: ignore[arg-type]


# -- a controller -----------------------------------------------------------------------------------------------------------


def outcomes(client: Client) -> dict[str, float]:
    """The counters, by outcome."""
    families = text_string_to_metric_families(client.metrics())
    (found,) = [family for family in families if family.name == "tidewright_forecast_starts"]
    assert found.type == "counter"
    return {sample.labels["outcome"]: sample.value for sample in found.samples}


def forecasts(client: Client) -> int:
    """How many stand in the journal."""
    return b"".join(client.journal()).count(b'"ForecastMade"')


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "never"
        time.sleep(0.02)


def test_a_controller_counts_says_so_and_goes_on_after_a_restart(
    running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_probe, "WAITED_US", 0)
    monkeypatch.setattr(forecast_probe, "_PAUSE_RATIO", 0)
    fabric = FakeFabric(devices=1)
    with running(fabric, forecast_check_us=20_000) as server, server.client() as client:
        assert not any(outcomes(client).values())
        ids = client.submit([JobSpec(name=f"j{n}", command=("sleep", "9")) for n in range(13)]).ids
        until(lambda: forecasts(client) == 12)
        for done, job in enumerate(ids[:10], 1):
            assert client.eta(ids[-1]).calibration is None and client.top().calibration is None
            until(lambda job=job: (job, 1) in fabric.jobs)  # it counts as started before its launch is asked for
            server.soon(lambda job=job: fabric.finish((job, 1), 0))
            until(lambda done=done: sum(outcomes(client).values()) == done)
        counted, said = outcomes(client), client.eta(ids[-1]).calibration
        assert said is not None and said == client.top().calibration
        assert said.starts == 10
        assert {"earlier": said.earlier, "inside": said.inside, "later": said.later} == counted
        client.cancel(ids[-1])
    with running(FakeFabric(devices=1)) as server, server.client() as client:
        assert outcomes(client) == counted and client.top().calibration == said


def test_it_can_be_turned_off(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast_probe, "WAITED_US", 0)
    with running(FakeFabric(devices=1), forecast_check_us=0) as server, server.client() as client:
        client.submit([JobSpec(command=("sleep", "9")) for _ in range(2)])
        time.sleep(0.5)
        assert forecasts(client) == 0


@pytest.mark.processes
def test_real_jobs_on_cpu_slots_are_counted_and_the_counts_outlive_a_kill(tmp_path: Path) -> None:
    """As a user starts it, but more often: config.yaml says how often it asks."""
    site = Site(tmp_path / "state")
    site.state.mkdir()
    (site.state / "config.yaml").write_text("forecast_check: 200ms\n")
    (site.state / "config.yaml").chmod(0o600)
    site.up()
    try:
        with site.client() as client:
            ids = client.submit([JobSpec(name=f"j{n}", command=("sleep", "3")) for n in range(10)]).ids
            site.until(lambda: sum(outcomes(client).values()) >= 1, 120)
            before = outcomes(client)
        site.kill("controller")
        site.up()
        with site.client() as client:
            after = outcomes(client)
            assert sum(after.values()) >= 1 and all(after[name] >= before[name] for name in before)
            # Whether more come is a question of time: after an answer that took long, the controller waits twenty times as long.
            for job in ids:
                with contextlib.suppress(Conflict):  # it has ended
                    client.cancel(job)
    finally:
        site.down()
