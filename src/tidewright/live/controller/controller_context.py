"""What a running controller consists of, and what it can say about itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import NotFound
from ...base.units import counted
from ...engine.commands import Ended
from ...model.job import State
from ...wire import agent as wire
from ...wire import api
from ...wire.own_file import owner_of
from ..api import views
from ..api.event_stream import EventStream
from ..api.explaining import Explainer
from ..api.metrics import Metrics
from ..journal.store import Journal
from ..reconcile.agent_pool import AgentPool
from .loop import Loop


@dataclass
class ControllerContext:
    """Handed to the API. ``shutdown(agent)`` ends the controller, and the agent with it when asked."""

    state: Path
    loop: Loop
    agent_pool: AgentPool
    event_stream: EventStream
    journal: Journal
    metrics: Metrics
    explainer: Explainer
    policy: str
    version: str
    epoch: int
    started: int
    shutdown: Callable[[bool], None]
    agents: int
    """How many agents there should be."""
    run_as: str
    """The unix account of all jobs; empty: that of the agents."""
    forget_reports: Callable[[str], None]
    """Of a workload: what its jobs have reported of their rates counts no longer."""
    mails: bool = False
    """Whether there is a mail server for notifications."""

    def info(self) -> api.Info:
        """The controller itself."""
        book = self.loop.driver.engine.book
        connected = len(self.agent_pool.connected)
        agent = "connected" if connected >= self.agents else f"{connected} of {counted(self.agents, 'agent')} connected"
        agent = agent if connected else "no agent is connected"
        low = self.loop.room()
        unwritable = self.loop.journal_error and f"the journal cannot be written: {self.loop.journal_error}"
        problems = (unwritable,) if unwritable else (low,) if low else ()
        return api.Info(
            version=self.version, pid=os.getpid(), state_dir=str(self.state), policy=self.policy, epoch=self.epoch,
            started=self.started, now=self.loop.clock.now(), turn=self.loop.driver.turns, revision=book.revision,
            nodes=len(book.nodes), devices=sum(book.board.layout.node_size), free=sum(book.board.free_total),
            live_jobs=len(book.specs), ended_jobs=self.journal.archive.count(), agent=agent,
            notices=(*self.journal.notices, *problems),
        )  # fmt: skip

    def ended(self, job: int) -> Ended | None:
        """The record of a job that has ended, durable or not yet; None where there is none."""
        return self.loop.pending_archive.get(job) or self.journal.archive.get(job)

    def log_owner(self, job: int) -> int | None:
        """Whose files the logs of a job must be; None: ranks run as we do. Raises NotFound for an account that is gone."""
        known = self.loop.driver.engine.book.specs.get(job)
        ended = None if known else self.ended(job)
        spec = known or (ended.spec if ended else None)
        run_as = self.run_as or (spec.run_as if spec else "")
        try:
            return owner_of(run_as)
        except KeyError:
            raise NotFound(f"the account {run_as} of job {job} does not exist here", "create it again") from None

    async def top(self) -> api.TopView:
        """The pool with what its agents measure now."""
        book, now = self.loop.driver.engine.book, self.loop.clock.now()
        nodes = self.agent_pool.connected
        answers = await asyncio.gather(*(self.agent_pool.usage(node) for node in nodes))
        used = {node: usage for node, usage in zip(nodes, answers, strict=True) if usage is not None}
        running = [job for job in book.allocations if job in book.specs]
        counts = book.counts
        return api.TopView(
            now=now, devices=sum(book.board.layout.node_size), held=views.held_devices(book),
            queued=counts[State.QUEUED] + counts[State.HELD], running=counts[State.RUNNING],
            suspended=counts[State.SUSPENDED], ended=self.journal.archive.count(),
            jobs=tuple(self._load(job, used, now) for job in sorted(running)), loads=self._devices(used),
            calibration=views.calibration_view(book.start_calibration),
        )  # fmt: skip

    def _load(self, job: int, used: dict[str, wire.Usage], now: int) -> api.JobLoad:
        book = self.loop.driver.engine.book
        view = views.live_job(book, job, now)
        mine = [one for usage in used.values() for one in usage.jobs if (one.job, one.attempt) == (job, view.attempt)]
        steps = [one.steps for one in mine if one.steps is not None]
        return api.JobLoad(
            job=job, name=view.name, tier=view.tier, team=view.team, state=view.state, devices=view.held,
            cpu_percent=sum(one.cpu_percent for one in mine), memory=sum(one.rss_bytes for one in mine),
            steps=max(steps, default=-1), fraction=view.fraction,
        )  # fmt: skip

    def _devices(self, used: dict[str, wire.Usage]) -> tuple[api.DeviceLoad, ...]:
        loads = []
        for node in views.nodes(self.loop.driver.engine.book):
            measured = {use.index: use for use in used[node.name].devices} if node.name in used else {}
            for device in range(node.devices):
                use = measured.get(device)
                loads.append(
                    api.DeviceLoad(
                        node=node.name, device=device, jobs=node.busy[device],
                        utilisation=use.percent if use else -1.0, memory_used=use.memory_used if use else -1,
                    )
                )  # fmt: skip
        return tuple(loads)
