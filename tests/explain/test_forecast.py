"""Forecasts: the same as what then happens where nothing is left to chance, and an interval where something is."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.explain.draws import arrivals, total_us
from tidewright.explain.forecast import SAMPLES, forecast, interval
from tidewright.explain.questions import RehearsalQuestion, answer
from tidewright.explain.rehearsal import rehearse
from tidewright.explain.why import limit_of
from tidewright.model.cause import Code
from tidewright.model.job import Dependency, JobSpec, State
from tidewright.model.node import Part
from tidewright.plan.explain import Interval, Rehearsal
from tidewright.plan.moves import Start
from tidewright.plan.plan import Plan, Wake
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet

from ..sizes import examples


def pool(policy: str = "fifo", devices: int = 8) -> Worldlet:
    """A pool whose users are known to estimate run times exactly."""
    busy = Worldlet(1, devices, planner=make(policy))
    for _ in range(8):
        job = busy.submit(1, expected_us=MINUTE)
        busy.later(MINUTE, ev.Exited(job, 1, 0))
    return busy


def ask(busy: Worldlet, *jobs: int, samples: int = 8, looks: int = 1 << 60):  # type: ignore[no-untyped-def]
    """``looks``: how often it may ask whether it is to end."""
    asked = count()
    return forecast(busy.engine.snapshot(), busy.planner, jobs, lambda: next(asked) > looks, samples)


def test_with_exact_estimates_a_start_is_foretold_to_the_second() -> None:
    busy = pool()
    first = busy.submit(8, expected_us=40 * MINUTE)
    busy.later(10 * MINUTE)
    second = busy.submit(8, expected_us=HOUR)
    running, waiting = ask(busy, first, second)
    now = busy.engine.book.now
    assert running.start is None and running.end == Interval(*(now + 30 * MINUTE,) * 3)
    assert waiting.start is not None
    assert waiting.start.middle == now + 30 * MINUTE
    assert abs(waiting.end.middle - (now + 90 * MINUTE)) <= 10 * SECOND  # and its launch


def test_asking_changes_nothing_and_gives_the_same_answer() -> None:
    busy = pool("sla")
    jobs = [busy.submit(4) for _ in range(6)]
    before = busy.engine.snapshot()
    assert ask(busy, *jobs) == ask(busy, *jobs)
    assert busy.engine.snapshot() == before


def test_where_run_times_are_not_known_the_interval_is_wide() -> None:
    busy = Worldlet(1, 8, planner=make("fifo"))
    busy.submit(8)
    busy.later(10 * MINUTE)
    found = ask(busy, busy.submit(8), samples=20)[0]
    assert found.start is not None and found.samples == 20
    assert found.start.low < found.start.middle < found.start.high


def test_a_job_held_by_its_user_is_not_foretold() -> None:
    busy = pool()
    held = busy.submit(1)
    busy.tell(ev.Hold(held, "h"))
    assert ask(busy, held)[0].why == Code.HELD_BY_USER()


def test_a_job_that_is_held_and_waits_for_another_names_both() -> None:
    busy = pool()
    first = busy.submit(8, expected_us=30 * MINUTE)
    both = busy.submit(1, after=(Dependency("afterok", first),))
    busy.tell(ev.Hold(both, "h"))
    waits = Code.WAITS_FOR_JOBS((first,))
    assert ask(busy, both)[0].why == Code.ALSO_HELD(waits, Code.HELD_BY_USER())
    busy.tell(ev.Release(both, "r"))
    busy.tell(ev.Hold(both, "k", waiting=True, by="ada"))
    assert ask(busy, both)[0].why == Code.ALSO_HELD(waits, Code.HELD_BY("ada"))


def test_a_job_that_waits_for_another_starts_after_it() -> None:
    busy = pool()
    first = busy.submit(8, expected_us=30 * MINUTE)
    after = busy.submit(1, after=(Dependency("afterok", first),))
    found = ask(busy, after)[0]
    assert found.start is not None and found.start.low >= busy.engine.book.now + 29 * MINUTE


ANY = {
    "seed": st.integers(0, 10**6), "policy": st.sampled_from(["fifo", "fifo-backfill", "srtf", "las", "sla", "static"]),
}  # fmt: skip


@settings(max_examples=examples(10), deadline=None, derandomize=True)
@given(**ANY)
def test_jobs_in_any_state_can_be_foretold(seed: int, policy: str) -> None:
    """A job that never starts is looked for until time is up, which is short here."""
    check_foretold(seed, policy, looks=5000)


@pytest.mark.full
@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(**ANY)
def test_jobs_in_any_state_can_be_foretold_at_length(seed: int, policy: str) -> None:
    check_foretold(seed, policy)


def check_foretold(seed: int, policy: str, looks: int = 1 << 60) -> None:
    """Launches, suspensions, resumes and stops that are under way when it is asked."""
    dice = random.Random(seed)
    busy = Worldlet(2, 8, planner=make(policy))
    for _ in range(dice.randrange(2, 14)):
        busy.obey = dice.random() < 0.6
        job = busy.submit(
            dice.choice((1, 2, 4, 8, 16)), tier=dice.choice(("basic", "standard", "premium")), placement="any",
            expected_us=dice.choice((0, dice.randrange(1, 600) * MINUTE)),
        )  # fmt: skip
        if dice.random() < 0.3:
            other = dice.choice(list(busy.engine.book.specs))
            busy.tell(dice.choice((ev.Hold(other, f"h{job}"), ev.Cancel(other), ev.Release(other, f"r{job}"))))
        busy.later(dice.randrange(1, 30) * MINUTE)
    jobs = list(busy.engine.book.specs)
    for found in ask(busy, *jobs, samples=3, looks=looks):
        state = busy.state(found.job)
        assert found.why is not None or found.end is not None, (found, state)
        if found.start is not None and found.start.low >= 0:
            assert found.start.low >= busy.engine.book.now


def test_draws_go_on_beyond_what_a_job_has_run() -> None:
    book = pool().engine.book
    dice = random.Random(1)
    for spec in (JobSpec(command=("x",)), JobSpec(command=("x",), expected_us=HOUR), JobSpec(command=("x",), user="u")):
        for done in (0, MINUTE, 10 * HOUR):
            assert all(total_us(book.run_times, spec, done, dice) > done for _ in range(50))
    limited = JobSpec(command=("x",), max_duration_us=HOUR)
    assert all(total_us(book.run_times, limited, MINUTE, dice) <= HOUR for _ in range(50))


def test_the_jobs_to_come_are_those_of_the_last_while() -> None:
    busy = Worldlet(1, 8, planner=make("fifo"))
    for at in range(40):
        job = busy.submit(1 + at % 2)
        busy.later(MINUTE, ev.Exited(job, 1, 0))
    book = busy.engine.book
    coming = arrivals(book, random.Random(3))
    seen = [next(coming) for _ in range(120)]
    assert all(one.at > book.now for one in seen)
    assert [one.at for one in seen] == sorted(one.at for one in seen)
    assert {one.spec.devices for one in seen[:40]} == {1, 2}
    assert 100 * MINUTE < seen[-1].at - book.now < 140 * MINUTE


def test_nothing_is_expected_to_come_where_nothing_was_seen() -> None:
    assert next(arrivals(Engine().book, random.Random(1)), None) is None


@pytest.mark.parametrize("count", [1, 5, 20, 40])
def test_intervals_hold_eight_of_ten(count: int) -> None:
    """Of exchangeable times a next one falls between the two ends with the share of gaps that lie between them."""
    found = interval(list(range(100, 100 + count)))
    share = (found.high - found.low) / (count + 1)
    assert found.low <= found.middle <= found.high
    assert count < 20 or 0.78 <= share <= 0.85


def test_what_may_not_happen_is_later_than_anything() -> None:
    assert interval([5, -1, 7, -1, -1]) == Interval(5, -1, -1)


def test_a_rehearsal_foretells_jobs_that_are_not_submitted() -> None:
    busy = pool()
    busy.submit(8, expected_us=40 * MINUTE)
    specs = [JobSpec(command=("true",), devices=8, ranks=8, expected_us=HOUR)]
    said = rehearse(busy.engine.fork(), busy.planner, specs, samples=4)
    assert said.lines[0].code is Code.WOULD_WAIT
    start = said.forecasts[0].start
    assert start is not None and abs(start.middle - busy.engine.book.now - 40 * MINUTE) < SECOND
    assert busy.state(1 + max(busy.engine.book.specs) - 1) is not State.QUEUED or len(busy.engine.book.specs) == 1


def test_a_rehearsal_of_thousands_looks_for_limits_as_long_as_it_may_and_has_a_line_for_each() -> None:
    busy = Worldlet(1, 4, planner=make("fifo"))
    busy.submit(4, expected_us=HOUR)
    asked = iter([False] * 3)
    specs = [JobSpec(command=("true",), devices=2)] * 3000
    said = rehearse(busy.engine.fork(), busy.planner, specs, lambda: next(asked, True), samples=0)
    assert len(said.lines) == 3000
    assert said.lines[0] != said.lines[3] == said.lines[2999] == Code.WOULD_WAIT(Code.WAITS_FOR_DEVICES())


def test_a_rehearsal_leaves_the_forecast_its_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, spent = pool(), [0.0]
    busy.submit(8, expected_us=HOUR)

    def slow(*asked: Any) -> Any:
        spent[0] += 0.2
        return limit_of(*asked)

    monkeypatch.setattr("tidewright.explain.rehearsal.limit_of", slow)
    question = RehearsalQuestion((JobSpec(command=("true",), devices=8, ranks=8, expected_us=HOUR),) * 8)
    said = answer(busy.engine.snapshot(), busy.planner, question, lambda share: lambda: spent[0] > share)
    assert isinstance(said, Rehearsal) and len(said.lines) == len(said.forecasts) == 8
    assert said.lines[2] != said.lines[3] == said.lines[7] == Code.WOULD_WAIT(Code.WAITS_FOR_DEVICES())
    assert {(found.method, found.samples) for found in said.forecasts} == {("simulated", SAMPLES)}


def test_a_queue_too_long_to_simulate_is_reckoned_by_the_work_ahead() -> None:
    busy = pool()
    busy.submit(8, expected_us=HOUR)
    for _ in range(5):
        last = busy.submit(8, expected_us=HOUR)
    calls = [0]

    def enough() -> bool:
        calls[0] += 1
        return calls[0] > 3

    found = forecast(busy.engine.snapshot(), busy.planner, [last], enough)[0]
    assert found.method == "work-ahead" and found.start is not None
    assert found.start.low < busy.engine.book.now + 5 * HOUR < found.start.high


@pytest.mark.parametrize(
    ("ended", "asked", "durations", "finished"),
    [
        (0, {}, "unknown", 0), (3, {}, "unknown", 3), (4, {}, "similar", 4), (7, {"name": "new"}, "similar", 7),
        (5, {"expected_us": HOUR}, "estimates", 0),
    ],
)  # fmt: skip
def test_it_is_said_from_how_many_finished_jobs_run_times_come(
    ended: int, asked: dict[str, Any], durations: str, finished: int
) -> None:
    busy = Worldlet(1, 8, planner=make("fifo"))
    for _ in range(ended):
        job = busy.submit(1, name="old", user="u")
        busy.later(MINUTE, ev.Exited(job, 1, 0))
    holder, waits = busy.submit(8, **asked), busy.submit(8, **asked)
    for found in ask(busy, holder, waits):
        assert (found.durations, found.finished) == (durations, finished)


def test_estimates_count_the_jobs_they_were_held_against() -> None:
    busy = pool()
    found = ask(busy, busy.submit(1, expected_us=HOUR))[0]
    assert (found.durations, found.finished) == ("estimates", 8)


def test_the_work_of_a_long_queue_is_drawn_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewright.explain.forecast._DRAWN", 30)
    busy = pool()
    last = [busy.submit(8, expected_us=HOUR) for _ in range(8)][-1]
    found = forecast(busy.engine.snapshot(), busy.planner, [last], lambda: True)[0]
    assert (found.method, found.samples, found.finished) == ("work-ahead", 5, 8)


def test_a_step_of_many_planning_rounds_ends_when_time_is_up() -> None:
    """Jobs start one by one, a round each."""
    planned = [0]

    class OneByOne:
        name = "one-by-one"

        def plan(self, view: Any) -> Plan:
            planned[0] += 1
            free = [device for device in range(8) if view.board().free[0] >> device & 1]
            waiting = view.jobs.id[view.jobs.waiting].tolist()
            moves = [Start(waiting[0], (Part(0, 1 << free[0]),), Code.FIRST_IN_QUEUE())] if waiting and free else []
            return Plan(view.revision, tuple(moves), wake=Wake(at=view.now))

    busy = Worldlet(1, 8, planner=OneByOne())
    busy.engine.book.planning = True  # nothing starts before the forecast
    jobs = [busy.submit(1) for _ in range(8)]
    image = busy.engine.snapshot()
    rounds = []
    for most in (2, 100):
        planned[0] = 0
        forecast(image, busy.planner, [jobs[-1]], lambda most=most: planned[0] >= most, samples=1)  # type: ignore[misc]
        rounds.append(planned[0])
    assert rounds[0] == 2 < rounds[1]
