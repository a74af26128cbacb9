"""Student's intervals, against values that scipy.stats.t gives."""

from __future__ import annotations

import math

import pytest

from tidewright.sim.comparison.interval import interval, t975

SCIPY_T975 = {
    1: 12.706204736, 2: 4.302652730, 4: 2.776445105, 10: 2.228138852, 30: 2.042272456, 31: 2.039513446,
    50: 2.008559112, 100: 1.983971519, 1000: 1.962339081,
}  # fmt: skip


@pytest.mark.parametrize(("freedom", "expected"), SCIPY_T975.items())
def test_quantiles_of_t(freedom: int, expected: float) -> None:
    assert t975(freedom) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("values", "mean", "half_width"),
    [((1, 2, 4, 8), 3.75, 4.925942), ((0.93, 0.95, 0.91), 0.93, 0.0496828), ((5, 5, 5), 5, 0.0)],
)
def test_half_widths(values: tuple[float, ...], mean: float, half_width: float) -> None:
    found = interval(values)
    assert found.mean == pytest.approx(mean)
    assert found.half_width == pytest.approx(half_width, rel=1e-4)


def test_one_value_has_no_interval() -> None:
    assert interval([3.0]).half_width is None


def test_a_value_that_is_no_number_makes_the_mean_none() -> None:
    found = interval([3.0, math.nan])
    assert math.isnan(found.mean) and found.half_width is None
