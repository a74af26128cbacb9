"""The room ``explain`` for the controller: limits at once, everything else in a process of its own, so that the loop goes on.

However many ask, what waits is bounded: who asks the same of the same state of the pool waits for the same answer, questions of
one state share one snapshot, and of different questions no more than ``MOST_WAITING`` wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from ..base.errors import Busy, Conflict, UsageError
from ..engine.engine import Engine
from ..explain.questions import ANSWERS, ChangesQuestion, ForecastQuestion, Question, RehearsalQuestion
from ..explain.why import limit_of
from ..model.job import JobSpec
from ..plan.explain import Change, Explanation, Forecast, Rehearsal
from ..plan.plan import Planner
from .explain_process import AGAIN, ExplainProcess
from .explain_worker import OK, frame

BUDGET_S = 2.0
"""How long a search or a forecast goes on."""
MOST_WAITING = 10
"""Different questions that wait or are being answered: the last of them waits for about half a minute."""

_PoolState: TypeAlias = tuple[int, int]
"""A revision of the engine, and how far its step had come: long steps let others read between two events."""


_Key: TypeAlias = tuple[_PoolState, bytes]
"""What is asked of which state."""


class _Shared:
    """A question that is being answered, and how many wait for the answer."""

    def __init__(self, key: _Key, image: bytes, task: asyncio.Task[Any]) -> None:
        self.key, self.image, self.task = key, image, task
        self.askers = 0


class ProcessExplainer:
    """One worker process, started with the first question; one question at a time, in the order they come."""

    def __init__(self, policy: str, planner: Planner, budget_s: float = BUDGET_S) -> None:
        self._planner, self._budget_s = planner, budget_s
        self.process = ExplainProcess((sys.executable, "-m", "tidewright.app.explain_worker", policy))
        self._one = asyncio.Lock()
        self._shared: dict[_Key, _Shared] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        """Of questions that wait, and of those that were given up and are ending."""
        self._background: asyncio.Task[Any] | None = None
        """The controller's own question, which makes way for any other."""
        self._closed = False

    def limit(self, engine: Engine, job: int, now: int) -> Explanation:
        """Why a job is where it is."""
        return limit_of(engine, self._planner, job, now)

    async def changes(self, engine: Engine, found: Explanation, now: int = 0) -> tuple[Change, ...]:
        """The least changes that would start the job of ``found``; none where its limit is not to be lifted by any."""
        if not found.liftable:
            return ()
        answer: tuple[Change, ...] = await self._ask(engine, ChangesQuestion(found.job, now))
        return answer

    async def forecast(self, engine: Engine, jobs: Sequence[int], now: int = 0) -> tuple[Forecast, ...]:
        """When each of these jobs starts and ends."""
        answer: tuple[Forecast, ...] = await self._ask(engine, ForecastQuestion(tuple(jobs), now))
        return answer

    async def forecast_when_idle(self, engine: Engine, job: int, now: int = 0) -> Forecast | None:
        """When a job starts and ends; None where another question is under way, or comes before the answer."""
        if self._shared or self._closed or self._one.locked():
            return None
        task = self._background = asyncio.create_task(self._answer(engine.snapshot(), ForecastQuestion((job,), now)))
        try:
            found: Forecast = (await task)[0]
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():  # the controller ends
                raise
            return None
        finally:
            self._background = None
        return found

    async def rehearse(self, engine: Engine, specs: Sequence[JobSpec], now: int = 0) -> Rehearsal:
        """What would become of jobs submitted now."""
        answer: Rehearsal = await self._ask(engine, RehearsalQuestion(tuple(specs), now))
        return answer

    async def close(self) -> None:
        """End the process, and cancel the questions that wait; later ones are refused."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.process.close()

    async def _ask(self, engine: Engine, question: Question) -> Any:
        """A user's question: the controller's own is given up for it, and its process with it."""
        if self._closed:
            raise Conflict("the controller is stopping", "start it with tide up")
        if self._background is not None:
            self._background.cancel()
        shared = self._shared_with(engine, question)
        shared.askers += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.askers -= 1
            if not shared.askers:
                shared.task.cancel()
                self._forget(shared)  # it ends when its process has: who asks the same until then asks anew

    def _shared_with(self, engine: Engine, question: Question) -> _Shared:
        """The same question of the same state, if it is being answered; else one that is new. Raises Busy."""
        state = engine.revision, len(engine.book.out)
        key = state, _without_time(question)
        if key in self._shared:
            return self._shared[key]
        if len(self._shared) >= MOST_WAITING:
            wait_s = max(1.0, MOST_WAITING * self._budget_s / 2)
            text = f"{MOST_WAITING} questions wait to be answered already"
            raise Busy(text, f"ask again in {wait_s:.0f} s; tide why JOB --no-changes answers at once", wait_s)
        image = (
            next((other.image for other in self._shared.values() if other.key[0] == state), None) or engine.snapshot()
        )
        shared = self._shared[key] = _Shared(key, image, asyncio.create_task(self._answer(image, question)))
        self._tasks.add(shared.task)
        shared.task.add_done_callback(lambda task: self._settled(shared, task))
        return shared

    def _forget(self, shared: _Shared) -> None:
        if self._shared.get(shared.key) is shared:
            del self._shared[shared.key]

    def _settled(self, shared: _Shared, task: asyncio.Task[Any]) -> None:
        self._forget(shared)
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # or asyncio logs it where every asker has gone

    async def _answer(self, image: bytes, question: Question) -> Any:
        async with self._one:
            frames = frame(str(self._budget_s).encode()) + frame(image) + frame(msgspec.msgpack.encode(question))
            content = await self.process.exchange(frames)
        if content[:1] != OK:
            raise UsageError(f"no answer: {content[1:].decode(errors='replace')}", AGAIN)
        return msgspec.msgpack.decode(content[1:], type=ANSWERS[type(question)])


def _without_time(question: Question) -> bytes:
    """What is asked. Of the same state of the pool, a moment makes no other question."""
    return msgspec.msgpack.encode(msgspec.structs.replace(question, now=0))
