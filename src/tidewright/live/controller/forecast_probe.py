"""The controller's own questions: when will this waiting job start? The answers are journalled, and the engine counts how often
they hold (``engine.start_forecasts``).

It asks of one job at a time, drawn from those that wait, as their users would ask; of none twice; of none while nothing waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from random import Random

from ...base.errors import UsageError
from ...base.units import SECOND
from ...engine.book import QUEUED, Book
from ...engine.events import ForecastMade
from ..api.explaining import Explainer
from .loop import Loop

log = logging.getLogger(__name__)

EVERY_US = 15 * SECOND
"""Pause after a question, at least."""
WAITED_US = 5 * SECOND
"""So long a job has waited that is asked of: those that start at once are no forecast."""
_PAUSE_RATIO = 20
"""The pause is so many times as long as the last answer took: a twentieth of one core at most goes into answers."""
_DRAWS = 8
"""Jobs looked at for one that has not been asked of."""


class ForecastProbe:
    """Questions every ``every_us`` at most, of ``explainer``; the answers go to ``loop``."""

    def __init__(self, loop: Loop, explainer: Explainer, every_us: int = EVERY_US, dice: Random | None = None) -> None:
        self._loop, self._explainer, self._every_s = loop, explainer, every_us / SECOND
        self._dice = dice or Random()

    async def run(self) -> None:
        """Until it is cancelled; at once where ``every_us`` is 0."""
        pause = self._every_s
        while pause:
            await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                await self.ask()
            except Exception:  # the next question may be answered all the same
                log.exception("a forecast failed")
            pause = max(self._every_s, _PAUSE_RATIO * (time.monotonic() - began))

    async def ask(self) -> None:
        """One question, where a job waits of which none has been asked."""
        loop = self._loop
        now = loop.clock.now()
        job = None if loop.journal_error or loop.low else self._waiting(loop.driver.engine.book, now)
        if job is None:
            return
        try:
            found = await self._explainer.forecast_when_idle(loop.driver.engine, job, now)
        except UsageError as error:
            log.warning("no forecast of job %d: %s", job, error.message)
            return
        if found is None or found.start is None or found.start.middle < 0:
            return  # users asked meanwhile; or it starts later than is looked at, or not by itself
        loop.post(ForecastMade(job, now, found.start.low, found.start.middle, found.start.high))

    def _waiting(self, book: Book, now: int) -> int | None:
        """A job that has waited for a while, has not run yet, and has not been asked of."""
        if not book.counts[QUEUED]:
            return None
        table, n = book.table, book.table.n
        due = (table.state[:n] == QUEUED) & (table.first_start[:n] < 0) & (table.wait_since[:n] <= now - WAITED_US)
        jobs = table.id[:n][due].tolist()
        drawn = self._dice.sample(jobs, min(_DRAWS, len(jobs)))
        fresh = (job for job in drawn if book.jobs[job].start_forecast is None and job not in self._loop.rejected)
        return next(fresh, None)
