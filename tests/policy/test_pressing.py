"""When a standard promise presses: by how much of its idle time is gone, and by how surely that is known."""

from __future__ import annotations

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.model.job import JobSpec, State
from tidewright.policy.promise import Class, promises
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
