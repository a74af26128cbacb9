"""Long work in the event loop, divided into short parts: other tasks run between two."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic

PART_S = 0.005
"""Longest part between two breaks. With several such works in progress a request waits for some tens of milliseconds."""


class CooperativeYield:
    """``await pause()`` often: it returns at once, or after a turn of the event loop when a part's time is over."""

    def __init__(self) -> None:
        self._until = monotonic() + PART_S

    async def __call__(self) -> None:
        if monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = monotonic() + PART_S


async def exhaust(work: Iterable[None]) -> None:
    """Go through work that has breaks."""
    pause = CooperativeYield()
    for _ in work:
        await pause()
