"""What the API asks of the room ``explain``, which ``app`` puts into a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...engine.engine import Engine
from ...model.job import JobSpec
from ...plan.explain import Change, Explanation, Forecast, Rehearsal


class Explainer(Protocol):
    """Answers about a pool. ``image``: a snapshot of its engine; ``now``: when it is asked, engine time (0: at the last step
    before the snapshot). Questions raise UsageError where no answer comes in time."""

    def limit(self, engine: Engine, job: int, now: int) -> Explanation:
        """Why a job is where it is, from the engine itself and at once. Raises KeyError for a job not in its book."""
        ...

    async def changes(self, image: bytes, found: Explanation) -> tuple[Change, ...]:
        """The least changes that would start the job of ``found``."""
        ...

    async def forecast(self, image: bytes, jobs: Sequence[int], now: int = 0) -> tuple[Forecast, ...]:
        """When each of these jobs starts and ends."""
        ...

    async def forecast_when_idle(self, image: bytes, job: int, now: int = 0) -> Forecast | None:
        """The same of one job, for the controller itself: None where a question is under way, or one comes before the answer."""
        ...

    async def rehearse(self, image: bytes, specs: Sequence[JobSpec], now: int = 0) -> Rehearsal:
        """What would become of jobs submitted now."""
        ...

    async def close(self) -> None:
        """No more questions come."""
        ...
