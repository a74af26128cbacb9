"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import math
import random

MOST_DOUBLINGS = 16


def pause_s(tries: int, bounds_s: tuple[float, float], rng: random.Random | None = None) -> float:
    """After ``tries`` failures before this one: the first bound doubled that often, at most the second, and drawn from its upper
    half, so that clients which failed together do not come back together."""
    low_s, high_s = bounds_s
    longest_s = min(high_s, math.ldexp(low_s, min(tries, MOST_DOUBLINGS)))
    return longest_s * (rng or random).uniform(0.5, 1.0)
