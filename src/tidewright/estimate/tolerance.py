"""How long jobs with a promise that have ended lately could have stood idle, and when they ended.

It tells whether jobs come to a pool that cannot wait until another has released its devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ..base.units import SECOND
from ..model.job import TIER_TARGET, Tier

Tolerances: TypeAlias = dict[str, dict[int, int]]
"""Kind of device, then the number of binary digits of the seconds that a job could have stood idle, to when the last such job
ended (absolute microseconds). Never changed, but replaced: views share it."""


def noted(known: Tolerances, kinds: Iterable[str], tier: int, ran_us: int, now: int) -> Tolerances:
    """With a job of ``tier``, which accepted these ``kinds``, that has ended now after ``ran_us`` of run time."""
    target = TIER_TARGET[Tier(tier)]
    if not target:
        return known
    digits = int(ran_us * (1 / target - 1) // SECOND).bit_length()
    return {**known, **{kind: {**known.get(kind, {}), digits: now} for kind in kinds}}
