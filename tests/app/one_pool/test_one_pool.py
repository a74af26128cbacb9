"""A made-up day: one pool trains more than the static split with its attainment, by no less than the devices that it lends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tidewright.app.one_pool.attainment import Attainment, attained, fewest_replicas
from tidewright.app.one_pool.demand import DayOfRequests, RecordedDemand
from tidewright.app.one_pool.run import PoolComparison, ServedDay, as_json, compare_day, without
from tidewright.base.errors import UsageError
from tidewright.base.units import MINUTE, MS, SECOND
from tidewright.serve.arrivals import RateCurve
from tidewright.serve.autoscale import Autoscaler, ScalingSettings, replicas_for
from tidewright.serve.fluid import ServiceFlow
from tidewright.serve.profile import affine
from tidewright.sim.clusters import load_cluster
from tidewright.sim.run import Options
from tidewright.sim.trace import make_trace

PROFILE = affine(1_000, 10_000, 32)
OBJECTIVE_US = 50 * MS
FLOW = ServiceFlow(PROFILE.table(), OBJECTIVE_US)
CURVE = RateCurve((1.0, 1.0, 2.0, 6.0, 10.0, 4.0, 1.0, 1.0), 3 * MINUTE, "made up: a peak of a quarter of the time")


def day(**given: Any) -> ServedDay:
    usual: dict[str, Any] = {"curve": CURVE, "load_us": 5 * SECOND, "start_us": 10 * SECOND, "hold_us": MINUTE}
    return ServedDay(profile=PROFILE, objective_us=OBJECTIVE_US, **{**usual, **given})


def compared(**given: Any) -> PoolComparison:
    jobs = 60
    sizes = np.tile([1, 2, 1, 4], jobs // 4)
    trace = make_trace("full", np.arange(jobs) * 1.0, np.full(jobs, 36_000.0), sizes)
    return compare_day(trace, load_cluster("4x8"), "sla", Options(), day(**given))


def test_one_pool_trains_more_than_the_split_with_its_attainment() -> None:
    found = compared()
    pool, split = found.pool, found.split
    assert split.attainment.requests >= pool.attainment.requests >= 0.98
    assert found.peak_replicas == 13 >= split.serving_devices > pool.held_devices
    assert pool.reclaims.in_time >= 0.95 and pool.reclaims.replicas >= 8
    assert pool.training.lost == split.training.lost == 0
    lent = (pool.training.devices - split.training.devices) / split.training.devices
    assert lent > 0.20 and found.gain == pytest.approx(lent, abs=0.03)
    assert found.gain_over_peak >= found.gain


def test_equal_seeds_give_equal_figures_and_slow_loading_is_paid_for() -> None:
    short = RateCurve((1.0, 4.0, 8.0, 2.0), 40 * SECOND, "made up")
    one, again, slow = (compared(curve=short, load_us=second * SECOND) for second in (5, 5, 30))
    assert as_json(one) == as_json(again)
    assert one.pool.attainment.requests > slow.pool.attainment.requests
    assert one.pool.reclaims.in_time > slow.pool.reclaims.in_time


def test_a_peak_that_leaves_nothing_for_training_is_refused() -> None:
    with pytest.raises(UsageError, match="the service's peak is 32 of 32 devices"):
        compared(peak_share=1.0)
    with pytest.raises(UsageError, match="no device is left"):
        without(load_cluster("2x4"), 8)


def test_devices_are_taken_off_the_last_nodes() -> None:
    assert [node.devices for node in without(load_cluster("3x4"), 5)] == [4, 3]
    assert [node.devices for node in without(load_cluster("3x4"), 4)] == [4, 4]


def test_attainment_by_hand() -> None:
    """Two bins of two seconds. One replica carries half of what comes, two all: in the first second there is one."""
    full = FLOW.capacity(2)
    arrivals = np.array([round(full)] * 3 + [0])
    found = attained(
        arrivals, SECOND, 2 * SECOND, 7 * SECOND, [(7 * SECOND, 8 * SECOND, 1), (8 * SECOND, 11 * SECOND, 2)], FLOW
    )
    part = FLOW.capacity(1) / full
    assert found.requests == pytest.approx((part + 2) / 3, abs=1e-3)
    assert found.bins == 0.5
    assert found.worst_bin == pytest.approx((part + 1) / 2, abs=1e-3)


def test_the_fewest_replicas_are_the_first_that_are_enough() -> None:
    def of(replicas: int) -> Attainment:
        return Attainment(requests=replicas / 10, bins=0.0, worst_bin=0.0)

    for aim in (0.05, 0.1, 0.55, 0.9):
        count, found = fewest_replicas(of, 10, lambda one, aim=aim: one.requests >= aim)
        assert found.requests >= aim and (count == 1 or of(count - 1).requests < aim)


def test_arrivals_follow_the_curve_and_begin_again_after_it() -> None:
    requests = DayOfRequests(CURVE, 1000.0)
    found = requests.arrivals(SECOND, 2 * requests.length_us, 1)
    halves = found.reshape(2, -1)
    assert halves.sum(1)[0] == pytest.approx(halves.sum(1)[1], rel=0.01)
    assert found[:180].mean() == pytest.approx(100, rel=0.05) and found[720:900].mean() == pytest.approx(1000, rel=0.02)
    assert (found == requests.arrivals(SECOND, 2 * requests.length_us, 1)).all()


def test_a_step_of_the_rate_is_not_taken_for_a_rise_that_goes_on() -> None:
    """The horizon has sixty looks. At most as much is expected again as has come."""
    rates = np.array([200] * 120 + [2000] * 120)
    settings = ScalingSettings(maximum=99, horizon_us=MINUTE)
    demand = RecordedDemand(rates, Autoscaler(PROFILE.table(), OBJECTIVE_US, settings), FLOW)
    wanted = [demand.wanted(second * SECOND, 99, 1) for second in range(240)]
    least, most = (replicas_for(rate, PROFILE.table(), OBJECTIVE_US, settings.utilisation, 99) for rate in (2000, 4000))
    assert least <= max(wanted) <= most
