"""Rates of progress: constants by kind, tables, goodput, and what full speed is."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.estimate.rates import Rates, problems, rates_of
from tidewright.model.job import JobSpec
from tidewright.model.rate import FULL_RATE, Goodput, RatedJob, RateSettings, Spread, StepTime, Throughput
from tidewright.model.splice import LINEAR, speed_milli
from tidewright.sim.rate_files import load_rates

from ..sizes import examples

KINDS = ("v100", "p100", "k80")
RESNET = "ResNet-50 (batch size 64)"


def job(workload: str = "", demand: int = 1, reference: str = "v100", ranks: int = 0) -> RatedJob:
    return RatedJob(workload, ranks or demand, demand, reference)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_nothing_declared_means_that_only_devices_count(ranks: int, devices: int, demand: int) -> None:
    rates = Rates(RateSettings())
    assert not rates.by_kind
    assert rates.rate(RatedJob("", ranks, demand), "any", devices) == 1000 * speed_milli(ranks, devices, demand)


def test_a_slower_kind_counts_as_slower() -> None:
    rates = Rates(RateSettings(kinds={"h100": 2.0, "a100": 1.0}))
    spec = JobSpec(command=("x",))
    assert rates.reference(spec, ("a100", "h100")) == "h100"
    assert rates.rate(job(reference="h100"), "a100", 1) == FULL_RATE // 2
    only = msgspec.structs.replace(spec, device_types=("a100",))
    assert rates.reference(only, ("a100", "h100")) == "a100", "of the kinds that the job accepts"
    assert rates.rate(job(reference="a100"), "a100", 1) == FULL_RATE


def test_the_packaged_table_is_gavels() -> None:
    settings = load_rates("gavel")
    rows = {(row.workload, row.kind, row.devices, row.nodes): row.per_s for row in settings.throughputs}
    rates = Rates(settings)
    for kind in KINDS:
        ratio = rows[RESNET, kind, 4, 0] / rows[RESNET, "v100", 4, 0]
        assert rates.rate(job(RESNET, 4), kind, 4) == pytest.approx(FULL_RATE * ratio, abs=1)
    apart = rows[RESNET, "v100", 4, 4] / rows[RESNET, "v100", 4, 0]
    assert rates.rate(job(RESNET, 4), "v100", 4, Spread(4, 1)) == pytest.approx(FULL_RATE * apart, abs=1)
    assert not rates.runs_on("ResNet-50 (batch size 128)", "k80", 2), "it does not fit that memory"
    assert rates.runs_on("ResNet-50 (batch size 128)", "v100", 2) and rates.runs_on("unheard of", "k80", 2)


TABLE = RateSettings(
    kinds={"h100": 2.0},
    throughputs=(Throughput("m", "a100", 1, 10.0), Throughput("m", "a100", 4, 34.0), Throughput("m", "a100", 8, 60.0)),
    spread={"m": 0.8, "": 0.5},
)


@pytest.mark.parametrize(
    ("settings", "by_place"),
    [
        (RateSettings(), False),
        (RateSettings(throughputs=(Throughput("m", "a100", 4, 10.0, 1), Throughput("n", "a100", 2, 10.0, 1))), False),
        (RateSettings(throughputs=(Throughput("m", "a100", 4, 10.0), Throughput("m", "h100", 4, 20.0))), True),
        (RateSettings(throughputs=(Throughput("m", "a100", 4, 10.0, 1), Throughput("m", "a100", 4, 7.0, 2))), True),
        (RateSettings(spread={"": 0.5}), True),
        (TABLE, True),
    ],
)
def test_a_better_place_is_looked_for_only_where_there_may_be_one(settings: RateSettings, by_place: bool) -> None:
    assert Rates(settings).by_place is by_place


def test_what_to_expect_of_a_place_without_a_row() -> None:
    rates = Rates(TABLE)
    assert rates.expected_per_s("m", "a100", 4, 1) == 34.0
    assert rates.expected_per_s("m", "a100", 2, 1) == pytest.approx(18.0)
    assert rates.expected_per_s("m", "h100", 8, 1) == 120.0
    assert rates.expected_per_s("unheard of", "a100", 8, 1) == 0.0


def test_between_measurements_lies_a_line_and_beyond_them_a_proportion() -> None:
    rates = Rates(TABLE)
    full = job("m", 8, "a100")
    assert rates.rate(full, "a100", 8) == FULL_RATE
    assert rates.rate(RatedJob("m", 1, 8, "a100"), "a100", 6) == pytest.approx(FULL_RATE * 47 / 60, abs=1)
    assert rates.rate(RatedJob("m", 1, 8, "a100"), "a100", 4) == pytest.approx(FULL_RATE * 34 / 60, abs=1)
    assert rates.rate(job("m", 8, "a100"), "a100", 4) == pytest.approx(FULL_RATE * 34 / 60 / 1.06, abs=1), "in turns"
    assert rates.rate(job("m", 16, "a100"), "a100", 16) == FULL_RATE
    assert rates.rate(job("m", 8, "a100"), "h100", 8) == 2 * FULL_RATE, "no row: by the ratio of the kinds"


def test_a_spread_allocation_is_slower_by_what_the_workload_loses() -> None:
    rates = Rates(TABLE)
    assert rates.rate(job("m", 8, "a100"), "a100", 8, Spread(2, 1)) == 0.8 * FULL_RATE
    assert rates.rate(job("other", 8, ""), "a100", 8, Spread(2, 1)) == 0.5 * FULL_RATE
    assert rates.rate(job("m", 16, "a100"), "a100", 16, Spread(2, 2)) == FULL_RATE, (
        "two nodes are the fewest it can have"
    )


def test_goodput_grows_less_than_devices_do() -> None:
    model = Goodput({"a100": StepTime(0.02, 0.001, 0.01, 0.001, 0.1, 0.01)}, 128, 8192, 512, 2000.0)
    rates = Rates(RateSettings(goodput={"bert": model}))
    speeds = [rates.rate(RatedJob("bert", 1, 16, "a100"), "a100", count) for count in (1, 2, 4, 8, 16)]
    assert speeds == sorted(speeds) and speeds[-1] == FULL_RATE and speeds[0] > FULL_RATE / 16
    apart = rates.rate(RatedJob("bert", 1, 16, "a100"), "a100", 16, Spread(4, 2))
    assert apart <= FULL_RATE


@settings(max_examples=examples(60))
@given(
    st.integers(1, 32),
    st.integers(1, 32),
    st.integers(1, 4),
    st.sampled_from(["m", "", "x"]),
    st.sampled_from(["a100", "h100", "?"]),
)
def test_a_rate_is_at_least_one_whatever_is_asked(
    count: int, demand: int, nodes: int, workload: str, kind: str
) -> None:
    for splice in (60, LINEAR, 0):
        assert Rates(TABLE, splice).rate(job(workload, demand, kind), kind, count, Spread(nodes, 1)) >= 1


def test_settings_travel_and_are_remembered_by_identity() -> None:
    again = msgspec.json.decode(msgspec.json.encode(TABLE), type=RateSettings)
    assert again == TABLE and msgspec.msgpack.decode(msgspec.msgpack.encode(TABLE), type=RateSettings) == TABLE
    assert rates_of(TABLE, 60) is rates_of(TABLE, 60) and rates_of(TABLE, 60) is not rates_of(TABLE, 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (RateSettings(kinds={"a": 0.0}), "kinds: a"),
        (RateSettings(kinds={"a": float("nan")}), "kinds: a"),
        (RateSettings(spread={"": 1.5}), "every other workload"),
        (RateSettings(throughputs=(Throughput("m", "a", 0, 1.0),)), "devices are at least 1"),
        (RateSettings(throughputs=(Throughput("m", "a", 1, float("inf")),)), "not a throughput"),
        (RateSettings(goodput={"m": Goodput({}, 1, 1, 1, 0.0)}), "no step times"),
        (RateSettings(goodput={"m": Goodput({"a": StepTime(0.0, 0.0)}, 1, 1, 1, 0.0)}), "a step takes time"),
        (RateSettings(goodput={"m": Goodput({"a": StepTime(1.0, 0.0)}, 8, 4, 1, 0.0)}), "batch 8"),
        (RateSettings(goodput={"m": Goodput({"a": StepTime(1.0, 0.0)}, 1, 1, 1, float("inf"))}), "noise inf"),
        (
            RateSettings(goodput={"m": Goodput({"a": StepTime(float("inf"), 0.0)}, 1, 1, 1, 0.0)}),
            "times are at least 0",
        ),
    ],
)
def test_what_is_wrong_is_said(wrong: RateSettings, said: str) -> None:
    assert any(said in one for one in problems(wrong))
    assert not problems(TABLE)
