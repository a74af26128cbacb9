"""Traces: what is read is what was written, mistakes carry their line, the generator keeps its promises."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.base.units import SECOND
from tidewright.model.job import LONGEST_US, problems
from tidewright.sim.trace import head, with_estimates
from tidewright.sim.trace_csv import SHOWN, parse
from tidewright.sim.traces import load_trace, registry

from ..sizes import examples

ROW = st.tuples(
    st.integers(0, 10**7),
    st.integers(1, 10**6),
    st.integers(1, 512),
    st.sampled_from(["premium", "standard", "basic"]),
    st.sampled_from(["vision", "speech", "default"]),
)


def write(rows: list[tuple[object, ...]], header: str) -> io.StringIO:
    return io.StringIO("\n".join([header, *(",".join(map(str, row)) for row in rows), ""]))


@given(st.lists(ROW, min_size=1, max_size=40), st.permutations(range(5)))
def test_reading_gives_back_every_row_in_order_of_submission(rows: list[tuple[object, ...]], order: list[int]) -> None:
    names = ("submit", "duration", "devices", "tier", "team")
    shuffled = [tuple(row[at] for at in order) for row in rows]
    trace = parse(write(shuffled, ",".join(names[at] for at in order)), "f.csv", "f")
    first = min(int(row[0]) for row in rows)
    expected = sorted(rows, key=lambda row: int(row[0]))
    specs = [trace.spec(at) for at in range(len(trace))]
    read = [
        (int(trace.submit[at]) // SECOND + first, int(trace.duration[at]) // SECOND, spec.devices, spec.tier, spec.team)
        for at, spec in enumerate(specs)
    ]
    assert read == expected
    assert all(not problems(spec) and spec.expected_us == trace.duration[at] for at, spec in enumerate(specs))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100)), min_size=1, max_size=60))
def test_every_mistake_is_reported_with_its_line(rows: list[tuple[bool, int]]) -> None:
    text = write([(at, 10, 1) if good else (at, "soon", 1) for good, at in rows], "submit_time,duration,num_gpus")
    bad = [line for line, (good, _) in enumerate(rows, start=2) if not good]
    if not bad:
        assert len(parse(text, "jobs.csv", "jobs")) == len(rows)
        return
    with pytest.raises(UsageError) as caught:
        parse(text, "jobs.csv", "jobs")
    for line in bad[:SHOWN]:
        assert f"jobs.csv:{line}: duration" in caught.value.message
    assert ("more" in caught.value.message) == (len(bad) > SHOWN)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("-1,10,1,basic,0", "submit: -1 s is not between 0"),
        ("1,1e99,1,basic,0", "duration: 1e+99 s is not between 0"),
        ("1,nan,1,basic,0", "duration: nan s is not between"),
        ("1,10,0,basic,0", "devices: 0 is not a whole number"),
        ("1,10,1.5,basic,0", "devices: 1.5 is not a whole number"),
        ("1,10,1,gold,0", "tier: 'gold' is not one of premium, standard, basic"),
        ("1,10,2,basic,3", "min_devices: 3 is above devices (2)"),
        (",10,2,basic,1", "submit: missing"),
        ("1", "duration: missing"),
    ],
)
def test_each_kind_of_mistake_says_what_it_is(cells: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(io.StringIO(f"submit,duration,devices,tier,min_devices\n{cells}\n"), "t.csv", "t")
    assert f"t.csv:2: {said}" in caught.value.message


def test_a_header_without_the_needed_columns_names_them() -> None:
    with pytest.raises(UsageError, match=r"t.csv:1: no column for duration"):
        parse(io.StringIO("submit,devices\n1,1\n"), "t.csv", "t")


def test_other_formats_are_known_by_their_columns() -> None:
    tiresias = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n7,8,30,133,vgg11,147,23\n"
    spec = parse(io.StringIO(tiresias), "60.csv", "60").spec(0)
    assert (spec.name, spec.devices, spec.expected_us) == ("t7", 8, 147 * SECOND)
    sia = "timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,1h,1,11cb48\n2017-10-09 07:01:50,5,2,x\n"
    trace = parse(io.StringIO(sia), "sia.csv", "sia")
    assert trace.submit.tolist() == [0, 5 * SECOND]
    assert (trace.spec(1).team, trace.duration[1]) == ("11cb48", 3600 * SECOND)


def test_optional_columns_reach_the_spec() -> None:
    text = "submit,duration,devices,gpu_memory,gpu_type\n0,1m,1,12GiB,v100|A100\n1,1m,4,,MISC\n"
    trace = parse(io.StringIO(text), "t.csv", "t")
    assert trace.spec(0).gpu_memory == 12 * 2**30
    assert trace.spec(0).device_types == ("v100", "a100")
    assert (trace.spec(1).device_types, trace.spec(1).gpu_memory) == ((), 0)


def test_philly_is_whole_and_sorted() -> None:
    trace = load_trace("philly", 480)
    assert len(trace) == 82_247
    assert (np.diff(trace.submit) >= 0).all()
    assert int(trace.devices.max()) == 128
    # The longest job, and the sum of all durations, of the table that the packaged one was made from.
    assert int(trace.duration.max()) == 4_628_226 * SECOND
    assert int(trace.duration.sum()) // SECOND == 1_080_390_950
    assert len(head(trace, 10)) == len(load_trace("philly:10", 480)) == 10
    with pytest.raises(ValueError, match="read-only"):
        trace.submit[0] = 1  # it is read once, and others are made of it


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(1, 3000),
    st.floats(0.1, 3.0),
    st.integers(0, 2**32),
    st.booleans(),
    st.integers(1, 600),
)
def test_the_generator_keeps_the_load_and_its_seed(
    jobs: int, load: float, seed: int, diurnal: bool, devices: int
) -> None:
    text = f"synthetic:jobs={jobs},load={load},seed={seed},diurnal={'yes' if diurnal else 'no'},max=2d"
    trace, again = load_trace(text, devices), load_trace(text, devices)
    assert len(trace) == jobs
    assert trace.submit.tolist() == again.submit.tolist()
    assert trace.duration.tolist() == again.duration.tolist()
    assert trace.devices.max() <= devices
    assert (np.diff(trace.submit) >= 0).all()
    span = trace.device_us() / devices / load
    assert trace.submit[-1] <= span + SECOND


def test_a_synthetic_trace_has_the_tiers_and_sizes_asked_for() -> None:
    trace = load_trace("synthetic:jobs=20000,tiers=premium:1/basic:3,sizes=2:1/8:1,elastic=0.5,teams=3", 480)
    assert abs((trace.tier == 2).mean() - 0.25) < 0.02
    assert set(trace.devices.tolist()) == {2, 8}
    assert trace.floor is not None
    assert abs((trace.floor > 0).mean() - 0.5) < 0.02
    assert {trace.spec(at).team for at in range(50)} == {"team-0", "team-1", "team-2"}
    assert 0.95 < trace.device_us() / 480 / trace.submit[-1] / 0.9 < 1.05


def test_every_unreadable_option_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        load_trace("synthetic:jobs=many,load=-1,colour=red,tiers=gold:1", 8)
    for key in ("jobs=many", "load=-1", "colour", "tiers=gold:1"):
        assert key in caught.value.message


def test_unknown_traces_and_missing_files_say_what_there_is() -> None:
    assert "philly" in registry and "phily" not in registry
    with pytest.raises(UsageError, match="did you mean 'philly'"):
        load_trace("phily", 8)
    with pytest.raises(UsageError, match="No such file"):
        load_trace("/nowhere/jobs.csv", 8)


def test_estimates_err_by_the_factor_asked_for_and_leave_the_truth_alone() -> None:
    trace = load_trace("synthetic:jobs=20000", 480)
    told = with_estimates(trace, 0.5, seed=3)
    assert (told.duration == trace.duration).all()
    assert abs(np.log(told.expected / trace.duration).std() - 0.5) < 0.02
    assert with_estimates(trace, 0.0, seed=3) is trace


def test_estimates_of_any_error_are_ones_that_a_request_may_state() -> None:
    noisy = with_estimates(load_trace("philly:200", 16), 10.0, seed=0)
    assert int(noisy.expected.min()) >= 1 and int(noisy.expected.max()) == LONGEST_US
    assert not any(problems(noisy.spec(row)) for row in range(len(noisy)))


def test_tiers_of_philly_are_drawn_in_the_proportions_asked_for() -> None:
    trace = load_trace("philly:2000,tiers=premium:1/basic:3", 480)
    plain = load_trace("philly:2000", 480)
    assert len(trace) == 2000 and set(plain.tier.tolist()) == {1}
    assert set(trace.tier.tolist()) == {0, 2} and 0.2 < (trace.tier == 2).mean() < 0.3
    assert (trace.duration == plain.duration).all()
    assert (load_trace("philly:2000,tiers=premium:1/basic:3", 480).tier == trace.tier).all()


@pytest.mark.parametrize(
    "text", ["philly:0", "philly:x", "philly:10,tier=basic:1", "philly:tiers=gold:1", "philly:tiers=basic:x"]
)
def test_an_argument_of_philly_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(UsageError):
        load_trace(text, 480)


def test_host_resources_of_a_trace_reach_the_spec() -> None:
    text = "submit,duration,devices,cpus,mem\n0,10,2,1.5,4GiB\n1,10,1,,\n"
    found = parse(text.splitlines(), "t.csv", "t")
    assert (found.spec(0).cpus_milli, found.spec(0).memory) == (1500, 4 * 2**30)
    assert (found.spec(1).cpus_milli, found.spec(1).memory) == (0, 0)
    with pytest.raises(UsageError) as caught:
        parse((text + "2,1,1,nan,1KiB\n3,1,1,-1,-2\n4,1,1,inf,9e99GiB\n").splitlines(), "t.csv", "t")
    assert caught.value.message.count("t.csv:4") == caught.value.message.count("t.csv:5") == 2
    assert caught.value.message.count("t.csv:6") == 2


@pytest.mark.parametrize("text", ["tiers=premium:0.1/Premium:0.9", "sizes=1:0.9/1:0.1", "sizes=1:0.9/01:0.1"])
def test_a_value_has_one_share(text: str) -> None:
    with pytest.raises(UsageError, match="is there twice"):
        load_trace(f"synthetic:{text}", 8)
