"""Who is served first is the policy's own order: what is said agrees with what the policy then does."""

from __future__ import annotations

import random
import re

import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import events as ev
from tidewright.explain.ahead import ahead_of
from tidewright.model.cause import Cause, Code
from tidewright.model.job import State
from tidewright.plan.plan import Plan
from tidewright.plan.render import misused, render
from tidewright.policy.registry import make, policies
from tidewright.testing.causes import within
from tidewright.testing.explainer import explain
from tidewright.testing.worldlet import Worldlet


def queue(policy: str, seed: int) -> tuple[Worldlet, list[int]]:
    """Eight devices held by one job, and single-device jobs that wait for them."""
    dice = random.Random(seed)
    busy = Worldlet(1, 8, planner=make(policy))
    busy.submit(8, tier="premium", expected_us=MINUTE, preempt="none")
    waiting = []
    for _ in range(12):
        tier = dice.choice(("standard", "basic")) if policy == "sla" else "standard"
        waiting.append(busy.submit(8, tier=tier, expected_us=dice.randrange(1, 600) * MINUTE))
        busy.later(dice.randrange(1, 60) * MINUTE // 60)
    return busy, waiting


@pytest.mark.parametrize("policy", sorted(policies.names()))
@pytest.mark.parametrize("seed", range(3))
def test_jobs_start_in_the_order_that_was_said(policy: str, seed: int) -> None:
    busy, waiting = queue(policy, seed)
    for _ in range(4):
        view = busy.engine.view()
        said = {job: ahead_of(view, busy.planner, job) for job in waiting if busy.state(job) is State.QUEUED}
        order = sorted(said, key=lambda job: said[job].count)
        assert [said[job].count for job in order] == list(range(len(order)))
        assert all(said[job].jobs == tuple(order[:at]) for at, job in enumerate(order))
        holder = next(iter(busy.engine.book.allocations))
        busy.tell(ev.Exited(holder, busy.engine.book.jobs[holder].attempt, 0))
        busy.later(0)
        assert next(iter(busy.engine.book.allocations)) == order[0], render(
            explain(busy.engine, busy.planner, order[0]).why
        )


def test_reasons_name_what_the_policy_compares() -> None:
    busy, _ = queue("srtf", 1)
    late = busy.submit(8, expected_us=1000 * HOUR)
    assert ahead_of(busy.engine.view(), busy.planner, late).reasons == (Code.AHEAD_BY_REMAINING(12),)
    why = render(explain(busy.engine, busy.planner, late).why)
    assert "12 with less run time left" in why or "less run time" in why or "8 devices" in why


@pytest.mark.parametrize("policy", sorted(policies.names()))
def test_the_first_is_compared_with_the_job_by_what_puts_it_before(policy: str) -> None:
    """Both sides say the same thing of each, and not the same of both."""
    busy, waiting = queue(policy, 2)
    view, seen = busy.engine.view(), 0
    for job in waiting:
        found = ahead_of(view, busy.planner, job)
        assert (found.first is not None) is bool(found.jobs)
        if found.first is not None:
            first, theirs, mine = found.first.args
            assert found.first.code is Code.FIRST_AHEAD and first == found.jobs[0] and theirs != mine
            assert render(theirs) in render(found.first) and not misused(found.first)
            seen += 1
    assert seen == len(waiting) - 1


@pytest.mark.parametrize(
    ("policy", "first", "second", "code"),
    [
        ("srtf", {"expected_us": HOUR}, {"expected_us": 3 * HOUR}, Code.RUN_TIME_LEFT),
        ("sjf", {"expected_us": HOUR}, {"expected_us": 3 * HOUR}, Code.RUN_TIME_IN_ALL),
        ("srsf", {"expected_us": HOUR}, {"expected_us": 3 * HOUR}, Code.DEVICE_TIME_LEFT),
        ("smallest", {"devices": 2}, {"devices": 8}, Code.DEVICES_ASKED),
        ("sla", {"expected_us": HOUR}, {"expected_us": 3 * HOUR}, Code.WEIGHTED_WORK_LEFT),
        ("fifo", {"expected_us": HOUR}, {"expected_us": HOUR}, Code.SUBMITTED_AGO),
    ],
)
def test_values_are_those_of_the_jobs(policy: str, first: dict[str, int], second: dict[str, int], code: Code) -> None:
    busy = Worldlet(1, 8, planner=make(policy))
    busy.submit(8, expected_us=MINUTE, preempt="none")
    ahead, job = (busy.submit(**{"devices": 8, **asked}) for asked in (first, second))
    found = explain(busy.engine, busy.planner, job)
    assert found.first_ahead is not None and found.first_ahead.args[0] == ahead
    theirs, mine = found.first_ahead.args[1:]
    assert theirs.code is mine.code is code
    values = {
        Code.RUN_TIME_LEFT: (HOUR, 3 * HOUR), Code.RUN_TIME_IN_ALL: (HOUR, 3 * HOUR),
        Code.DEVICE_TIME_LEFT: (8 * HOUR, 24 * HOUR), Code.WEIGHTED_WORK_LEFT: (8 * HOUR, 24 * HOUR),
        Code.DEVICES_ASKED: (2, 8), Code.SUBMITTED_AGO: (0, 0),
    }[code]  # fmt: skip
    assert (theirs.args[0], mine.args[0]) == values


def test_what_is_compared_is_of_the_moment_at_which_it_is_asked_for() -> None:
    """The book is of the last step, two minutes ago."""
    busy = Worldlet(1, 8, planner=make("fifo"))
    for _ in range(3):
        busy.submit(8, preempt="none")
    found = explain(busy.engine, busy.planner, 3, 2 * MINUTE)
    assert found.first_ahead == Code.FIRST_AHEAD(2, *2 * (Code.SUBMITTED_AGO(2 * MINUTE),))


def test_slack_is_of_the_moment_at_which_it_is_asked_for() -> None:
    busy = Worldlet(1, 8, planner=make("sla"))
    busy.submit(8, tier="premium", expected_us=HOUR, preempt="none")
    busy.submit(8, tier="premium", expected_us=HOUR)
    job = busy.submit(8, expected_us=HOUR)

    def slack(now: int) -> int:
        first = explain(busy.engine, busy.planner, job, now).first_ahead
        assert first is not None
        theirs = next(one for one in within(first.args[1]) if one.code is Code.SLACK_LEFT)
        return int(theirs.args[1])  # type: ignore[arg-type]

    assert slack(MINUTE) - slack(3 * MINUTE) == 2 * MINUTE


def test_a_tier_comes_first_by_its_promise() -> None:
    busy = Worldlet(1, 8, planner=make("sla"))
    busy.submit(8, tier="premium", expected_us=MINUTE, preempt="none")
    busy.submit(8, tier="premium", expected_us=HOUR)
    job = busy.submit(8, tier="basic", expected_us=HOUR)
    found = explain(busy.engine, busy.planner, job).first_ahead
    assert found is not None
    assert render(found) == (
        "job 2: premium, 3m09s of slack left (it does not press yet); this job: basic, about 1h00m left"
    )


def test_of_one_tier_what_makes_the_class_is_said_and_not_slack_alone() -> None:
    """The brief job comes first with more slack left than the long one."""
    busy = Worldlet(1, 8, planner=make("sla"))
    busy.submit(8, tier="premium", expected_us=HOUR, preempt="none")
    job = busy.submit(8, expected_us=5 * MINUTE)
    busy.later(2 * MINUTE + 3 * SECOND)
    brief = busy.submit(8, expected_us=20 * SECOND)
    first = explain(busy.engine, busy.planner, job).first_ahead
    assert first is not None and first.args[0] == brief
    theirs, mine = first.args[1:]
    assert isinstance(theirs, Cause) and isinstance(mine, Cause)
    assert theirs.code is mine.code is Code.SERVED_AS
    assert (theirs.args[1], mine.args[1]) == ("brief-pressing", "pressing")
    assert [side.args[0].args[1] // SECOND for side in (theirs, mine)] == [8, 5]  # type: ignore[union-attr, operator]
    assert render(theirs).startswith("standard, ") and render(theirs).endswith(" of slack left (brief, and it presses)")


@pytest.mark.parametrize("seed", range(4))
def test_classes_that_differ_read_differently(seed: int) -> None:
    """Whatever their slack: without any numbers."""
    dice, busy, seen = random.Random(seed), Worldlet(1, 8, planner=make("sla")), 0
    busy.submit(8, tier="premium", expected_us=100 * HOUR, preempt="none")
    for _ in range(20):
        tier = dice.choice(("premium", "standard", "basic"))
        busy.submit(8, tier=tier, expected_us=dice.choice((0, dice.randrange(1, 300) * MINUTE)))
        busy.later(dice.randrange(1, 10) * MINUTE)
    view = busy.engine.view()
    for job in list(busy.engine.book.specs)[1:]:
        first = ahead_of(view, busy.planner, job).first
        sides = first.args[1:] if first is not None else ()
        if any(isinstance(side, Cause) and side.code is Code.SERVED_AS for side in sides):
            theirs, mine = (re.sub(r"\d[\dhms.]*", "", render(side)) for side in sides)
            assert theirs != mine, render(first)
            seen += 1
    assert seen


def test_a_planner_that_does_not_say_its_order_is_said_to_serve_others_first() -> None:
    class Silent:
        name = "silent"

        def plan(self, view) -> Plan:  # type: ignore[no-untyped-def]
            return Plan(view.revision)

    busy = Worldlet(1, 1, planner=Silent())
    busy.submit(1)
    second = busy.submit(1)
    found = explain(busy.engine, busy.planner, second)
    assert found.ahead == 1 and found.order == () and found.first_ahead is None
    assert found.why is not None and found.why.code is Code.BEHIND_JOBS


def test_tiers_of_a_static_split_do_not_wait_for_each_other() -> None:
    busy = Worldlet(4, 8, planner=make("static"))
    for _ in range(5):
        busy.submit(8, tier="basic", placement="any")
    alone = busy.submit(32, tier="premium", placement="any")
    assert ahead_of(busy.engine.view(), busy.planner, alone).count == 0
