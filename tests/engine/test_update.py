"""Changes of jobs that are there: all that follows from a spec follows, in every state, and the history says what was changed."""

from __future__ import annotations

from typing import Any

import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import events as ev
from tidewright.engine.check import check_all
from tidewright.engine.commands import Reply
from tidewright.engine.engine import Engine
from tidewright.engine.settings import live_settings
from tidewright.engine.tier_demand import Demand
from tidewright.live.api.views import ended_job, live_job
from tidewright.model.cause import Cause, Code
from tidewright.model.job import State
from tidewright.model.node import Part
from tidewright.model.service import ServiceSpec
from tidewright.model.spec_changes import SpecChanges
from tidewright.plan.moves import Start, Suspend
from tidewright.policy.promise import Class, promises
from tidewright.testing.worldlet import Worldlet

ONE = (Part(0, 1),)


def world(**settings) -> Worldlet:
    return Worldlet(1, 4, settings=live_settings(check_every=1, **settings), kind="cpu", full=True)


def running(pool: Worldlet, **fields) -> int:
    job = pool.submit(**{"checkpoint_us": -1, **fields})
    pool.plan(Start(job, ONE, "test"))
    assert pool.state(job) is State.RUNNING
    return job


def ask(pool: Worldlet, job: int, **changes: Any) -> Reply:
    op_id = f"u{len(pool.said)}"
    return pool.reply(ev.Update(job, SpecChanges(**changes), op_id, "ada"), op_id)


def refusal(pool: Worldlet, job: int, **changes: Any) -> Cause:
    before = pool.engine.book.specs[job]
    error = ask(pool, job, **changes).error
    assert error is not None and pool.engine.book.specs[job] == before
    return error


def column(pool: Worldlet, job: int, name: str) -> Any:
    table = pool.engine.book.table
    return getattr(table, name).item(table.row[job])


def test_columns_sums_and_history_follow_and_the_place_in_the_queue_stays() -> None:
    pool = world()
    job = pool.submit(2, name="a", tier="basic", team="x")
    pool.later(MINUTE)
    reply = ask(
        pool, job, name="b", team="y", tier="premium", weight=2.5, deadline_us=HOUR, max_duration_us=2 * HOUR,
        expected_us=MINUTE, retries=3,
    )  # fmt: skip
    assert reply.error is None and reply.warning is None
    book = pool.engine.book
    spec = book.specs[job]
    assert (spec.name, spec.team, spec.tier, spec.weight, spec.retries) == ("b", "y", "premium", 2.5, 3)
    assert spec.deadline_us == HOUR + MINUTE, "it is counted from the change, and kept from submission"
    assert column(pool, job, "deadline") == pool.now + HOUR and column(pool, job, "submit") == pool.now - MINUTE
    assert column(pool, job, "limit") == 2 * HOUR and column(pool, job, "team") == book.teams["y"]
    assert book.tier_demand.at_least(2) == Demand(2, 0, 0, 0)
    (said,) = [why for _, label, why in book.jobs[job].history if label == "CHANGED"]
    assert said.code is Code.CHANGED_BY and said.args[0] == "ada"
    assert said.args[1] == (
        Code.TEXT_CHANGED("name", "a", "b"), Code.TEXT_CHANGED("team", "x", "y"), Code.TEXT_CHANGED("tier", "basic", "premium"),
        Code.TEXT_CHANGED("weight", "1", "2.5"), Code.TEXT_CHANGED("retries", "0", "3"),
        Code.TIME_CHANGED("max_duration_us", 0, 2 * HOUR), Code.TIME_CHANGED("deadline_us", 0, HOUR + MINUTE),
        Code.TIME_CHANGED("expected_us", 0, MINUTE),
    )  # fmt: skip
    assert Engine.restore(pool.engine.snapshot()).snapshot() == pool.engine.snapshot()
    check_all(book)


def test_the_same_values_again_change_nothing_and_the_same_call_is_answered_once() -> None:
    pool = world()
    job = pool.submit(tier="basic")
    lines = len(pool.engine.book.jobs[job].history)
    assert ask(pool, job, tier="basic").error is None
    assert len(pool.engine.book.jobs[job].history) == lines
    event = ev.Update(job, SpecChanges(limit_by_us=MINUTE), "same", "ada")
    ask(pool, job, max_duration_us=HOUR)
    assert pool.reply(event, "same") == pool.reply(event, "same")
    assert pool.engine.book.specs[job].max_duration_us == HOUR + MINUTE


def test_a_limit_is_extended_and_shortened_while_the_job_runs() -> None:
    pool = world()
    longer = running(pool, max_duration_us=10 * MINUTE)
    pool.later(9 * MINUTE)
    assert ask(pool, longer, limit_by_us=5 * MINUTE).error is None
    pool.later(5 * MINUTE)
    assert pool.state(longer) is State.RUNNING, "the timer of the old limit does nothing"
    assert ask(pool, longer, limit_by_us=-30 * SECOND).error is None
    pool.later(31 * SECOND)
    assert pool.state(longer) is State.TIMEOUT and pool.ended[longer].end == 14 * MINUTE + 30 * SECOND


def test_a_job_gets_a_limit_that_had_none_and_earlier_runs_count() -> None:
    pool = world()
    job = running(pool)
    pool.later(10 * MINUTE)
    pool.plan(Suspend(job, "x"))
    pool.later(HOUR)
    assert pool.state(job) is State.SUSPENDED
    assert ask(pool, job, max_duration_us=20 * MINUTE).error is None
    assert pool.engine.book.jobs[job].run_time_used_us == 10 * MINUTE
    assert ask(pool, job, max_duration_us=0).error is None
    reply = ask(pool, job, max_duration_us=5 * MINUTE)
    assert reply.warning == Code.PAST_ITS_LIMIT(10 * MINUTE, 5 * MINUTE)
    assert pool.state(job) is State.TIMEOUT


def test_a_limit_that_is_over_ends_a_running_job_at_once() -> None:
    pool = world()
    job = running(pool, max_duration_us=HOUR)
    pool.later(10 * MINUTE)
    assert ask(pool, job, max_duration_us=10 * MINUTE).warning == Code.PAST_ITS_LIMIT(10 * MINUTE, 10 * MINUTE)
    assert pool.state(job) is State.TIMEOUT and pool.ended[job].end == pool.now


def test_what_is_not_possible_is_refused_with_the_reason() -> None:
    pool = world()
    job = pool.submit(name="a")
    assert refusal(pool, job, limit_by_us=HOUR) == Code.NO_LIMIT(job)
    ask(pool, job, max_duration_us=HOUR)
    assert refusal(pool, job, limit_by_us=-HOUR) == Code.LIMIT_TOO_SHORT(job, HOUR, HOUR)
    for changes in (
        {"weight": 0.0},
        {"name": "12"},
        {"deadline_us": -1},
        {"expected_us": -5},
        {"retries": 2000},
        {"team": ""},
    ):
        assert refusal(pool, job, **changes).code is Code.CHANGES_WRONG, changes
    shared = pool.submit(gpu_share=500, share_class="be", tier="basic")
    assert refusal(pool, shared, tier="premium").code is Code.CHANGES_WRONG
    pool.tell(ev.Cancel(job))
    assert ask(pool, job, tier="basic").error == Code.ENDED_ALREADY(job, "CANCELLED")
    assert ask(pool, 99, tier="basic").error == Code.NO_SUCH_JOB(99)


def test_a_job_on_its_way_out_and_a_replica_are_not_changed() -> None:
    pool = world()
    job = running(pool)
    pool.obey = False
    pool.tell(ev.Cancel(job))
    assert refusal(pool, job, tier="basic") == Code.ENDING(job)
    pool.tell(
        ev.DeployService(ServiceSpec(name="web", replica=pool.engine.book.specs[job], min_replicas=1, max_replicas=1))
    )
    (replica,) = pool.engine.book.services.records["web"].replicas
    assert refusal(pool, replica, tier="basic") == Code.IS_REPLICA(replica, "web")


def test_what_files_of_an_attempt_depend_on_stays_once_it_has_begun() -> None:
    pool = world()
    job = running(pool, team="x", output="%x.log")
    assert refusal(pool, job, team="y") == Code.TEAM_HAS_IMAGES(job, "x")
    assert refusal(pool, job, name="b") == Code.NAME_IN_OUTPUT(job)
    assert pool.reply(ev.Requeue(job, "q", "ada", hold=True), "q").error is None
    assert ask(pool, job, team="y").error is None


def test_a_raised_tier_warns_beyond_the_pool_as_a_submission_does() -> None:
    pool = world()
    pool.submit(4, tier="premium")
    job = pool.submit(4, tier="basic")
    assert ask(pool, job, tier="premium").warning == Code.OVERSUBSCRIBED("premium", 8000, 4, 500)
    assert ask(pool, job, tier="basic").warning is None


def test_a_new_tier_promises_from_the_change_on_and_the_old_promise_stays_owed() -> None:
    pool = world()
    job = pool.submit(tier="basic", expected_us=10 * HOUR)
    pool.later(10 * HOUR)
    ask(pool, job, tier="premium")
    book = pool.engine.book
    assert column(pool, job, "waived") == 10 * HOUR, "while it was basic, nothing was promised"
    judged = promises(pool.engine.view(), 0.9, HOUR)
    assert judged.cls[book.table.row[job]] == Class.PREMIUM
    assert live_job(book, job, pool.now).target == 0.0
    pool.later(10 * HOUR)
    assert live_job(book, job, pool.now).target == pytest.approx(0.95 / 2)
    assert promises(pool.engine.view(), 0.9, HOUR).cls[book.table.row[job]] == Class.PREMIUM_LATE
    ask(pool, job, tier="standard")
    owed = round(0.95 * 10 * HOUR)
    assert column(pool, job, "waived") == 20 * HOUR - round(owed / 0.70), (
        "ten hours of a premium promise are still owed"
    )
    pool.tell(ev.Cancel(job))
    assert pool.ended[job].promised_us == owed
    assert ended_job(pool.ended[job]).target == pytest.approx(0.95 / 2)


def test_there_and_back_at_once_leaves_the_promise_as_it_was() -> None:
    pool = world()
    job = pool.submit(tier="standard")
    pool.later(HOUR)
    ask(pool, job, tier="premium")
    ask(pool, job, tier="standard")
    assert column(pool, job, "waived") == 0 and live_job(pool.engine.book, job, pool.now).target == pytest.approx(0.7)


def test_an_estimate_takes_the_place_of_what_similar_jobs_took() -> None:
    pool = world()
    for _ in range(4):
        job = running(pool, name="t", user="u")
        pool.later(10 * MINUTE, ev.Exited(job, 1, 0))
    job = pool.submit(name="t", user="u")
    assert column(pool, job, "predicted") > 0
    ask(pool, job, expected_us=HOUR)
    assert (column(pool, job, "predicted"), column(pool, job, "expected")) == (0, HOUR)
    ask(pool, job, expected_us=0)
    assert column(pool, job, "predicted") > 0
