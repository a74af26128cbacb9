"""What the API asks of the room ``explain``, which ``app`` puts into a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...engine.engine import Engine
from ...model.job import JobSpec
from ...plan.explain import Change, Explanation, Forecast, Rehearsal


class Explainer(Protocol):
    """Answers about the pool of ``engine`` as it is when asked; ``now``: when that is, engine time (0: at its last step).

    Questions raise Busy where too many wait already, Conflict once no more are answered, and UsageError where no answer comes.
    """

    def limit(self, engine: Engine, job: int, now: int) -> Explanation:
        """Why a job is where it is, from the engine itself and at once. Raises KeyError for a job not in its book."""
        ...

    async def changes(self, engine: Engine, found: Explanation, now: int = 0) -> tuple[Change, ...]:
        """The least changes that would start the job of ``found``."""
        ...

    async def forecast(self, engine: Engine, jobs: Sequence[int], now: int = 0) -> tuple[Forecast, ...]:
        """When each of these jobs starts and ends."""
        ...

    async def forecast_when_idle(self, engine: Engine, job: int, now: int = 0) -> Forecast | None:
        """The same of one job, for the controller itself: None where a question is under way, or one comes before the answer."""
        ...

    async def rehearse(self, engine: Engine, specs: Sequence[JobSpec], now: int = 0) -> Rehearsal:
        """What would become of jobs submitted now."""
        ...

    async def close(self) -> None:
        """No more questions come."""
        ...
