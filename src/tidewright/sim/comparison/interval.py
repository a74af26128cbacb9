"""Means and their 95 % intervals, by Student's t. Quantiles are tabled: scipy is an extra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from msgspec import Struct

_T975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314,
    2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_Z975 = 1.959964


class MeanInterval(Struct, frozen=True):
    """``mean`` ± ``half_width``; None where there is one value, which says nothing of how far others lie."""

    mean: float
    half_width: float | None = None


def t975(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; beyond 30 degrees by Cornish and Fisher's expansion (within 0.0001)."""
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z = _Z975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval(values: Sequence[float]) -> MeanInterval:
    """The mean of independent values and the half-width of its 95 % interval. Not a number where one of them is none."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return MeanInterval(fmean(values))
    return MeanInterval(fmean(values), t975(len(values) - 1) * stdev(values) / math.sqrt(len(values)))
