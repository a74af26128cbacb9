"""The room ``explain`` for the controller: limits at once, everything else in a process of its own, so that the loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from ..base.errors import UsageError
from ..engine.engine import Engine
from ..explain.questions import ANSWERS, ChangesQuestion, ForecastQuestion, Question, RehearsalQuestion
from ..explain.why import limit_of
from ..model.job import JobSpec
from ..plan.explain import Change, Explanation, Forecast, Rehearsal
from ..plan.plan import Planner
from .explain_worker import LENGTH_BYTES, OK, frame, frame_length

log = logging.getLogger(__name__)

BUDGET_S = 2.0
"""How long a search or a forecast goes on."""
PATIENCE_S = 30.0
"""How long an answer may take; then the process is ended, and the next question starts another."""
_AGAIN = "ask again; tide why JOB --no-changes answers without a search"


class ProcessExplainer:
    """One worker process, started with the first question; one question at a time."""

    def __init__(self, policy: str, planner: Planner, budget_s: float = BUDGET_S) -> None:
        self._policy, self._planner, self._budget = policy, planner, str(budget_s).encode()
        self._one = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._background: asyncio.Task[Any] | None = None
        """The controller's own question, which makes way for any other."""

    def limit(self, engine: Engine, job: int, now: int) -> Explanation:
        """Why a job is where it is."""
        return limit_of(engine, self._planner, job, now)

    async def changes(self, image: bytes, found: Explanation) -> tuple[Change, ...]:
        """The least changes that would start the job of ``found``."""
        answer: tuple[Change, ...] = await self._ask_first(image, ChangesQuestion(found))
        return answer

    async def forecast(self, image: bytes, jobs: Sequence[int], now: int = 0) -> tuple[Forecast, ...]:
        """When each of these jobs starts and ends."""
        answer: tuple[Forecast, ...] = await self._ask_first(image, ForecastQuestion(tuple(jobs), now))
        return answer

    async def forecast_when_idle(self, image: bytes, job: int, now: int = 0) -> Forecast | None:
        """When a job starts and ends; None where another question is under way, or comes before the answer."""
        if self._one.locked():
            return None
        task = self._background = asyncio.create_task(self._ask(image, ForecastQuestion((job,), now)))
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

    async def rehearse(self, image: bytes, specs: Sequence[JobSpec], now: int = 0) -> Rehearsal:
        """What would become of jobs submitted now."""
        answer: Rehearsal = await self._ask_first(image, RehearsalQuestion(tuple(specs), now))
        return answer

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask_first(self, image: bytes, question: Question) -> Any:
        """A user's question: the controller's own is given up for it, and its process with it."""
        if self._background is not None:
            self._background.cancel()
        return await self._ask(image, question)

    async def _ask(self, image: bytes, question: Question) -> Any:
        frames = frame(self._budget) + frame(image) + frame(msgspec.msgpack.encode(question))
        async with self._one:
            try:
                content = await asyncio.wait_for(self._exchange(frames), PATIENCE_S)
            except TimeoutError:
                await self.close()
                raise UsageError(f"no answer within {PATIENCE_S:g} s", _AGAIN) from None
            except (OSError, asyncio.IncompleteReadError) as error:
                await self.close()
                log.warning("the process that answers questions has ended: %s", error)
                raise UsageError("the process that answers this has ended", _AGAIN) from None
            except BaseException:  # the client has gone: an answer half read would be taken for the next one's
                await self.close()
                raise
        if content[:1] != OK:
            raise UsageError(f"no answer: {content[1:].decode(errors='replace')}", _AGAIN)
        return msgspec.msgpack.decode(content[1:], type=ANSWERS[type(question)])

    async def _exchange(self, frames: bytes) -> bytes:
        process = await self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(frames)
        await process.stdin.drain()
        head = await process.stdout.readexactly(LENGTH_BYTES)
        return await process.stdout.readexactly(frame_length(head))

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidewright.app.explain_worker", self._policy,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        return self._process
