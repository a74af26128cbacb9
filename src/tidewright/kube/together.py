"""Parts of a service that run until it is told to stop, or until one of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(stop: asyncio.Event, *parts: Coroutine[Any, Any, None]) -> None:
    """Until ``stop`` is set; raises what ended one of them. Afterwards none runs."""
    running = [asyncio.create_task(part) for part in parts]
    every: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait()), *running]
    try:
        await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            if task.done():
                task.result()
    finally:
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)
