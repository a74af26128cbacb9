"""What is new of a job, and for whom."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.model.notify import KINDS, Notify
from tidewright.notify.news import (
    MembersSeen,
    SeenJob,
    breach,
    breaks_by_forecast,
    first_seen,
    headline,
    news,
    of_array,
    wanted,
)
from tidewright.wire.answers import EtaView
from tidewright.wire.api import JobView
from tidewright.wire.calls.notify import NotifyReply
from tidewright.wire.job_parts import TimeInterval

T0 = 1_700_000_000 * SECOND


def reply(events: tuple[str, ...] = KINDS, deadline: int = 0, **job: Any) -> NotifyReply:
    view = JobView(**{"id": 7, "name": "train", "state": "running", "submit": T0, "attempt": 1, **job})
    return NotifyReply(job=view, notify=Notify(events, mail=("ann",)), deadline=deadline)


def follow(*replies: NotifyReply, every: int = 2 * MINUTE) -> list[str]:
    seen, found, now = first_seen(replies[0]), [], T0
    for one in replies:
        now += every
        seen, kinds = news(seen, one, now)
        found += wanted(kinds, one)
        assert news(seen, one, now)[1] == (), "what was said is not said again"
    return found


def test_a_job_from_its_beginning_to_its_end() -> None:
    waiting = reply(state="queued", attempt=0)
    runs = reply(start=T0 + SECOND)
    preempted = reply(start=T0 + SECOND, state="suspended", preemptions=2)
    again = reply(start=T0 + SECOND, attempt=2, preemptions=2)
    done = reply(start=T0 + SECOND, attempt=2, preemptions=2, state="completed", end=T0 + HOUR)
    assert follow(waiting, runs, preempted, again, done) == ["begin", "preempt", "requeue", "end"]
    assert follow(done) == ["begin", "preempt", "end"], "also where all of it was missed"


@pytest.mark.parametrize(("state", "kind"), [("failed", "fail"), ("timeout", "fail"), ("cancelled", "end")])
def test_an_end_that_is_a_failure_is_said_once(state: str, kind: str) -> None:
    assert follow(reply(state=state, end=T0 + HOUR)) == [kind]
    assert follow(reply(("end",), state=state, end=T0 + HOUR)) == ["end"]
    assert follow(reply(("fail",), state=state, end=T0 + HOUR)) == (["fail"] if kind == "fail" else [])


def test_many_preemptions_are_said_once_a_minute_and_none_is_left_out() -> None:
    views = [reply(preemptions=number) for number in (1, 2, 3)]
    assert follow(*views, every=10 * SECOND) == ["preempt"]
    assert follow(*views, views[-1], every=50 * SECOND) == ["preempt", "preempt"]


def test_a_promise_is_broken_after_a_minute_below_it_at_a_deadline_or_at_the_end() -> None:
    below = reply(start=T0, fraction=0.5, target=0.7)
    well = reply(start=T0, fraction=0.9, target=0.7)
    assert follow(below, well, below, every=10 * SECOND) == ["begin"]
    assert follow(below, below, below, every=40 * SECOND) == ["begin", "breach"]
    assert follow(replace(well, deadline=T0 + MINUTE)) == ["begin", "breach"]
    ended = reply(start=T0, fraction=0.5, target=0.7, state="completed", end=T0 + HOUR)
    assert follow(ended, every=SECOND) == ["begin", "breach", "end"]
    short = reply(start=T0, fraction=0.5, target=0.7, state="completed", end=T0 + SECOND)
    assert follow(short, every=SECOND) == ["begin", "end"]
    cancelled = reply(start=T0, fraction=0.5, target=0.7, state="cancelled", end=T0 + SECOND)
    assert follow(cancelled) == ["begin", "end"]


def test_a_forecast_breaks_a_deadline_or_a_fraction() -> None:
    def eta(start: int, end: int) -> EtaView:
        return EtaView(
            job=7, name="train", state="queued", now=T0 + MINUTE,
            starts=TimeInterval(start, start, start), ends=TimeInterval(end, end, end),
        )  # fmt: skip

    waits = reply(state="queued", target=0.95)
    assert "50%" in breaks_by_forecast(waits, eta(T0 + HOUR, T0 + 2 * HOUR))
    assert not breaks_by_forecast(waits, eta(T0 + MINUTE, T0 + 2 * HOUR))
    late = breaks_by_forecast(replace(waits, deadline=T0 + HOUR), eta(T0 + MINUTE, T0 + 2 * HOUR))
    assert "deadline" in late
    assert not breaks_by_forecast(waits, EtaView(job=7, name="train", state="held"))
    assert not breaks_by_forecast(waits, eta(-1, -1)), "not within the time looked at is no forecast"


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)))
def test_an_array_begins_once_and_ends_once_whatever_the_order(order: list[int], failing: set[int]) -> None:
    began = final = failed = 0
    said: list[str] = []
    for _ in order:
        said += of_array(("begin",), MembersSeen(began, final, failed), 5, T0)
        began += 1
    for member in order:
        kind = "fail" if member in failing else "end"
        said += of_array((kind,), MembersSeen(began - 1, final, failed), 5, T0)
        final, failed = final + 1, failed + (member in failing)
    assert said == ["begin", "fail" if failing else "end"]


def test_members_that_are_interrupted_or_miss_a_promise_are_said_of_the_array_not_each() -> None:
    kinds = ("preempt", "requeue", "breach")
    assert of_array(kinds, MembersSeen(), 5, T0) == kinds
    assert of_array(kinds, MembersSeen(broken=1, interrupted_at=T0 - SECOND), 5, T0) == ()
    assert of_array(kinds, MembersSeen(broken=1, interrupted_at=T0 - HOUR), 5, T0) == ("preempt", "requeue")
    assert "deadline" in breach(reply(deadline=T0), T0 + 1) and "40%" in breach(reply(fraction=0.4, target=0.7), T0)


def test_who_wants_single_members_gets_them() -> None:
    member = replace(reply(), array="12", size=5)
    assert first_seen(member).group == "12"
    alone = replace(member, notify=Notify(("end", "array_tasks"), mail=("ann",)))
    assert first_seen(alone) == SeenJob(job=7)
    for kind in KINDS:
        assert "job 7 (train)" in headline(kind, member.job)
