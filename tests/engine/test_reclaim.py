"""Services that take back what they lent: how jobs release devices in time, and what follows when one cannot."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from tidewright.base.units import HOUR, MS, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.settings import live_settings
from tidewright.model.job import Level, State
from tidewright.model.service import problems
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet

from .test_services import deploy, replicas, running, scale, service


def lent(deadline_us: int = SECOND, kind: str = "cpu", devices: int = 4) -> Worldlet:
    """A pool of one node with a service of one replica."""
    pool = Worldlet(1, devices, make("sla"), live_settings(check_every=1), full=True, kind=kind)
    deploy(pool, structs.replace(service(1, devices), reclaim_us=deadline_us))
    return pool


def levels(pool: Worldlet, job: int) -> list[tuple[str, Level]]:
    """How a job was suspended and resumed, in order."""
    said = [one for one in pool.said if isinstance(one, (co.SuspendRanks, co.ResumeRanks)) and one.job == job]
    return [(type(one).__name__, Level(one.level)) for one in said]


def test_a_job_whose_image_takes_too_long_is_frozen_and_runs_on_where_it_was() -> None:
    pool = lent()
    gang = pool.submit(3, tier="standard", placement="any")
    pool.later(SECOND)
    assert pool.engine.book.table.save_us[pool.engine.book.table.row[gang]] > SECOND
    scale(pool, 2)
    assert len(running(pool)) == 2 and pool.state(gang) is State.SUSPENDED
    scale(pool, 1)
    assert pool.state(gang) is State.RUNNING
    assert levels(pool, gang) == [("SuspendRanks", Level.FREEZE), ("ResumeRanks", Level.FREEZE)]
    book = pool.engine.book
    row = book.table.row[gang]
    assert (
        book.table.level[row] == Level.FULL and book.table.save_us[row] > SECOND and book.table.pinned_node[row] == -1
    )


@pytest.mark.parametrize(("kind", "deadline_us", "level"), [
    ("cpu", HOUR, Level.FULL), ("h100", SECOND, Level.FULL), ("cpu", SECOND, Level.FREEZE),
])  # fmt: skip
def test_an_image_is_taken_where_there_is_time_or_freezing_would_free_nothing(
    kind: str, deadline_us: int, level: Level
) -> None:
    pool = lent(deadline_us, kind)
    job = pool.submit(3, tier="basic")
    pool.later(90 * SECOND)
    scale(pool, 2)
    assert levels(pool, job) == [("SuspendRanks", level)]


def test_what_an_image_took_is_remembered_through_a_freeze() -> None:
    pool = lent()
    job = pool.submit(3, tier="basic")
    row = pool.engine.book.table.row[job]
    answers = {Level.FULL: 4 * SECOND, Level.FREEZE: 40 * MS}

    def answer(command: Any) -> ev.Event:
        if command.level == Level.REQUEUE:
            return ev.Exited(command.job, command.attempt, 75)
        return ev.Suspended(command.job, command.attempt, answers[command.level], command.serial)

    pool.answers[co.SuspendRanks] = answer
    pool.later(90 * SECOND)
    pool.reply(ev.Hold(job, "hold"), "hold")
    pool.later(SECOND)
    pool.reply(ev.Release(job, "on"), "on")
    pool.later(SECOND)
    scale(pool, 2)
    scale(pool, 1)
    assert [level for name, level in levels(pool, job) if name == "SuspendRanks"] == [Level.FULL, Level.FREEZE]
    assert pool.engine.book.table.save_us[row] == 4 * SECOND


def test_where_one_cannot_be_suspended_the_next_is() -> None:
    pool = lent(devices=3)
    first, second = pool.submit(1, tier="basic"), pool.submit(1, tier="standard")
    pool.later(SECOND)
    taken = pool.answers[co.SuspendRanks]
    assert taken is not None
    pool.answers[co.SuspendRanks] = lambda command: (
        ev.SuspendFailed(command.job, command.attempt, "it is being traced") if command.job == first else taken(command)
    )
    scale(pool, 2)
    assert pool.state(first) is State.RUNNING and pool.state(second) is State.SUSPENDED
    assert len(running(pool)) == 2


def test_a_job_that_keeps_its_devices_starts_once_the_service_needs_no_more() -> None:
    pool = lent()
    job = pool.submit(2, preempt="none")
    pool.later(SECOND)
    assert pool.state(job) is State.QUEUED and running(pool) == replicas(pool)
    deploy(pool, structs.replace(service(1, 2), reclaim_us=SECOND))
    assert pool.state(job) is State.RUNNING
    scale(pool, 2)
    assert len(running(pool)) == 2
    late = pool.submit(1, preempt="none")
    pool.tell(ev.DeleteService("vision", "gone"))
    pool.later(SECOND)
    assert pool.state(late) is State.RUNNING


def test_deadlines_that_are_out_of_bounds_are_named() -> None:
    assert not problems(structs.replace(service(), reclaim_us=SECOND))
    for wrong in (-1, 1, 99 * MS, 2 * HOUR):
        assert "reclaim:" in problems(structs.replace(service(), reclaim_us=wrong))[0]
