"""Questions about forks answered in a thread, for planners that have no name that a process could be started with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from ..engine.engine import Engine
from ..explain.changes import smallest_changes
from ..explain.forecast import forecast
from ..explain.questions import image_at
from ..explain.rehearsal import rehearse
from ..explain.why import limit_of
from ..model.job import JobSpec
from ..plan.explain import Change, Explanation, Forecast, Rehearsal
from ..plan.plan import Planner

_SAMPLES = 5


def explain(engine: Engine, planner: Planner, job: int, now: int = 0) -> Explanation:
    """The limit of a job with the least changes that lift it, as ``tide why`` shows them together."""
    found = limit_of(engine, planner, job, now)
    return msgspec.structs.replace(found, changes=_changes(engine.snapshot(), planner, found, now))


def _changes(image: bytes, planner: Planner, found: Explanation, now: int) -> tuple[Change, ...]:
    return smallest_changes(image_at(image, now), planner, found.job) if found.liftable else ()


class ThreadExplainer:
    """Fills ``live.api.explaining.Explainer``."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._one = asyncio.Lock()

    def limit(self, engine: Engine, job: int, now: int) -> Explanation:
        """As the process does."""
        return limit_of(engine, self._planner, job, now)

    async def changes(self, engine: Engine, found: Explanation, now: int = 0) -> tuple[Change, ...]:
        """As the process does."""
        image = engine.snapshot()
        async with self._one:
            return await asyncio.to_thread(_changes, image, self._planner, found, now)

    async def forecast(self, engine: Engine, jobs: Sequence[int], now: int = 0) -> tuple[Forecast, ...]:
        """As the process does, with fewer futures."""
        image = engine.snapshot()
        async with self._one:
            return await asyncio.to_thread(
                lambda: forecast(image_at(image, now), self._planner, jobs, samples=_SAMPLES)
            )

    async def forecast_when_idle(self, engine: Engine, job: int, now: int = 0) -> Forecast | None:
        """As the process does, but once begun it is carried through."""
        return None if self._one.locked() else (await self.forecast(engine, [job], now))[0]

    async def rehearse(self, engine: Engine, specs: Sequence[JobSpec], now: int = 0) -> Rehearsal:
        """As the process does, with fewer futures."""
        image = engine.snapshot()
        async with self._one:
            return await asyncio.to_thread(
                lambda: rehearse(Engine.restore(image_at(image, now)), self._planner, specs, samples=_SAMPLES)
            )

    async def close(self) -> None:
        """Nothing is left to end."""
