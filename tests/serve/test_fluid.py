"""The flow against the simulator that runs every request: what it says is answered in time is, and not much more."""

from __future__ import annotations

import pytest

from tidewright.base.errors import UsageError
from tidewright.base.units import MS, SECOND
from tidewright.serve.arrivals import RateCurve, along, poisson
from tidewright.serve.fluid import ServiceFlow
from tidewright.serve.lane import ServedModel
from tidewright.serve.profile import packaged_profile
from tidewright.serve.simulate import OfferedLoad, SimulatedPool, simulate

PROFILE = packaged_profile("resnet50-t4-fp32")
OBJECTIVE_US = 100 * MS
FLOW = ServiceFlow(PROFILE.table(), OBJECTIVE_US)
SLACK = 0.02
"""A hundredth that is late at ``PLANNED``, and as much again by chance: small pools see few requests in two seconds."""


def simulated(replicas: int, times) -> float:  # type: ignore[no-untyped-def]
    model = ServedModel("m", PROFILE, OBJECTIVE_US, "deadline")
    return simulate(SimulatedPool([model], replicas), [OfferedLoad("m", times)]).attainment


@pytest.mark.parametrize("replicas", [3, 6])
@pytest.mark.parametrize("load", [0.6, 1.0, 1.5])
def test_the_flow_is_a_bound_from_below(replicas: int, load: float) -> None:
    """Also under overload, where as much is answered in time and the rest refused."""
    rate = load * FLOW.capacity(replicas)
    found = simulated(replicas, poisson(rate, 2 * SECOND, 7))
    flow = FLOW.within(rate, replicas) / rate
    assert flow - SLACK <= found <= flow + 0.12


def test_a_curve_is_the_sum_of_its_bins() -> None:
    """Rates that go up and down across the capacity: bins are judged one by one."""
    curve = RateCurve((0.3, 1.6, 0.6, 2.0, 0.8), SECOND // 2, "hand")
    mean = FLOW.capacity(4) * sum(curve.rates) / len(curve.rates)
    rates = [rate * FLOW.capacity(4) for rate in curve.rates]
    flow = sum(FLOW.within(rate, 4) for rate in rates) / sum(rates)
    assert flow - SLACK <= simulated(4, along(curve, mean, 3)) <= flow + 0.12


def test_no_replica_carries_nothing_and_an_impossible_objective_is_refused() -> None:
    assert FLOW.within(100.0, 0) == 0.0
    with pytest.raises(UsageError, match="raise the objective"):
        ServiceFlow(PROFILE.table(), 1)
