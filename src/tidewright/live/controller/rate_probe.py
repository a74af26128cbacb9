"""How fast jobs run here, from the samples they report (``TIDE_STEP_FILE``): the rates that differ from what is known are
journalled (``RatesLearnt``), and hold for every decision from then on.

Only a job that names its workload, has whole devices of one kind, and ran in one place through two readings is believed; a step
file that was not written meanwhile, or a job that went back, says nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from ...base.units import SECOND
from ...engine.book import Book
from ...engine.events import RatesLearnt
from ...model.board import kind_of, spread_of
from ...model.job import State
from ...model.node import Allocation, device_count
from ...model.rate import LearntRates, Place, ProgressReport, RateSettings, workload_at
from ...wire.agent import JobUsage
from ..reconcile.agent_pool import AgentPool
from .loop import Loop

log = logging.getLogger(__name__)

EVERY_US = 60 * SECOND
"""Between two readings."""
WARM_UP_US = 60 * SECOND
"""After a job began to run, or went on: compilation and cold caches are no rate. At most the pause between two readings."""
_LEAST_STEPS = 10
_RUNNING = int(State.RUNNING)


class _Reading(NamedTuple):
    """A job's counters, and all that must not change until the next reading."""

    same: tuple[int, int, Allocation, Place]
    at: int
    steps: int
    samples: int


class RateLearner(Protocol):
    """Makes rates of reports; ``app`` brings it."""

    def note(self, place: Place, job: int, report: ProgressReport) -> None:
        """Keep a report."""
        ...

    def forget(self, workload: str) -> None:
        """Nothing was reported of this."""
        ...

    def news(self, declared: RateSettings, learnt: LearntRates) -> tuple[LearntRates, tuple[str, ...]]:
        """What differs from what is in force, and remarks on reports that are not believed. Called in a thread."""
        ...


class RateProbe:
    """Readings every ``every_us``; ``learner`` is given them, and asked what they show."""

    def __init__(self, loop: Loop, agent_pool: AgentPool, learner: RateLearner, every_us: int = EVERY_US) -> None:
        self._loop, self._agent_pool, self._every_s = loop, agent_pool, every_us / SECOND
        self._learner, self._warm_up_us = learner, min(WARM_UP_US, every_us)
        self._last: dict[int, _Reading] = {}
        self._told: set[str] = set()

    async def run(self) -> None:
        """Until it is cancelled; at once where ``every_us`` is 0."""
        while self._every_s:
            await asyncio.sleep(self._every_s)
            try:
                await self.read()
            except Exception:  # the next reading may be taken all the same
                log.exception("rates could not be read")

    async def read(self) -> None:
        """One reading of every job that may say something, and what it has shown."""
        loop = self._loop
        book = loop.driver.engine.book
        places = dict(_places(book))
        self._last = {job: reading for job, reading in self._last.items() if job in places}
        if not places or loop.journal_error or loop.low:
            return
        nodes = {book.board.layout.nodes[part.node].name for job in places for part in book.allocations[job]}
        connected = [node for node in self._agent_pool.connected if node in nodes]
        answers = await asyncio.gather(*(self._agent_pool.usage(node) for node in connected))
        now, places = loop.clock.now(), dict(_places(book))
        for node, usage in zip(connected, answers, strict=True):
            for used in usage.jobs if usage else ():
                # Of a gang that several nodes have, the node of rank 0 speaks.
                if used.job in places and book.board.layout.nodes[book.allocations[used.job][0].node].name == node:
                    self._take(book, used, places[used.job], now)
        await self._tell(book)

    def forget(self, workload: str) -> None:
        """Reports of this workload count no longer; its jobs have to show their rates anew."""
        self._learner.forget(workload)
        self._last = {job: reading for job, reading in self._last.items() if reading.same[3].workload != workload}

    def _take(self, book: Book, used: JobUsage, place: Place, now: int) -> None:
        """A job's counters; with those of the reading before they are a report."""
        if used.steps is None or used.samples is None:
            return
        row = book.table.row[used.job]
        since, attempt = book.table.run_since.item(row), book.table.attempt.item(row)
        if attempt != used.attempt or now - since < self._warm_up_us:
            return
        new = _Reading((attempt, since, book.allocations[used.job], place), now, used.steps, used.samples)
        last = self._last.get(used.job)
        if last is None or last.same != new.same or new.steps < last.steps or new.samples < last.samples:
            self._last[used.job] = new
            return
        steps, samples = new.steps - last.steps, new.samples - last.samples
        if steps < _LEAST_STEPS or not samples or new.at <= last.at:
            return  # few steps are long ones: they are counted over more readings
        self._last[used.job] = new
        self._learner.note(place, used.job, ProgressReport(steps, samples, (new.at - last.at) / SECOND))

    async def _tell(self, book: Book) -> None:
        declared, learnt = book.settings.rates, book.learnt_rates
        # A fit takes tenths of a second.
        found, remarks = await asyncio.to_thread(self._learner.news, declared, learnt)
        for remark in remarks:
            place = remark.partition(" reports ")[0]
            if place not in self._told:
                self._told.add(place)
                log.warning("%s", remark)
        if found != LearntRates():
            self._loop.post(RatesLearnt(found))


def _places(book: Book) -> Iterable[tuple[int, Place]]:
    """Running jobs of a named workload on whole devices, no two ranks of which take turns, and where they run."""
    table, layout = book.table, book.board.layout
    for job, allocation in book.allocations.items():
        spec = book.specs.get(job)
        if spec is None or spec.shares or not any(spec.workloads) or table.state.item(table.row[job]) != _RUNNING:
            continue
        if device_count(allocation) < min(spec.ranks, spec.devices):
            continue
        workload = workload_at(spec, table.ideal.item(table.row[job]))
        if workload:
            nodes = spread_of(layout, allocation).nodes
            yield job, Place(workload, kind_of(layout, allocation), device_count(allocation), nodes)
