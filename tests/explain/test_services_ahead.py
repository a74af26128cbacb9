"""Forecasts of pools with services: replicas run on, are made anew in the future too, and say nothing of run times of jobs."""

from __future__ import annotations

from random import Random

import pytest

from tidewright.base.units import DAY, HOUR, MINUTE, SECOND
from tidewright.engine import events as ev
from tidewright.engine.settings import live_settings
from tidewright.explain.draws import arrivals
from tidewright.explain.forecast import forecast
from tidewright.model.job import JobSpec, State
from tidewright.model.service import ServiceSpec, problems
from tidewright.plan.explain import Forecast, Interval
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet


def world(devices: int = 4, policy: str = "sla") -> Worldlet:
    return Worldlet(1, devices, make(policy), live_settings(check_every=1), full=True)


def deploy(pool: Worldlet, count: int, tier: str = "premium", **fields: int) -> None:
    replica = JobSpec(command=("serve",), tier=tier, **fields)  # type: ignore[arg-type]
    spec = ServiceSpec(name="vision", replica=replica, min_replicas=count, max_replicas=count)
    assert pool.reply(ev.DeployService(spec, f"d{pool.now}"), f"d{pool.now}").error is None


def ask(pool: Worldlet, *jobs: int) -> tuple[Forecast, ...]:
    return forecast(pool.engine.snapshot(), pool.planner, jobs, samples=6)


def running(pool: Worldlet) -> list[int]:
    return [job for job in pool.engine.book.specs if pool.state(job) is State.RUNNING]


def test_a_replica_that_is_to_be_made_anew_is_made_in_the_future_too() -> None:
    pool = world(policy="fifo")
    deploy(pool, 3)
    pool.tell(ev.Exited(running(pool)[0], 1, 1))
    job = pool.submit(4, tier="basic", expected_us=HOUR)
    (found,) = ask(pool, job)
    assert found.start is not None and found.start.middle < 0, "three of four devices are the service's"


def test_an_update_goes_on_in_the_future() -> None:
    pool = world()
    deploy(pool, 3)
    pool.later(SECOND)
    deploy(pool, 3, gpu_share=500)
    pool.later(SECOND)
    (found, *_) = ask(pool, *running(pool)[:1])
    assert found.end is not None


def test_replicas_run_on() -> None:
    pool = world()
    deploy(pool, 2)
    pool.later(HOUR)
    for found in ask(pool, *running(pool)):
        assert found.start is None and found.end == Interval(-1, -1, -1)


def test_what_becomes_of_replicas_says_nothing_of_jobs() -> None:
    pool = world()
    deploy(pool, 1)
    for _ in range(6):
        (job,) = running(pool)
        pool.later(20 * MINUTE, ev.Exited(job, 1, 1))
        pool.later(10 * MINUTE)
    history = pool.engine.book.run_times
    assert not history.groups and not history.recent
    assert next(arrivals(pool.engine.book, Random(1)), None) is None


@pytest.mark.parametrize("field", ["max_duration_us", "expected_us", "deadline_us"])
def test_a_replica_has_no_end_to_be_foreseen(field: str) -> None:
    replica = JobSpec(command=("serve",), **{field: DAY})
    (problem,) = problems(ServiceSpec(name="vision", replica=replica))
    assert problem.startswith(field.removesuffix("_us"))
