"""Predictions on columns."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.estimate.cost import victim_cost
from tidewright.estimate.duration import LEAST_US, remaining_us, total_us
from tidewright.estimate.speed import slowdown, useful
from tidewright.model.job import JobSpec, Level
from tidewright.model.splice import LINEAR, speed_milli
from tidewright.testing.views import ViewBuilder, pool, views

from ..sizes import examples


def one(spec: JobSpec, **columns):
    builder = ViewBuilder(pool(1))
    builder.run(spec, **columns)
    return builder.view().jobs


def job(**fields) -> JobSpec:
    return JobSpec(command=("x",), **fields)


@given(view=views())
@settings(max_examples=examples(50), deadline=None)
def test_something_always_remains_and_the_total_is_never_less_than_what_is_done(view):
    assert (remaining_us(view.jobs) >= 1).all()
    assert (total_us(view.jobs) > view.jobs.ideal_now).all()
    assert np.isfinite(victim_cost(view.jobs)).all() and (victim_cost(view.jobs) > 0).all()


def test_the_estimate_comes_first_then_the_limit_then_the_heavy_tail():
    assert remaining_us(one(job(expected_us=HOUR, max_duration_us=9 * HOUR), ideal=MINUTE))[0] == HOUR - MINUTE
    assert remaining_us(one(job(max_duration_us=2 * HOUR), ideal=HOUR))[0] == HOUR
    assert remaining_us(one(job(), ideal=3 * HOUR))[0] == 3 * HOUR
    assert remaining_us(one(job(), ideal=SECOND))[0] == LEAST_US
    assert remaining_us(one(job(expected_us=HOUR), ideal=3 * HOUR))[0] == 2 * HOUR


def test_a_limit_is_no_promise_of_length():
    assert total_us(one(job(max_duration_us=100 * HOUR), ideal=0))[0] == LEAST_US
    assert total_us(one(job(max_duration_us=MINUTE), ideal=0))[0] == MINUTE


def test_requeue_loses_the_work_and_the_rest_only_the_pause():
    full = victim_cost(one(job(devices=4), ideal=HOUR))[0]
    requeue = victim_cost(one(job(devices=4), ideal=HOUR, level=int(Level.REQUEUE)))[0]
    assert full == 4 * (1.5 * SECOND + 1)
    assert requeue > 4 * HOUR


RANKS = st.integers(1, 64)


@given(RANKS, RANKS, RANKS)
def test_speed_is_never_above_full_and_grows_with_devices(ranks, devices, demand):
    speed = speed_milli(ranks, devices, demand)
    assert 1 <= speed <= 1000 and (devices < demand or speed == 1000)
    assert speed <= speed_milli(ranks, devices + 1, demand)


@given(RANKS, RANKS, RANKS)
def test_speed_of_columns_is_that_of_the_ledger(ranks, devices, demand):
    slow = slowdown(*(np.array([value]) for value in (devices, ranks, demand)))[0]
    assert abs(1000 / slow - speed_milli(ranks, devices, demand)) <= 1


@given(RANKS, RANKS, RANKS)
def test_devices_that_make_nothing_faster_are_not_asked_for(ranks, devices, demand):
    fewest = useful(devices, ranks, demand)
    assert 1 <= fewest <= min(devices, demand)
    assert speed_milli(ranks, fewest, demand) == speed_milli(ranks, devices, demand)
    if 1 < fewest < demand <= ranks:
        assert speed_milli(ranks, fewest - 1, demand) < speed_milli(ranks, fewest, demand)


def test_ranks_take_whole_turns_and_pay_six_per_cent():
    assert [speed_milli(4, devices, 4) for devices in (1, 2, 3, 4)] == [235, 471, 471, 1000]
    assert speed_milli(8, 2, 4) == 500, "ranks that take turns anyway pay nothing more"
    assert speed_milli(2, 2, 8) == 250, "a rank with several devices is taken as linear"
    assert speed_milli(8, 3, 8, LINEAR) == 375
