"""Forecasts of pools with jobs that do not end by themselves, or are on their way out."""

from __future__ import annotations

from tidewright.base.units import MINUTE, SECOND
from tidewright.explain.forecast import forecast
from tidewright.plan.explain import Forecast, Interval
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet

LATER_THAN_LOOKED_AT = Interval(-1, -1, -1)


def pool(devices: int = 4, policy: str = "fifo") -> Worldlet:
    return Worldlet(1, devices, make(policy))


def ask(busy: Worldlet, *jobs: int, looks: int = 1 << 60) -> tuple[Forecast, ...]:
    """``looks``: how often it may ask whether it is to end."""
    asked = iter(range(looks))
    return forecast(busy.engine.snapshot(), busy.planner, jobs, lambda: next(asked, -1) < 0, samples=8)


def test_a_device_runtime_runs_on() -> None:
    busy = pool()
    runtime = busy.submit(2, kind="runtime", name="shared")
    waits = busy.submit(4, expected_us=MINUTE)
    busy.later(SECOND)
    ends, starts = ask(busy, runtime, waits)
    assert ends.end == LATER_THAN_LOOKED_AT
    assert starts.start == LATER_THAN_LOOKED_AT
