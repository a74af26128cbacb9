"""Work in phases at the rates of one allocation."""

from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.units import HOUR
from tidewright.estimate.pace import done_after, finish_us
from tidewright.model.job import JobSpec, Phase, problems
from tidewright.model.rate import FULL_RATE, phase_at, progress_column, progress_us, workload_at

LENGTHS = st.lists(st.integers(1, 10**10), min_size=1, max_size=5)
RATES = st.lists(st.integers(1, 3 * FULL_RATE), min_size=6, max_size=6)


def phased(lengths: list[int], last: bool) -> JobSpec:
    phases = [Phase(str(at), us) for at, us in enumerate(lengths)]
    return JobSpec(command=("x",), phases=(*phases, *([Phase(str(len(lengths)))] if last else [])))


@given(LENGTHS, RATES, st.booleans(), st.floats(0, 1), st.integers(1, 10**11))
def test_what_is_done_when_it_finishes_is_all_of_it(
    lengths: list[int], rates: list[int], last: bool, part: float, total: int
) -> None:
    spec, done = phased(lengths, last), int(part * total)
    assert not problems(spec)
    rate = lambda workload: rates[int(workload)]  # noqa: E731
    lasts = finish_us(spec, done, total, rate)
    assert done_after(spec, done, lasts, rate) >= total
    if lasts > len(lengths) + 1:  # each phase rounds up by less than a microsecond
        assert done_after(spec, done, lasts - len(lengths) - 1, rate) <= total


NEAR = st.lists(st.integers(FULL_RATE // 10, 3 * FULL_RATE), min_size=6, max_size=6)


@given(LENGTHS, NEAR, st.integers(0, 10**10), st.integers(0, 10**10))
def test_two_stretches_do_no_more_than_one(lengths: list[int], rates: list[int], first: int, second: int) -> None:
    spec = phased(lengths, True)
    rate = lambda workload: rates[int(workload)]  # noqa: E731
    once = done_after(spec, 0, first + second, rate)
    twice = done_after(spec, done_after(spec, 0, first, rate), second, rate)
    assert twice <= once <= twice + 30 * (2 + len(lengths)), "a microsecond of work is lost at most"


def test_where_a_phase_begins_the_one_before_is_over() -> None:
    spec = JobSpec(command=("x",), phases=(Phase("a", HOUR), Phase("b", HOUR), Phase("c")))
    assert phase_at(spec, 0) == ("a", HOUR) and phase_at(spec, HOUR - 1) == ("a", HOUR)
    assert phase_at(spec, HOUR) == ("b", 2 * HOUR) and phase_at(spec, 9 * HOUR) == ("c", 0)
    assert workload_at(spec, 0) == "a" == spec.workloads[0] and workload_at(JobSpec(workload="z"), HOUR) == "z"
    ends = JobSpec(command=("x",), phases=(Phase("a", HOUR), Phase("b", HOUR)))
    assert phase_at(ends, 9 * HOUR) == ("b", 0), "work beyond the last phase is like it"


def test_wrong_phases_are_named() -> None:
    for phases, said in (
        ((Phase("a"), Phase("b", 1)), "phase 1 has no length"),
        ((Phase("a\n", 1),), "not printable"),
        ((Phase("a", 10**30),), "phase 1"),
        ((Phase("a", 1),) * 1001, "at most 1000"),
    ):
        assert any(said in one for one in problems(JobSpec(command=("x",), phases=phases))), said
    both = JobSpec(command=("x",), workload="a", phases=(Phase("b", 1),))
    assert any("leave out workload" in one for one in problems(both))


@given(st.lists(st.tuples(st.integers(0, 3 * 10**15), st.integers(0, FULL_RATE)), max_size=5))
def test_columns_count_as_numbers_do_for_a_century(rows: list[tuple[int, int]]) -> None:
    import numpy as np

    elapsed, rate = np.array(rows, np.int64).reshape(-1, 2).T
    found = progress_column(elapsed, rate.astype(np.int32)).tolist()
    assert found == [progress_us(us, speed) for us, speed in rows]
