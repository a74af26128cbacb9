"""An event loop whose time passes only when nothing is left to do: waiting costs nothing, and a run is repeatable."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest import mock

from tidewright.live.controller import loop as live_loop
from tidewright.testing.crash import task_factory

T = TypeVar("T")


class _NoWaiting(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Instead of waiting, moves the time on."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits for something that never comes")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time()`` starts at 1000 s."""

    def __init__(self) -> None:
        self._virtual = _NoWaiting()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


async def _at_once(function: Callable[..., T], *args: Any) -> T:
    """What would be done in a thread is done here: threads know nothing of virtual time."""
    return function(*args)


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time."""
    with (
        mock.patch.object(asyncio, "to_thread", _at_once),
        mock.patch.object(live_loop, "SLOW_PLANNING_S", float("inf")),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        runner.get_loop().set_task_factory(task_factory)
        return runner.run(main)
