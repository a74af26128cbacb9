"""When a standard promise presses: by how much of its idle time is gone, and by how surely that is known."""

from __future__ import annotations

from tidewright.base.units import DAY, HOUR, MINUTE, SECOND
from tidewright.model.cause import Cause, Code
from tidewright.model.job import JobSpec, State
from tidewright.plan.render import misused, render
from tidewright.policy.promise import Class, promises, within_class
from tidewright.testing.views import ViewBuilder, pool

PRESSING = 0.4


def class_of(lost: int, expected: int, pause: int = SECOND, **columns: int) -> Class:
    """Of a suspended job that has run for ten hours and lost so much. If it runs for as long again, it may lose 8.6 hours."""
    build = ViewBuilder(pool(1))
    spec = JobSpec(command=("a",), workdir="/", devices=4, expected_us=expected)
    build.queue(
        spec, state=int(State.SUSPENDED), submit=build.now - 10 * HOUR - lost, ideal=10 * HOUR, save_us=pause,
        restore_us=pause, first_start=build.now - 10 * HOUR - lost, **columns,
    )  # fmt: skip
    return Class(int(promises(build.view(), PRESSING, HOUR).cls[0]))


def test_a_known_job_presses_when_six_tenths_of_its_idle_time_are_gone() -> None:
    assert class_of(4 * HOUR, 20 * HOUR) is Class.STANDARD
    assert class_of(6 * HOUR, 20 * HOUR) is Class.PRESSING


def test_a_job_of_unknown_run_time_presses_earlier_because_its_idle_time_is_a_guess() -> None:
    assert class_of(2 * HOUR, 0) is Class.STANDARD
    assert class_of(4 * HOUR, 0) is Class.PRESSING


def test_also_where_similar_jobs_say_how_long_it_may_run() -> None:
    assert (
        class_of(4 * HOUR, 0, predicted=20 * HOUR, predicted_low=20 * HOUR, predicted_high=20 * HOUR) is Class.PRESSING
    )


def test_but_not_where_its_own_pause_is_a_minute() -> None:
    assert [class_of(lost * HOUR, 0, pause=MINUTE) for lost in (2, 4, 6)] == [
        Class.STANDARD,
        Class.STANDARD,
        Class.PRESSING,
    ]


def suspend(build: ViewBuilder, devices: int, ideal: int, expected: int, lost: int, pause: int = SECOND) -> None:
    """A standard job that has run for ``ideal`` of the ``expected`` microseconds and has lost ``lost`` so far."""
    since = build.now - ideal - lost
    spec = JobSpec(command=("a",), workdir="/", devices=devices, expected_us=expected)
    build.queue(
        spec, state=int(State.SUSPENDED), submit=since, first_start=since, ideal=ideal, save_us=pause, restore_us=pause
    )


def two_suspended(sigma: float) -> tuple[list[int], list[Class]]:
    """Which of two standard jobs that press comes first: one with 10 of 100 hours left, or one with 8 of 8."""
    build = ViewBuilder(pool(1))
    for ideal, expected, lost in ((90 * HOUR, 100 * HOUR, 20 * HOUR), (0, 8 * HOUR, 2 * HOUR)):
        suspend(build, 4, ideal, expected, lost)
    view = build.view()
    view.estimate_sigma = sigma
    judged = promises(view, 0.9, HOUR)
    return judged.key.argsort().tolist(), [Class(int(one)) for one in judged.cls]


def test_where_estimates_are_off_the_job_comes_first_of_which_the_largest_part_is_done() -> None:
    assert two_suspended(0.0) == ([1, 0], [Class.PRESSING] * 2)
    assert two_suspended(1.0) == ([0, 1], [Class.PRESSING] * 2)


def test_a_job_is_late_by_what_is_estimated_also_where_estimates_are_off() -> None:
    build = ViewBuilder(pool(1))
    since = build.now - 10 * HOUR
    spec = JobSpec(command=("a",), workdir="/", devices=4, expected_us=20 * HOUR)
    for lost in (8 * HOUR, 9 * HOUR):
        build.queue(spec, state=int(State.SUSPENDED), submit=since - lost, first_start=since - lost, ideal=10 * HOUR)
    view = build.view()
    view.estimate_sigma = 1.0
    assert promises(view, PRESSING, HOUR).cls.tolist() == [Class.PRESSING, Class.STANDARD_LATE]


def counted(expected: int, ideal: int, sigma: float) -> Cause:
    """By what a suspended job of four devices is compared with others of its class."""
    build = ViewBuilder(pool(1))
    since = build.now - ideal - HOUR
    spec = JobSpec(command=("a",), workdir="/", devices=4, expected_us=expected)
    build.queue(spec, state=int(State.SUSPENDED), submit=since, first_start=since, ideal=ideal, save_us=MINUTE)
    view = build.view()
    view.estimate_sigma = sigma
    why = within_class(view, promises(view, PRESSING, HOUR), 0)
    assert not misused(why)
    return why


def test_what_a_job_is_compared_by_says_how_it_is_counted() -> None:
    assert counted(20 * HOUR, 16 * HOUR, 0.0) == Code.WEIGHTED_WORK_LEFT(16 * HOUR)
    assert counted(20 * HOUR, 0, 1.0) == Code.WEIGHTED_WORK_LEFT(80 * HOUR)
    assert counted(20 * HOUR, 16 * HOUR, 1.0) == Code.PARTLY_DONE_WORK(16 * HOUR // 5, 5000)
    unknown = counted(0, 16 * HOUR, 0.0)
    assert unknown.code is Code.UNKNOWN_WORK and unknown.args[0] == 16 * HOUR
    assert render(unknown).startswith("ran for 16h00m and nothing says for how much longer")
    assert counted(0, 5 * MINUTE, 0.0).code is Code.WEIGHTED_WORK_LEFT


def order_of(sigma: float, *jobs: tuple[int, int, int], pause: int = SECOND, nodes: int = 20) -> list[int]:
    """Suspended standard jobs of (devices, run time so far, run time given) on nodes of 8, in the order of their keys."""
    build = ViewBuilder(pool(nodes))
    for devices, ideal, expected in jobs:
        suspend(build, devices, ideal, expected, MINUTE, pause)
    view = build.view()
    view.estimate_sigma = sigma
    judged = promises(view, 1.0, HOUR, MINUTE)
    assert len({*judged.cls.tolist()}) == 1
    return judged.key.argsort().tolist()


def test_where_estimates_are_off_only_brief_jobs_go_before_a_long_gang_on_whole_nodes() -> None:
    gang, hours, brief = (16, 2 * DAY, 20 * DAY), (1, 0, 10 * HOUR), (1, 0, 2 * HOUR)
    assert order_of(0.0, gang, hours) == [1, 0]
    assert order_of(1.0, gang, hours) == [0, 1]
    assert order_of(1.0, gang, brief) == [1, 0]


def test_a_gang_that_has_not_run_for_a_day_waits_for_its_turn() -> None:
    assert order_of(1.0, (16, DAY - HOUR, 20 * DAY), (1, 0, 10 * HOUR)) == [1, 0]


def test_nor_does_one_that_needs_more_than_a_tenth_of_the_pool() -> None:
    gang, hours = (16, 2 * DAY, 20 * DAY), (1, 0, 10 * HOUR)
    assert order_of(1.0, gang, hours, nodes=19) == [1, 0]
    assert order_of(0.0, (4, 3 * DAY, 0), (16, 2 * DAY, 0), nodes=19) == [0, 1]


def test_the_less_estimates_are_off_the_less_a_gang_goes_first() -> None:
    gang = (16, 2 * DAY, 20 * DAY)
    assert order_of(0.05, gang, (1, 0, 100 * HOUR)) == [1, 0]
    assert order_of(1.0, gang, (1, 0, 100 * HOUR)) == [0, 1]


def test_a_job_on_one_node_is_a_gang_only_where_pauses_are_long() -> None:
    node, part, hours = (8, 2 * DAY, 20 * DAY), (4, 2 * DAY, 20 * DAY), (1, 0, 10 * HOUR)
    assert order_of(1.0, node, hours) == [1, 0]
    assert order_of(1.0, node, hours, pause=MINUTE) == [0, 1]
    assert order_of(1.0, part, hours, pause=MINUTE) == [1, 0]


def test_a_suspended_gang_without_an_estimate_counts_as_if_it_ran() -> None:
    """Of jobs that may end at any time the first come goes first; the gang comes back before another that came earlier."""
    assert order_of(0.0, (4, 3 * DAY, 0), (16, 2 * DAY, 0)) == [1, 0]
    assert order_of(0.0, (4, 3 * DAY, 0), (4, 2 * DAY, 0)) == [0, 1]
    assert order_of(0.0, (4, 3 * DAY, 0), (16, 25 * HOUR, 0)) == [1, 0]
    assert order_of(0.0, (4, 3 * DAY, 0), (16, 23 * HOUR, 0)) == [0, 1]


def test_what_a_long_gang_is_compared_by_says_so() -> None:
    build = ViewBuilder(pool(20))
    since = build.now - 3 * DAY
    spec = JobSpec(command=("a",), workdir="/", devices=16, expected_us=20 * DAY)
    build.queue(spec, state=int(State.SUSPENDED), submit=since, first_start=since, ideal=2 * DAY, save_us=MINUTE)
    view = build.view()
    view.estimate_sigma = 1.0
    why = within_class(view, promises(view, PRESSING, HOUR, MINUTE), 0)
    assert why == Code.LONG_GANG_WORK(2 * DAY, 160 * MINUTE) and not misused(why)
