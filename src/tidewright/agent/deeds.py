"""What is done behind the verbs: starting, freezing, thawing, ending, and learning how ranks ended.

Deeds of one attempt run in turn; each leaves the attempt's record and a published report behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from ..base.errors import WorldError
from ..base.units import SECOND, format_duration
from ..checkpoint.cgroup import freezer_of
from ..checkpoint.protocol import GANG_FREEZE_BOUND_US, Driver, Placement
from ..model.job import Level
from ..wire.agent import JobReport
from .attempt import Attempt
from .endings import last_lines
from .fair_queue import FairQueue, FairThreads
from .full import Full
from .gang import Gangs
from .health import HealthMonitor
from .meeting import Meeting
from .rank import Outcome, Rank, micros
from .watch import Watcher

log = logging.getLogger(__name__)

SPAWN_AT_ONCE = 8
"""Shims started side by side; each costs some 40 ms of one core."""
STORE_AT_ONCE = 4
"""Images put into the store, copied or removed side by side; in threads of their own, because a slow disk or remote store
must not keep other jobs from being suspended or stopped."""

TRAPPED = 128 + signal.SIGTRAP
"""How a rank ends in whose code a killed CRIU has left a trap: no fault of the program's (docs/why/criu.md)."""


def boottime() -> float:
    """Seconds since boot, sleep included: the only clock that means the same to the next agent."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Deeds:
    """``drivers`` are by level, ``publish`` is told of each change; must live in a running event loop."""

    def __init__(
        self, node: str, kind: str, drivers: dict[Level, Driver], publish: Callable[[JobReport], None]
    ) -> None:
        self._node, self._kind, self._drivers, self.publish = node, kind, drivers, publish
        self.full: Full | None = None
        """Deeds of full images; None on a node that cannot take them."""
        self.gangs: Gangs | None = None
        self.meeting: Meeting | None = None
        self.health: HealthMonitor | None = None
        """Of devices that can fail by themselves; None where there are none."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawning = FairQueue(SPAWN_AT_ONCE)
        self.storage = FairThreads(STORE_AT_ONCE, "store")
        self.watcher = Watcher(self._shim_gone)

    async def launch(self, attempt: Attempt) -> None:
        """Start every rank that has not been; ``running`` is told before any of their ends."""
        if attempt.args.image:
            await self._launch_images(attempt)
        else:
            await self._reach(attempt, fresh=True)
            await asyncio.gather(*(self.start(attempt, rank) for rank in attempt.ranks))
        failed = any(rank.outcome and rank.outcome.error for rank in attempt.ranks)
        if attempt.memo.phase == "starting" and not failed:
            self.tell(attempt, phase="running", verb="launch")
        for rank in attempt.living():
            self.watcher.add(attempt, rank)
        if attempt.memo.phase == "starting":
            await self._end_all(attempt)

    async def _launch_images(self, attempt: Attempt) -> None:
        """An attempt that goes on where an earlier one had its last image."""
        why = await self.full.restore(attempt) if self.full else "this node cannot bring back full images"
        if why:
            for rank in attempt.ranks:
                rank.outcome = Outcome(127, error=why, fault="world")
        else:
            await self._let_go(attempt)

    async def _reach(self, attempt: Attempt, *, fresh: bool = False) -> None:
        if self.meeting is not None and any(rank.boxed for rank in attempt.ranks):
            try:
                if fresh:
                    self.meeting.fresh(attempt)
                await self.meeting.write(attempt, attempt.memo.sitting if fresh else "")
            except (OSError, WorldError) as error:
                log.warning("job %d attempt %d: its ranks will not find each other: %s", *attempt.key, error)

    async def _let_go(self, attempt: Attempt) -> None:
        if self.gangs is not None:
            await self.gangs.let_go(attempt.key)

    async def start(self, attempt: Attempt, rank: Rank) -> None:
        rank.look()
        if rank.main is None and rank.ending() is None:
            async with self._spawning.slot(attempt.args.job):
                if attempt.memo.ending:
                    rank.never("stopped before it started")
                    return
                try:
                    await rank.spawn()
                except OSError as error:
                    rank.never(f"cannot start a process: {error.strerror}")
                    return
        if rank.main is None and rank.ending() is None and not rank.shim_alive():
            rank.never(f"its shim did not start; see {rank.directory / 'shim.log'}")
        outcome = rank.ending()
        if outcome and outcome.error:
            rank.outcome = outcome

    async def suspend(self, attempt: Attempt) -> None:
        memo, began = attempt.memo, time.monotonic()
        if memo.phase != "suspending":
            return  # it was told to end meanwhile
        if refusal := await self._refused(attempt):
            lower = {"cap": int(Level.FREEZE), "cap_why": refusal} if memo.level == Level.FULL else {}
            self.unless_over(attempt, phase="running", error=refusal, **lower)
            if self.gangs is not None and memo.serial:
                await self.gangs.refuse(attempt.key, memo.serial, memo.peers, refusal)
            return
        driver = self._drivers[Level(memo.level)]
        if driver.level == Level.FULL and self.full is not None:
            await self.full.suspend(attempt)
            return
        if driver.level in (Level.COOPERATIVE, Level.REQUEUE):
            attempt.end_by("cooperative")
            memo.why = "told to save itself and let go"
            self._save(attempt)
        try:
            await self._quiet(attempt, driver)
            image = await asyncio.to_thread(driver.save, attempt.gang())
        except WorldError as error:
            await self._unquiet(attempt)
            self.unless_over(attempt, phase="running", error=str(error))
            return
        if image is None:
            self.arm_kill(attempt)
            return
        memo.image = image
        if memo.bounded and not memo.quiet and attempt.args.world_size > 1:
            memo.hold_until = boottime() + GANG_FREEZE_BOUND_US / SECOND
            self.arm_hold(attempt)
        self.unless_over(attempt, phase="suspended", took_us=micros(began))

    async def _refused(self, attempt: Attempt) -> str:
        """Why a suspension cannot be; empty for one that an earlier agent had begun to carry out. Asked for in turn with
        all other deeds: a rank whose image is being taken looks like one in a debugger."""
        begun = attempt.memo.image is not None or attempt.memo.ending
        return "" if begun else await asyncio.to_thread(self.refusal, attempt, attempt.memo.level)

    async def _quiet(self, attempt: Attempt, driver: Driver) -> None:
        """Before a freeze: a gang that has no connections cannot time out, however long it is frozen."""
        gangs, memo = self.gangs, attempt.memo
        if driver.level != Level.FREEZE or gangs is None or not attempt.worlds():
            return
        try:
            await gangs.still(attempt.key, memo.serial, memo.peers)
        except WorldError as error:
            if not memo.bounded:
                raise
            log.info("job %d attempt %d is frozen as it is: %s", *attempt.key, error)
            return
        memo.quiet = True
        try:
            attempt.save()
        except OSError as error:  # the next agent would not know that it must let them go
            await self._unquiet(attempt)
            raise WorldError(f"cannot record that its ranks stand still: {error.strerror}") from error

    async def _unquiet(self, attempt: Attempt) -> None:
        if attempt.memo.quiet:
            attempt.memo.quiet = False
            await self._let_go(attempt)

    async def resume(self, attempt: Attempt) -> None:
        memo, began = attempt.memo, time.monotonic()
        if memo.phase != "resuming":
            return
        if memo.level == Level.FULL and self.full is not None:
            await self._resume_images(attempt, began)
            return
        if memo.image is None:
            return
        try:
            placement = Placement(node=self._node, cpus=memo.cpus)
            await self._reach(attempt)
            await asyncio.to_thread(self._drivers[Level(memo.level)].restore, memo.image, placement)
        except (OSError, WorldError) as error:
            self.unless_over(attempt, phase="suspended", error=str(error))
            return
        memo.image, memo.hold_until = None, 0.0
        await self._unquiet(attempt)
        self.unless_over(attempt, phase="running", took_us=micros(began))

    async def _resume_images(self, attempt: Attempt, began: float) -> None:
        assert self.full is not None
        memo = attempt.memo
        why = await self.full.restore(attempt)
        if why:
            self.unless_over(attempt, phase="suspended", error=why)
            return
        memo.image = None
        await self._let_go(attempt)
        self.unless_over(attempt, phase="running", took_us=micros(began), error="")
        for rank in attempt.living():
            self.watcher.add(attempt, rank)
        self.full.clear(attempt, memo.serial)

    async def stop(self, attempt: Attempt) -> None:
        memo = attempt.memo
        if memo.image is not None:
            if memo.level == Level.FULL and self.full is not None:
                self.full.discard(attempt)
            else:
                await asyncio.to_thread(self._drivers[Level(memo.level)].discard, memo.image)
            memo.image = None
        await self._unquiet(attempt)
        await asyncio.gather(*(asyncio.to_thread(rank.terminate) for rank in attempt.living()))
        if attempt.living():
            self.arm_kill(attempt)
        else:
            self._settle(attempt)

    def evict(self, attempt: Attempt, why: str) -> None:
        """End a running attempt for what it does: SIGTERM, its grace, SIGKILL."""
        if attempt.memo.ending or attempt.memo.phase != "running":
            return
        attempt.memo.evicted, attempt.memo.ending, attempt.memo.grace_us = True, "stop", attempt.args.grace_us
        self.tell(attempt, phase="stopping", verb="stop", why=why, notice=why)
        self.behind(attempt, self.stop(attempt))

    async def _end_all(self, attempt: Attempt) -> None:
        """Kill whatever lives, at once."""
        for rank in attempt.living():
            await asyncio.to_thread(freezer_of(rank.handle).thaw, rank.handle)
            if not await asyncio.to_thread(rank.sweep):
                log.error("job %d attempt %d: rank %d survives SIGKILL", *attempt.key, rank.number)
        self._settle(attempt)

    # endings

    def arm_kill(self, attempt: Attempt) -> None:
        """SIGKILL after the grace; an earlier date is never put off."""
        loop = asyncio.get_running_loop()
        at = loop.time() + attempt.memo.grace_us / SECOND
        if attempt.kill_timer is not None:
            if attempt.kill_at <= at:
                return
            attempt.kill_timer.cancel()
        attempt.kill_at = at
        attempt.kill_timer = loop.call_at(at, self._grace_over, attempt)

    def _grace_over(self, attempt: Attempt) -> None:
        if not attempt.over:
            attempt.memo.why += f"; killed after its grace of {format_duration(attempt.memo.grace_us)}"
            self.behind(attempt, self._end_all(attempt))

    def arm_hold(self, attempt: Attempt) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, attempt.memo.hold_until - boottime()), self._hold_over, attempt)

    def _hold_over(self, attempt: Attempt) -> None:
        memo = attempt.memo
        if memo.phase == "suspended" and memo.hold_until and memo.hold_until <= boottime() + 0.01:
            log.warning("job %d attempt %d: thawed at the end of its bounded hold", *attempt.key)
            self.tell(attempt, phase="resuming", verb="resume", why="its bounded hold is over")
            self.behind(attempt, self.resume(attempt))

    def _shim_gone(self, attempt: Attempt, rank: Rank) -> None:
        rank.close()
        self.behind(attempt, self._bury(attempt, rank), wait=False)

    async def _bury(self, attempt: Attempt, rank: Rank) -> None:
        """A shim is dead: learn how its rank ended, and leave nothing of it alive."""
        if rank.outcome is not None or rank not in attempt.ranks:
            rank.tidy()
            return
        rank.look()
        if rank.shim_alive():
            self.watcher.add(attempt, rank)
            return
        outcome = rank.ending() or Outcome(137, lost=True)
        if outcome.code == TRAPPED and attempt.may_be_trapped(rank):
            outcome = Outcome(137, lost=True)
        if self.health is not None and outcome.code and not outcome.lost and not attempt.memo.ending:
            # What a fault of its device did to it is not its failure, whatever code it ended with.
            why = await self.health.under(attempt.memo.devices.get(rank.number, ()))
            outcome = replace(outcome, lost=True, cause=why) if why else outcome
        if outcome.lost or not rank.tidy():
            await asyncio.to_thread(freezer_of(rank.handle).thaw, rank.handle)
            await asyncio.to_thread(rank.sweep)
            rank.tidy()
        lines = (
            await asyncio.to_thread(last_lines, attempt.log_of(rank), rank.owner)
            if attempt.failed_first(outcome)
            else ()
        )
        if rank.outcome is None:
            rank.outcome = outcome
            if not attempt.imaged:
                attempt.note_failure(rank, outcome, lines)
                self._settle(attempt)

    def _settle(self, attempt: Attempt) -> None:
        """A rank has ended: say so, and conclude when it was the last."""
        if attempt.over or (attempt.imaged and attempt.memo.ending != "stop"):
            return
        if attempt.living():
            if attempt.memo.first_failure:
                self.tell(attempt)
            return
        if attempt.kill_timer is not None:
            attempt.kill_timer.cancel()
        attempt.conclude()
        for rank in attempt.ranks:
            rank.tidy()
        self.tell(attempt)

    # bookkeeping

    def refusal(self, attempt: Attempt, level: int) -> str:
        driver = self._drivers.get(Level(level)) if level in list(Level) else None
        if driver is None:
            return f"this node cannot suspend by level {Level(level).name.lower() if level in list(Level) else level}"
        gang = attempt.gang()
        if attempt.worlds() and self.gangs is not None:
            gang = replace(gang, bounded=True)
        return driver.can(gang, self._kind).reason

    def tell(self, attempt: Attempt, **changes: Any) -> JobReport:
        """Change the memo, put it on disk, publish. A full disk costs the next agent its memory, not the job."""
        for name, value in changes.items():
            setattr(attempt.memo, name, value)
        self._save(attempt)
        report = attempt.report()
        self.publish(report)
        return report

    @staticmethod
    def _save(attempt: Attempt) -> None:
        with contextlib.suppress(FileNotFoundError):
            try:
                attempt.save()
            except OSError as error:
                log.error("cannot save job %d attempt %d: %s", *attempt.key, error)

    def unless_over(self, attempt: Attempt, **changes: Any) -> None:
        """The end of a deed; ranks that ended or were told to stop meanwhile have the last word."""
        if not attempt.over and attempt.memo.ending != "stop":
            self.tell(attempt, **changes)

    def behind(self, attempt: Attempt, deed: Coroutine[Any, Any, None], *, wait: bool = True) -> None:
        """Run a deed behind the answer; those of one attempt in turn unless ``wait`` is False."""

        async def run() -> None:
            try:
                async with attempt.busy if wait else contextlib.nullcontext():
                    await deed
            except Exception:
                log.exception("job %d attempt %d: a deed failed", *attempt.key)

        self.alone(run())

    def alone(self, deed: Coroutine[Any, Any, None]) -> None:
        """Run a deed that is no attempt's."""
        task = asyncio.get_running_loop().create_task(deed)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop watching; ranks live on."""
        self.watcher.close()
        self.storage.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
