"""Pollux's model of goodput, and step times fitted to what was measured."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.estimate.goodput import StepSample, best_goodput, efficiency, fit, step_s
from tidewright.model.rate import Goodput, StepTime

from ..sizes import examples

TIMES = StepTime(0.03, 0.0008, 0.008, 0.0005, 0.06, 0.004, 1.7)
MODEL = Goodput({"gpu": TIMES}, 128, 16384, 256, 3000.0)


def goodput_of(batch: int, devices: int, nodes: int) -> float:
    """The paper's equations, one batch at a time."""
    per_device = math.ceil(batch / devices)
    accumulated = max(math.ceil(per_device / MODEL.most_per_device) - 1, 0)
    micro = math.ceil(per_device / (accumulated + 1))
    total = micro * (accumulated + 1) * devices
    return total / step_s(TIMES, devices, nodes, micro, accumulated) * efficiency(MODEL.noise, MODEL.batch, total)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 64), st.integers(1, 8))
def test_no_batch_is_much_better_than_the_one_chosen(devices: int, nodes: int) -> None:
    best = max(goodput_of(batch, devices, nodes) for batch in range(MODEL.batch, MODEL.most_batch + 1, 16))
    found = best_goodput(MODEL, "gpu", devices, nodes)
    assert 0.97 * best <= found


def test_one_device_never_synchronises_and_several_nodes_cost_more() -> None:
    assert step_s(TIMES, 1, 1, 64) == pytest.approx(0.03 + 0.0008 * 64)
    assert step_s(TIMES, 8, 1, 64) < step_s(TIMES, 8, 2, 64)
    assert step_s(TIMES, 8, 1, 64, accumulated=3) > 3 * (0.03 + 0.0008 * 64)


def test_efficiency_falls_with_the_batch() -> None:
    assert efficiency(3000, 128, 128) == 1.0
    assert efficiency(3000, 128, 16384) == pytest.approx(3128 / 19384)
    assert efficiency(0, 128, 256) == 0.5, "without noise a larger batch gains nothing"


def samples(noise: float, seed: int = 1) -> list[StepSample]:
    dice = np.random.Generator(np.random.PCG64(seed))
    shapes = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 2), (32, 4)]
    return [
        StepSample(
            devices, nodes, per, step_s(TIMES, devices, nodes, per) * float(np.exp(noise * dice.standard_normal()))
        )
        for devices, nodes in shapes
        for per in (16, 64, 128, 256)
    ]


@pytest.mark.parametrize(("noise", "bound"), [(0.0, 0.02), (0.05, 0.12)])
def test_a_fit_predicts_steps_that_it_has_not_seen(noise: float, bound: float) -> None:
    found = fit(samples(noise))
    for devices, nodes, per in ((2, 1, 200), (6, 1, 100), (24, 3, 48), (64, 8, 128)):
        true = step_s(TIMES, devices, nodes, per)
        assert step_s(found, devices, nodes, per) == pytest.approx(true, rel=bound)


def test_what_was_not_seen_is_taken_to_cost_nothing() -> None:
    """Optimism under uncertainty (Pollux, section 4.1): a job that ran on one device only is given two to learn more."""
    found = fit([one for one in samples(0.0) if one.devices == 1])
    assert found.local == found.remote == 0 and found.overlap == 1
    assert step_s(found, 8, 1, 64) == pytest.approx(step_s(TIMES, 1, 1, 64), rel=0.02)
    single = fit([StepSample(1, 1, 64, 0.25)])
    assert step_s(single, 1, 1, 64) == pytest.approx(0.25, rel=0.01)
    with pytest.raises(ValueError, match="at least one"):
        fit([])
