"""Forecasts of jobs that are cancelled before they start: a dependency of theirs can no longer be met."""

from __future__ import annotations

import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.explain.forecast import forecast
from tidewright.model.cause import Code
from tidewright.model.job import Dependency
from tidewright.plan.explain import Forecast
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet


@pytest.fixture
def busy() -> Worldlet:
    """A pool whose users are known to estimate run times exactly."""
    pool = Worldlet(1, 8, make("fifo"))
    for _ in range(8):
        job = pool.submit(1, expected_us=MINUTE)
        pool.later(MINUTE, ev.Exited(job, 1, 0))
    return pool


def ask(busy: Worldlet, *jobs: int) -> tuple[Forecast, ...]:
    return forecast(busy.engine.snapshot(), busy.planner, jobs, samples=8)


def cancelled(found: Forecast, first: int) -> bool:
    """Whether a job is cancelled in every future, for ``first``, and starts in none."""
    unmet = found.why == Code.DEPENDENCY_FAILED(first) and found.cancelled is not None
    return unmet and found.cancelled_in == found.samples == 8 and found.start is None and found.end is None


def test_a_job_whose_dependency_will_succeed_does_not_start_after_its_failure(busy: Worldlet) -> None:
    first = busy.submit(1, expected_us=10 * MINUTE)
    (found,) = ask(busy, busy.submit(1, after=(Dependency("afternotok", first),)))
    assert cancelled(found, first)
    assert found.cancelled is not None and abs(found.cancelled.middle - busy.now - 10 * MINUTE) < SECOND


def test_a_job_that_waits_for_the_success_of_one_that_is_being_cancelled(busy: Worldlet) -> None:
    first = busy.submit(1, expected_us=10 * MINUTE)
    after = busy.submit(1, after=(Dependency("afterok", first),))
    busy.answers[co.StopRanks] = lambda command: None
    busy.tell(ev.Cancel(first))
    (found,) = ask(busy, after)
    assert cancelled(found, first)


def test_a_job_that_needs_longer_than_it_may_run_fails(busy: Worldlet) -> None:
    first = busy.submit(1, expected_us=10 * MINUTE, max_duration_us=MINUTE)
    ok = busy.submit(1, after=(Dependency("afterok", first),))
    otherwise = busy.submit(1, after=(Dependency("afternotok", first),))
    limited, then, instead = ask(busy, first, ok, otherwise)
    assert limited.end is not None and limited.end.middle == busy.now + MINUTE
    assert cancelled(then, first)
    assert instead.start is not None and MINUTE <= instead.start.middle - busy.now < 2 * MINUTE


def test_the_end_of_a_job_that_will_run_into_its_limit_is_reckoned_by_the_limit(
    busy: Worldlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewright.explain.forecast._END_TURNS", 0)
    first = busy.submit(8, expected_us=10 * MINUTE)
    limited = busy.submit(1, expected_us=HOUR, max_duration_us=20 * MINUTE)
    (found,) = ask(busy, limited)
    assert found.end is not None and abs(found.end.middle - busy.now - 30 * MINUTE) < 10 * SECOND, first


def test_where_it_is_not_known_whether_a_job_succeeds_the_start_is_that_of_the_other_futures() -> None:
    pool = Worldlet(1, 8, make("fifo"))
    first = pool.submit(1, max_duration_us=10 * MINUTE)
    (found,) = ask(pool, pool.submit(1, after=(Dependency("afterok", first),)))
    assert found.start is not None and found.cancelled is not None and found.end is not None
    assert 0 < found.cancelled_in < found.samples == 8
    assert 0 < found.start.low <= found.start.high < found.cancelled.low == pool.now + 10 * MINUTE
