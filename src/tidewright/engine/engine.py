"""The engine: one step takes events and gives commands; it is the only writer of the book."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..base.errors import Bug
from ..model.view import View
from . import events as ev
from . import periodic, rates, reports, runtime_clients, start_forecasts, waking
from .apply_plan import apply_plan
from .book import Book
from .check import check_all, check_touched
from .commands import Command, PlanRequest
from .nodes import node_events
from .requests import admission, arrays, hold, requeue, update, user_requests
from .services import replicas, start_image
from .settings import EngineSettings
from .snapshots.snapshot import dump, load
from .termination import withdraw_orders

_HANDLERS: dict[type, Callable[[Book, Any], None]] = {
    ev.Submit: admission.submit,
    ev.JobIdsUsed: admission.skip_ids,
    ev.Cancel: user_requests.cancel,
    ev.Hold: user_requests.hold,
    ev.Release: user_requests.unhold,
    ev.Update: update.update,
    ev.Requeue: requeue.requeue,
    ev.NodeDown: node_events.node_down,
    ev.NodeSilent: node_events.node_silent,
    ev.NodeHealth: node_events.node_health,
    ev.NodeDrain: user_requests.drain,
    ev.Started: reports.started,
    ev.StartFailed: reports.start_failed,
    ev.Exited: reports.exited,
    ev.Suspended: reports.suspended,
    ev.SuspendFailed: reports.suspend_failed,
    ev.Resumed: reports.resumed,
    ev.ResumeFailed: reports.resume_failed,
    ev.Checkpointed: periodic.checkpointed,
    ev.CheckpointFailed: periodic.checkpoint_failed,
    ev.ImageCopied: periodic.image_copied,
    ev.LevelLowered: periodic.level_lowered,
    ev.Noticed: reports.noticed,
    ev.ClockOffset: hold.clock_offset,
    ev.Move: user_requests.move,
    ev.Scale: user_requests.scale,
    ev.LimitArray: arrays.limit,
    ev.TakeImage: user_requests.take_image,
    ev.ForecastMade: start_forecasts.forecast_made,
    ev.RatesLearnt: rates.learn,
    ev.ForgetRates: user_requests.forget_rates,
    ev.DeployService: replicas.deploy,
    ev.ScaleService: replicas.scale,
    ev.DeleteService: replicas.delete,
    ev.ReplicaReady: replicas.ready,
    ev.TakeServiceImage: start_image.take,
}


class Engine:
    """Deterministic: the same settings and the same (time, events) give the same commands, on any machine."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.book = Book(self.settings)
        self.refused_moves: dict[str, int] = {}
        """Moves of plans that did not hold when they were applied, by code, since this engine was made; no part of the book."""

    @property
    def revision(self) -> int:
        """Grows by one with every step."""
        return self.book.revision

    def view(self, now: int = 0) -> View:
        """What a planner may know, frozen; ``now``: the reader's time, if that is later than the book's."""
        return self.book.view(now)

    def enforce(self, settings: EngineSettings) -> None:
        """From the next step on these settings hold. They are no event: the owner of the journal records them beside it."""
        changed = settings.rates != self.settings.rates or settings.splice_milli != self.settings.splice_milli
        self.settings = self.book.settings = settings
        if changed:
            self.book.own()
            rates.refresh(self.book)

    def replan(self) -> None:
        """The next step asks for a plan, whatever the last plan waits for and whether or not another one is being made."""
        self.book.forced = True
        self.discard_plan()

    def discard_plan(self) -> None:
        """The plan that is being made, if one is, is not waited for: a step may ask for another."""
        self.book.planning = False

    def due(self) -> int | None:
        """When the next timer fires, absolute microseconds."""
        timers = self.book.timers
        return timers[0][0] if timers else None

    def step(self, now: int, events: Sequence[ev.Event]) -> list[Command]:
        """Take what happened at ``now`` (µs, never before the last step's) and say what to do about it.

        Raises Bug when an invariant breaks; the book must then be rebuilt from the journal.
        """
        for _ in self.step_in_parts(now, events):
            pass
        return self.book.out

    def step_in_parts(self, now: int, events: Sequence[ev.Event]) -> Iterator[None]:
        """The same step, with a break after every event; its commands are ``book.out`` once it is over.

        In a break the book is consistent and may be read, but nothing may be kept of it: the step goes on.
        """
        book = self.book
        if now < book.now:
            raise Bug(f"time went backwards: {book.now} -> {now}")
        book.own()
        book.now = now
        book.revision += 1
        book.steps += 1
        book.out = []
        book.touched, book.withdrawn = {}, {}
        yield from self._take(events)
        self._fire(now)
        if book.outages.changed:
            node_events.settle(book)
        replicas.settle(book)
        runtime_clients.settle(book)  # replicas may be clients
        withdraw_orders(book)
        self._request_plan()
        book.board.forget_marks()
        book.phys.forget_marks()
        check_touched(book)
        if book.steps % self.settings.check_every == 0:
            check_all(book)

    def _take(self, events: Sequence[ev.Event]) -> Iterator[None]:
        arrivals: list[ev.NodeUp] = []
        for event in events:
            if isinstance(event, ev.NodeUp):
                arrivals.append(event)
                continue
            if arrivals:
                node_events.nodes_up(self.book, arrivals)
                arrivals = []
            if isinstance(event, ev.PlanReady):
                self._plan_ready(event)
            elif isinstance(event, ev.PlanFailed):
                self.book.set_timer(self.book.now + self.settings.planning_retry_us, "think")
            elif not isinstance(event, ev.Tick):
                _HANDLERS[type(event)](self.book, event)
            yield
        if arrivals:
            node_events.nodes_up(self.book, arrivals)

    def _plan_ready(self, event: ev.PlanReady) -> None:
        book, plan = self.book, event.plan
        if not book.planning:
            return
        book.planning = False
        book.wake = plan.wake
        book.blocked = {blocked.job: blocked for blocked in plan.blocked}
        if plan.state is not None:
            book.policy_state = plan.state.policy, plan.state.data
        waking.set_timer(book)
        waking.ended_meanwhile(book)
        for job in apply_plan(book, plan, self.refused_moves):
            if job in book.reservations:  # a later move of the same plan may have stopped it
                reports.try_launch(book, job)

    def _fire(self, now: int) -> None:
        timers = self.book.timers
        while timers and timers[0][0] <= now:
            _, _, kind, job, token = heapq.heappop(timers)
            if kind == "wake":
                waking.set_timer(self.book)
            else:
                reports.timer(self.book, kind, job, token)

    def _request_plan(self) -> None:
        """Ask for a plan if one could change anything."""
        book = self.book
        if book.planning or not waking.plan_worthwhile(book):
            return
        book.planning = True
        book.arrived = book.freed = book.forced = book.refused = False
        book.first_arrival = 0
        book.out.append(PlanRequest(book.revision))

    def snapshot(self) -> bytes:
        """The whole book as bytes (see engine.snapshot)."""
        return dump(self.book)

    @staticmethod
    def restore(data: bytes) -> Engine:
        """An engine equal to the one whose ``snapshot`` this is."""
        engine = Engine.__new__(Engine)
        engine.book = load(data)
        engine.settings = engine.book.settings
        engine.refused_moves = {}
        return engine

    def fork(self) -> Engine:
        """An independent copy, for questions of the kind "what if"."""
        return Engine.restore(self.snapshot())
