"""Offers of devices at a price, and the cheapest choice of them that reaches a number."""

from __future__ import annotations

from typing import Any, NamedTuple


class Offer(NamedTuple):
    """``gain`` devices of one node for ``cost``, by suspending ``rows`` or by shrinking the one row."""

    density: float
    rows: tuple[int, ...]
    cost: float
    gain: int
    shrink: bool


def cover(offers: list[Offer], need: int) -> list[Offer]:
    """Offers whose gains reach ``need``: cheapest per device first, then without those that proved needless."""
    chosen: dict[int, Offer] = {}
    got = 0
    for offer in offers:
        if got >= need:
            break
        other = chosen.get(offer.rows[0])
        if other is not None:
            if offer.gain <= other.gain:
                continue
            got -= other.gain
        chosen[offer.rows[0]] = offer
        got += offer.gain
    for offer in sorted(chosen.values(), key=lambda offer: (-offer.cost, offer.rows)):
        if got - offer.gain >= need:
            got -= offer.gain
            del chosen[offer.rows[0]]
    loose = [offer for offer in offers if offer.gain >= need]
    single: Any = min(loose, key=lambda offer: (offer.cost, offer.rows), default=None)
    if single is not None and single.cost < sum(offer.cost for offer in chosen.values()):
        return [single]
    return list(chosen.values())
