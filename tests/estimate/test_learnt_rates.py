"""Rates learnt from what jobs report: medians, what is news, what is not believed, and what comes into force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.estimate.goodput import StepSample, step_s
from tidewright.estimate.learnt_rates import MOST_ROWS, RateHistory, merged, with_learnt, without
from tidewright.estimate.rates import Rates
from tidewright.model.rate import (
    NOTHING_LEARNT,
    Goodput,
    KindSteps,
    LearntRates,
    Place,
    ProgressReport,
    RateSettings,
    StepTime,
    Throughput,
)  # fmt: skip

BERT = Place("bert", "a100", 4, 1)
DECLARED = RateSettings(throughputs=(Throughput("bert", "a100", 4, 100.0), Throughput("bert", "h100", 4, 200.0)))
NOTHING = RateSettings()


def seen(*figures: float, place: Place = BERT, windows: int = 3) -> RateHistory:
    """Each job reports so many samples per second."""
    history = RateHistory()
    for job, per_s in enumerate(figures):
        for _ in range(windows):
            history.note(place, job, ProgressReport(60, round(per_s * 60), 60.0))
    return history


def test_three_reports_of_a_job_are_a_row() -> None:
    assert seen(50.0, windows=2).news(NOTHING, NOTHING_LEARNT) == (NOTHING_LEARNT, ())
    found, remarks = seen(50.0).news(NOTHING, NOTHING_LEARNT)
    assert found.throughputs == (Throughput("bert", "a100", 4, 50.0, 1),) and not remarks


def test_one_job_that_counts_something_else_among_several_changes_little() -> None:
    found, _ = seen(50.0, 51.0, 9_000.0).news(NOTHING, NOTHING_LEARNT)
    assert found.throughputs[0].per_s == 51.0


@pytest.mark.parametrize(("measured", "news"), [(100.0, False), (104.0, False), (94.0, True), (106.0, True)])
def test_what_is_known_already_is_no_news(measured: float, news: bool) -> None:
    found, _ = seen(measured).news(DECLARED, NOTHING_LEARNT)
    assert bool(found.throughputs) is news
    again, _ = seen(measured).news(DECLARED, merged(NOTHING_LEARNT, found))
    assert again == NOTHING_LEARNT


@pytest.mark.parametrize("measured", [9.0, 1_100.0])
def test_a_report_in_another_unit_than_the_table_is_named_and_not_learnt(measured: float) -> None:
    found, remarks = seen(measured).news(DECLARED, NOTHING_LEARNT)
    assert found == NOTHING_LEARNT
    assert "bert on 4 a100 reports" in remarks[0] and "where 100 is" in remarks[0]


@pytest.mark.parametrize(("devices", "per_s", "believed"), [(8, 150.0, True), (8, 2_100.0, False), (1, 2.0, False)])
def test_on_other_devices_than_are_declared_the_rows_beside_them_say_what_to_expect(
    devices: int, per_s: float, believed: bool
) -> None:
    place = Place("bert", "a100", devices, 1)
    found, remarks = seen(per_s, place=place).news(DECLARED, NOTHING_LEARNT)
    assert bool(found.throughputs) is believed and bool(remarks) is not believed


def test_of_an_undeclared_workload_other_learnt_rows_say_what_to_expect() -> None:
    learnt = LearntRates((Throughput("bert", "a100", 4, 100.0, 1),))
    elsewhere = Place("bert", "a100", 8, 1)
    assert not seen(5_000.0, place=elsewhere).news(NOTHING, learnt)[0].throughputs
    assert seen(190.0, place=elsewhere).news(NOTHING, learnt)[0].throughputs
    assert seen(5_000.0).news(NOTHING, learnt)[0].throughputs, "the same place may be corrected"


def test_rows_declared_since_in_another_unit_put_learnt_ones_out_of_force() -> None:
    learnt = LearntRates((Throughput("bert", "a100", 4, 5.0, 1), Throughput("bert", "a100", 8, 9.0, 1)))
    assert with_learnt(DECLARED, learnt).throughputs == DECLARED.throughputs
    steps = LearntRates(steps=(KindSteps("resnet", "a100", StepTime(gradient=10.0, gradient_per_sample=1.0)),))
    declared = RateSettings(goodput={"resnet": MODEL})
    assert with_learnt(declared, steps).goodput == declared.goodput


def test_what_is_forgotten_is_learnt_anew() -> None:
    history = seen(50.0)
    found, _ = history.news(NOTHING, NOTHING_LEARNT)
    more = LearntRates(
        (Throughput("gpt", "a100", 4, 1.0, 1),), (KindSteps("bert", "a100", TRUE), KindSteps("gpt", "a100", TRUE))
    )
    kept = without(merged(found, more), "bert")
    assert kept == LearntRates(more.throughputs, more.steps[1:])
    history.forget("bert")
    assert history.news(NOTHING, kept) == (NOTHING_LEARNT, ())
    history.note(BERT, 0, ProgressReport(60, 3000, 60.0))
    assert history.news(NOTHING, kept) == (NOTHING_LEARNT, ()), "one report of three"


def test_a_learnt_row_takes_the_place_of_the_declared_one_and_leaves_the_others() -> None:
    learnt = LearntRates((Throughput("bert", "a100", 4, 150.0, 1),))
    joined = with_learnt(DECLARED, learnt)
    assert {(row.kind, row.per_s) for row in joined.throughputs} == {("a100", 150.0), ("h100", 200.0)}
    assert with_learnt(DECLARED, learnt) is joined and with_learnt(DECLARED, NOTHING_LEARNT) is DECLARED
    assert Rates(joined).per_s("bert", "a100", 4, 1) == 150.0


def test_where_a_workload_cannot_run_stays_known() -> None:
    declared = RateSettings(throughputs=(Throughput("bert", "k80", 4, 0.0),))
    joined = with_learnt(declared, LearntRates((Throughput("bert", "a100", 4, 150.0, 1),)))
    assert not Rates(joined).runs_on("bert", "k80", 4)


def test_the_later_figure_holds_and_rows_are_bounded() -> None:
    rows = [LearntRates((Throughput(f"w{n}", "a", 1, 1.0, 1),)) for n in range(MOST_ROWS + 5)]
    found = NOTHING_LEARNT
    for row in rows:
        found = (
            LearntRates((*found.throughputs, *row.throughputs))
            if len(found.throughputs) < MOST_ROWS
            else merged(found, row)
        )
    assert len(found.throughputs) == MOST_ROWS and found.throughputs[-1].workload == f"w{MOST_ROWS + 4}"
    later = merged(found, LearntRates((Throughput("w9", "a", 1, 7.0, 1),)))
    assert [row.per_s for row in later.throughputs if row.workload == "w9"] == [7.0]
    assert later.throughputs[-1].workload == "w9", "what was learnt last is the last to go"


@pytest.mark.parametrize("samples", [0, 10**18])
def test_what_no_machine_could_do_is_not_kept(samples: int) -> None:
    history = RateHistory()
    for _ in range(5):
        history.note(BERT, 1, ProgressReport(60, samples, 1.0))
    assert history.news(NOTHING, NOTHING_LEARNT) == (NOTHING_LEARNT, ())


def test_only_places_with_new_reports_are_looked_at() -> None:
    history = seen(50.0)
    found, _ = history.news(NOTHING, NOTHING_LEARNT)
    assert found.throughputs and history.news(NOTHING, NOTHING_LEARNT)[0] == NOTHING_LEARNT
    history.note(BERT, 0, ProgressReport(60, 3000, 60.0))
    assert history.news(NOTHING, NOTHING_LEARNT)[0] == found


TRUE = StepTime(gradient=0.02, gradient_per_sample=0.001, local=0.01, local_per_device=0.001)
WRONG = StepTime(gradient=0.02, gradient_per_sample=0.004)
MODEL = Goodput(steps={"a100": WRONG}, batch=32, most_batch=4096, most_per_device=256, noise=1000)


def exact_fit(samples: list[StepSample]) -> StepTime:
    assert samples
    return TRUE


@given(st.lists(st.tuples(st.sampled_from((1, 2, 4, 8)), st.sampled_from((16, 64, 128))), min_size=1, max_size=6))
def test_step_times_that_foretell_badly_are_fitted_again(places: list[tuple[int, int]]) -> None:
    declared = RateSettings(goodput={"resnet": MODEL})
    history = RateHistory(exact_fit)
    for job, (devices, per_device) in enumerate(places):
        seconds = step_s(TRUE, devices, 1, per_device)
        for _ in range(3):
            report = ProgressReport(100, 100 * per_device * devices, 100 * seconds)
            history.note(Place("resnet", "a100", devices, 1), job, report)
    found, _ = history.news(declared, NOTHING_LEARNT)
    assert found == LearntRates(steps=(KindSteps("resnet", "a100", TRUE),))
    joined = with_learnt(declared, found)
    assert joined.goodput["resnet"].steps == {"a100": TRUE} and joined.goodput["resnet"].batch == 32
    assert history.news(declared, found)[0] == NOTHING_LEARNT


def test_a_fit_that_is_no_better_is_not_taken_and_without_scipy_there_is_none() -> None:
    declared = RateSettings(goodput={"resnet": MODEL})
    reports = ProgressReport(100, 100 * 64, 100 * 1.0)
    for fit in (lambda samples: WRONG, None):
        history = RateHistory(fit)
        for _ in range(3):
            history.note(Place("resnet", "a100", 1, 1), 1, reports)
        assert history.news(declared, NOTHING_LEARNT)[0] == NOTHING_LEARNT


def stepping(*factors: float, model: Goodput = MODEL) -> tuple[LearntRates, tuple[str, ...], list[StepSample]]:
    """Jobs whose steps take so many times what the declared model foretells; also what was fitted to."""
    fitted: list[StepSample] = []

    def fit(samples: list[StepSample]) -> StepTime:
        fitted.extend(samples)
        return TRUE

    history = RateHistory(fit)
    for job, factor in enumerate(factors):
        seconds = factor * step_s(model.steps["a100"], 1, 1, 64)
        for _ in range(3):
            history.note(Place("resnet", "a100", 1, 1), job, ProgressReport(100, 6400, 100 * seconds))
    found, remarks = history.news(RateSettings(goodput={"resnet": model}), NOTHING_LEARNT)
    return found, remarks, fitted


def test_steps_that_count_something_else_are_not_fitted_to() -> None:
    found, remarks, fitted = stepping(0.01)
    assert found == NOTHING_LEARNT and not fitted and "counts something else" in remarks[0]
    _, remarks, fitted = stepping(0.5, 0.52, 4.0)
    assert len(fitted) == 2 and not remarks, "one job of three changes nothing"
