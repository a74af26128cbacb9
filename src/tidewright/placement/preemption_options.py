"""Offers of devices at a price, and the cheapest choice of them that reaches a number."""

from __future__ import annotations

from typing import Any, NamedTuple


class PreemptionOption(NamedTuple):
    """``gain`` devices of one node for ``cost``, by suspending ``rows`` or by shrinking the one row."""

    density: float
    rows: tuple[int, ...]
    cost: float
    gain: int
    shrink: bool


def cover(options: list[PreemptionOption], need: int) -> list[PreemptionOption]:
    """Offers whose gains reach ``need``: cheapest per device first, then without those that proved needless."""
    chosen: dict[int, PreemptionOption] = {}
    got = 0
    for option in options:
        if got >= need:
            break
        other = chosen.get(option.rows[0])
        if other is not None:
            if option.gain <= other.gain:
                continue
            got -= other.gain
        chosen[option.rows[0]] = option
        got += option.gain
    for option in sorted(chosen.values(), key=lambda option: (-option.cost, option.rows)):
        if got - option.gain >= need:
            got -= option.gain
            del chosen[option.rows[0]]
    loose = [option for option in options if option.gain >= need]
    single: Any = min(loose, key=lambda option: (option.cost, option.rows), default=None)
    if single is not None and single.cost < sum(option.cost for option in chosen.values()):
        return [single]
    return list(chosen.values())
