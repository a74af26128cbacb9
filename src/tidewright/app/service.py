"""Run a service of this process until SIGTERM or SIGINT. Loads nothing else: a small service must start fast."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Protocol


class Stoppable(Protocol):
    """Runs until ``stop`` is called."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


async def until_stopped(service: Stoppable) -> None:
    """Run it until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    await service.run()


def log_line(line: str) -> None:
    """A line of a service's log."""
    print(line, file=sys.stderr, flush=True)
