"""The run loop of the controller: wait, step, commit, carry out, answer. It sleeps whenever nothing is due."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from ...base.errors import WorldError
from ...drive.driver import EngineDriver
from ...engine.commands import Command, Ended, PlanRequest, Reply
from ...engine.events import Cancel, ClockOffset, Event, PlanFailed, PlanReady, Submit, Tick
from ...model.view import View
from ...plan.plan import Plan, Planner
from ...wire.own_directory import OwnDirectory, lost_error
from ..api.cooperative import CooperativeYield, exhaust
from ..api.event_stream import EventStream
from ..journal.archive import row_of
from ..journal.store import Journal, JournalFull
from ..reconcile.agent_pool import AgentPool
from .clock import Clock
from .disk_space import Reserve

log = logging.getLogger(__name__)
MANY = 1_000
"""Events of a step from which on the objects it made are frozen for the garbage collector (gc.freeze)."""
SNAPSHOT_EVERY = 5_000
"""Turns between snapshots. Replaying as many takes a few tenths of a second, taking one 10 ms (bench/startup.py)."""
COMMIT_RETRY_S = 1.0
SLOW_PLANNING_S = 0.02
"""A planner that took longer than this is given a thread of its own next time, so that reports are not kept waiting."""
ROOM_EVERY_S = 5.0
"""How often a disk that was full is looked at again."""
CLOCK_CHECK_S = 30.0
"""How often an idle controller looks whether the wall clock was set."""
CLOCK_TOLERANCE_US = 500_000
"""Differences below this are not worth a record."""
SCRUB_EVERY_S = 10.0
SCRUB_ROWS = 2_000
"""Rows of old history verified at a time while idle: about 5 ms of work."""


Item = Event | Callable[[], list[Event]]


class NotDurable(WorldError):
    """The disk does not take the journal: the request was not acknowledged."""

    http_status = 507


class _Replies:
    """Answers that one caller waits for; ``complete`` has them all, by op_id."""

    def __init__(self, wanted: int, complete: asyncio.Future[dict[str, Reply]]) -> None:
        self._wanted, self.complete = wanted, complete
        self._found: dict[str, Reply] = {}

    def add(self, reply: Reply) -> None:
        self._found[reply.op_id] = reply
        if len(self._found) == self._wanted and not self.complete.done():
            self.complete.set_result(self._found)

    def refuse(self, error: Exception) -> None:
        if not self.complete.done():
            self.complete.set_exception(error)


class Loop:
    """Owns the book between ``run`` and its end. Everything else talks to it through ``post`` and ``request``."""

    def __init__(
        self,
        driver: EngineDriver,
        journal: Journal,
        clock: Clock,
        planner: Planner,
        event_stream: EventStream,
        reserve: Reserve | None = None,
        own: OwnDirectory | None = None,
    ) -> None:
        self.driver, self.journal, self.clock, self.planner, self.event_stream = (
            driver,
            journal,
            clock,
            planner,
            event_stream,
        )
        self.agent_pool: AgentPool | None = None
        self.note: Callable[[list[Command]], None] = _ignore
        """Called with the commands of every durable step (metrics)."""
        self.journal_error = ""
        """Why the journal cannot be written at present; empty when it can."""
        self.low = ""
        """Why nothing new is accepted, though the journal can be written: the disk is full but for what was reserved."""
        self.gone = ""
        """Why the state directory is not this controller's any more; empty while it is."""
        self._own = own
        self.rejected: dict[int, bool] = {}
        """Jobs in the book that were not accepted, because their turn could not be made durable; they are being cancelled."""
        self._reserve = reserve
        self._inbox: asyncio.Queue[Item] = asyncio.Queue()
        self._waiting: dict[str, list[_Replies]] = {}
        self._planning_task: asyncio.Task[None] | None = None
        self.last_planning_s = 0.0
        self._snapshot_at = driver.turns
        self.stopping = False
        self.pending_archive: dict[int, Ended] = {}
        """Jobs that have left the book in a turn that is not durable yet."""

    # -- talking to the loop ----------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """Queue an event for the engine, without waiting for an answer."""
        self._inbox.put_nowait(event)

    def run_between_steps(self, work: Callable[[], list[Event]]) -> None:
        """Have ``work`` called between two steps; the events it returns go into the next one."""
        self._inbox.put_nowait(work)

    async def request(self, event: Event, op_id: str) -> Reply:
        """Queue an event and wait until the engine's answer is durable. Raises NotDurable when the disk is full."""
        return (await self.request_all({op_id: event}))[op_id]

    async def request_all(self, events: Mapping[str, Event]) -> dict[str, Reply]:
        """Queue several events for one step, by op_id, and wait until all answers are durable. Raises NotDurable and
        DirectoryLost."""
        if gone := self.lost():
            raise lost_error(gone)
        if why := self.journal_error or (any(isinstance(event, Submit) for event in events.values()) and self.room()):
            raise NotDurable(why)
        replies = _Replies(len(events), asyncio.get_running_loop().create_future())
        for op_id, event in events.items():
            self._waiting.setdefault(op_id, []).append(replies)
            self.post(event)
        return await replies.complete

    def room(self) -> str:
        """Why nothing new is accepted; empty when the disk has room. The reserve is made whole when it can be."""
        if self._reserve is not None and not self.journal_error and not self.lost():
            before, self.low = self.low, self._reserve.check()
            if bool(before) != bool(self.low):
                log.warning("%s", self.low or "there is room on the disk again")
        return self.low

    def lost(self) -> str:
        """Why the state directory is not this controller's any more: it ends then, and acknowledges nothing; else empty."""
        if not self.gone and self._own is not None and (why := self._own.lost()):
            self.gone = why
            log.error("%s: this controller ends; processes of jobs run on", why)
            self.stop()
        return self.gone

    async def watch_directory(self) -> None:
        """Until the state directory is lost, which ends ``run``."""
        if self._own is not None:
            await self._own.until_lost()
            self.lost()

    def stop(self) -> None:
        """End ``run`` after the turn in progress."""
        self.stopping = True
        self.post(Tick())

    # -- the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until ``stop``: gather events, step, commit, carry out. A Bug ends it; the journal is intact then."""
        if self.driver.engine.book.planning:
            self._start_planning()
        if self._corrections():
            self.post(Tick())  # nothing is shown by a clock that is known to be wrong
        while not self.stopping:
            events = await self._gather()
            if events is None:
                continue
            commands = await self._step(events)
            if not await self._commit(events):
                break
            self.pending_archive.clear()
            self.event_stream.publish()
            self.note(commands)
            self._carry_out(commands, events)
            if self.driver.turns - self._snapshot_at >= SNAPSHOT_EVERY and not self.low:
                await self._snapshot_in_thread()
        await self._close()

    async def _step(self, events: list[Event]) -> list[Command]:
        """One step. Requests are answered in its breaks, by a book that is ahead of the journal until the commit."""
        book, pause, seen = self.driver.engine.book, CooperativeYield(), 0
        for _ in self.driver.step_in_parts(self.clock.now(), events):
            for command in book.out[seen:]:
                if isinstance(command, Ended):
                    self.pending_archive[command.job] = command
            seen = len(book.out)
            await pause()
        for command in book.out:
            if isinstance(command, Ended):
                self.rejected.pop(command.job, None)
                self.journal.end(row_of(self.driver.turns, command))
                self.pending_archive[command.job] = command
        await exhaust(self.event_stream.observe_in_parts(self.driver.turns, book, book.out))
        if len(events) >= MANY:
            # Its jobs stay for long, and are freed by their counts: a collector that walks 50,000 of them takes 0.2 s each time.
            gc.freeze()
        return book.out

    async def _gather(self) -> list[Event] | None:
        """Events that are there, or the first to come; a Tick when a timer is due; None when nothing came."""
        due = self.driver.engine.due()
        left = None if due is None else max(0.0, (due - self.clock.now()) / 1e6)
        scrubbing = self.journal.scrub_from[0] < self.journal.scrub_to
        if scrubbing:
            left = SCRUB_EVERY_S if left is None else min(left, SCRUB_EVERY_S)
        if self.low:
            left = ROOM_EVERY_S if left is None else min(left, ROOM_EVERY_S)
        left = CLOCK_CHECK_S if left is None else min(left, CLOCK_CHECK_S)
        try:
            items = [await asyncio.wait_for(self._inbox.get(), left)]
        except TimeoutError:
            corrections = self._corrections()
            if corrections or (due is not None and due <= self.clock.now()):
                return [*corrections, Tick()]
            if scrubbing:
                self._scrub()
            if self.low:
                self.room()
            return None
        items += self._drain()
        events: list[Event] = self._corrections()
        for item in items:
            if callable(item):
                events.extend(item())
            else:
                events.append(item)
        return events or None

    def _corrections(self) -> list[Event]:
        """What the engine is to know of the wall clock: that it is not, or no more, where it was."""
        offsets, since, now = self.driver.engine.book.wall_offsets, self.clock.since, self.clock.now()
        measured = self.clock.wall() - now
        if offsets and offsets[-1].since != since:
            return [ClockOffset(since, measured)]
        known = offsets[-1].offset_us if offsets else 0
        return [ClockOffset(since, measured)] if abs(measured - known) >= CLOCK_TOLERANCE_US else []

    async def _commit(self, events: list[Event]) -> bool:
        """Make the step durable. While the disk refuses, requests are rejected and jobs run on; nothing is lost.

        False when the loop is to end and the disk still refuses: the step never happened, and its events are requested
        and reported again after the next start.
        """
        self.journal.next_job = max(self.journal.next_job, self.driver.engine.book.next_job)
        while True:
            if why := self.lost():  # what is written now is read by no later start
                self.journal_error = why
                self.reject_waiting(events)
                return False
            try:
                await asyncio.to_thread(self.journal.commit)
            except WorldError as error:
                if self._reserve_given_up(error):
                    continue
                if not self.journal_error:
                    log.error("%s; tried again every second", error)
                self.journal_error = str(error)
                self.reject_waiting(events)
                if self.stopping:
                    return False
                await asyncio.sleep(COMMIT_RETRY_S)
            else:
                if self.journal_error:
                    log.warning("the journal can be written again")
                self.journal_error = ""
                return True

    def _reserve_given_up(self, error: WorldError) -> bool:
        """On a full disk the journal goes on in what was reserved for it; false when none of that is left."""
        if not isinstance(error, JournalFull) or self._reserve is None or not self._reserve.release():
            return False
        self.journal.claim_room()
        self.low = f"{error}; what was reserved is used up"
        log.warning("%s; going on in the reserve: nothing new is accepted until there is room", error)
        return True

    def reject_waiting(self, events: list[Event]) -> None:
        """Answer waiting requests with NotDurable. Jobs that they submitted are cancelled before they could start."""
        refused, self._waiting = self._waiting, {}
        for futures in refused.values():
            for replies in futures:
                replies.refuse(lost_error(self.gone) if self.gone else NotDurable(self.journal_error))
        kept = [item for item in self._drain() if getattr(item, "op_id", "") not in refused]
        for item in [*self._undone(events, refused), *kept]:
            self._inbox.put_nowait(item)

    def _undone(self, events: list[Event], refused: Mapping[str, object]) -> Iterator[Event]:
        """Cancellations of the jobs that this step admitted for requests that were rejected."""
        book = self.driver.engine.book
        for event in events:
            answer = book.answers.get(event.op_id) if isinstance(event, Submit) and event.op_id in refused else None
            row = None if answer is None else book.table.row.get(answer.job)
            if answer is not None and row is not None and book.table.submit[row] == book.now:
                self.rejected[answer.job] = True
                yield Cancel(answer.job)

    def _drain(self) -> list[Item]:
        items: list[Item] = []
        while not self._inbox.empty():
            items.append(self._inbox.get_nowait())
        return items

    def _carry_out(self, commands: list[Command], events: list[Event]) -> None:
        for command in commands:
            if isinstance(command, Reply):
                for replies in self._waiting.pop(command.op_id, ()):
                    replies.add(command)
            elif isinstance(command, PlanRequest):
                self._start_planning()
        if self.agent_pool is not None:
            self.agent_pool.carry_out(commands, events)

    async def _snapshot_in_thread(self) -> None:
        """As ``snapshot``; the disk is waited for in a thread."""
        self._snapshot_at = self.driver.turns
        body = self.driver.engine.snapshot()
        try:
            await asyncio.to_thread(self.journal.snapshot, body)
        except WorldError as error:
            log.warning("no snapshot taken: %s", error)

    def snapshot(self) -> None:
        """Keep the book, so that the next start replays little. A full disk only makes that start slower."""
        self._snapshot_at = self.driver.turns
        try:
            self.journal.snapshot(self.driver.engine.snapshot())
        except WorldError as error:
            log.warning("no snapshot taken: %s", error)

    def _scrub(self) -> None:
        try:
            self.journal.scrub(SCRUB_ROWS)
        except Exception as error:
            log.error("%s", error)
            self.journal.notices.append(str(error))

    # -- planning ---------------------------------------------------------------------------------------------------

    def _start_planning(self) -> None:
        """Begin a planning round; a slow planner runs in a thread, while steps go on."""
        if self.last_planning_s > SLOW_PLANNING_S:
            self._planning_task = asyncio.get_running_loop().create_task(
                self._plan_in_thread(self.driver.engine.view())
            )
        else:
            view = self.driver.engine.view()
            self.post(self._planning_result(lambda: self.planner.plan(view), view.revision))

    async def _plan_in_thread(self, view: View) -> None:
        revision = view.revision
        self.post(await asyncio.to_thread(self._planning_result, lambda: self.planner.plan(view), revision))

    def _planning_result(self, plan: Callable[[], Plan], basis: int) -> Event:
        began = time.monotonic()
        try:
            # As it will be read back from the journal: what cannot be written down is no plan.
            return PlanReady(msgspec.json.decode(msgspec.json.encode(plan()), type=Plan))
        except Exception as error:
            log.exception("the planner failed")
            return PlanFailed(basis, f"{type(error).__name__}: {error}")
        finally:
            self.last_planning_s = time.monotonic() - began

    async def _close(self) -> None:
        self.event_stream.wake()
        if self._planning_task is not None:
            self._planning_task.cancel()
        for futures in self._waiting.values():
            for replies in futures:
                replies.complete.cancel()
        if self.agent_pool is not None:
            await self.agent_pool.close()
        if not self.journal.buffered and not self.low and not self.gone:
            self.snapshot()


def _ignore(commands: list[Command]) -> None:
    """The default ``note``: no metrics are kept."""
