"""Runs the tasks of a service until it is stopped or one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_until_stopped(stop: asyncio.Event, *parts: Coroutine[Any, Any, None]) -> None:
    """Returns when ``stop`` is set or a part returns; by then every part has ended, cancelled where it still ran. A part that
    fails cancels the others, and its exception is raised by itself, not in a group: callers catch errors by their type.

    Not an asyncio.TaskGroup: before Python 3.13 that drops the caller's own cancellation when a part answers its cancellation
    with an error, as a gRPC stream does, and a caller that retries on error would never end (python/cpython#116720)."""
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
