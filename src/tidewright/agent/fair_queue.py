"""A limit on how much runs at once, shared evenly between jobs: waiters are served round-robin by job, not first come first.

With one FIFO semaphore a job of 600 ranks keeps a job of one rank waiting until its last rank has started.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class FairQueue:
    """``limit`` holders at once. Must be used from one event loop."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()
        """Job to its waiters, oldest first; the job at the front is served next."""

    @contextlib.asynccontextmanager
    async def slot(self, job: int) -> AsyncIterator[None]:
        """Hold one of the slots on behalf of ``job``."""
        await self._acquire(job)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, job: int) -> None:
        if self._free:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # the slot was handed over just before the cancellation
                self._release()
            else:
                self._withdraw(job, waiter)
            raise

    def _release(self) -> None:
        """Hand the slot to the next job's first waiter, and put that job behind the others."""
        while self._waiting:
            job, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[job] = waiters
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1

    def _withdraw(self, job: int, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(job)
        if waiters is not None:
            with contextlib.suppress(ValueError):
                waiters.remove(waiter)
            if not waiters:
                del self._waiting[job]


class FairThreads:
    """Blocking work in ``limit`` threads of its own, round-robin between jobs."""

    def __init__(self, limit: int, name: str) -> None:
        self._queue = FairQueue(limit)
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix=name)

    async def run(self, job: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work(*args)``; what it raises comes out."""
        async with self._queue.slot(job):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Take no more work; what runs goes on to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
