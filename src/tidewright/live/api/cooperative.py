"""Long work in the event loop, divided into short parts: other tasks run between two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TypeVar

from ..journal.archive import Archive
from ..journal.store import Journal

T = TypeVar("T")

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


async def of_archive(journal: Journal, ask: Callable[[Archive], T]) -> T:
    """What ``ask`` finds among the ended jobs, in a thread and on a connection of its own: a long search must not block the usual
    one."""
    archive = journal.reader()
    try:
        return await asyncio.to_thread(ask, archive)
    finally:
        archive.close()
