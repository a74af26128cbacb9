"""What is done behind the verbs: starting, freezing, thawing, ending, and learning how ranks ended.

Deeds of one attempt run in turn; each leaves the attempt's record and a published report behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ..base.errors import WorldError
from ..base.units import SECOND, format_duration
from ..checkpoint.cgroup import freezer_of
from ..checkpoint.protocol import GANG_FREEZE_BOUND_US, Driver, Placement
from ..model.job import Level
from ..wire.agent import JobReport
from .attempt import Attempt
from .rank import Outcome, Rank
from .watch import Watcher

log = logging.getLogger(__name__)

SPAWN_AT_ONCE = 8
"""Shims started side by side; each costs some 40 ms of one core."""


def boottime() -> float:
    """Seconds since boot, sleep included: the only clock that means the same to the next agent."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Deeds:
    """``drivers`` are by level, ``publish`` is told of each change; must live in a running event loop."""

    def __init__(
        self, node: str, kind: str, drivers: dict[Level, Driver], publish: Callable[[JobReport], None]
    ) -> None:
        self._node, self._kind, self._drivers, self._publish = node, kind, drivers, publish
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawning = asyncio.Semaphore(SPAWN_AT_ONCE)
        self.watcher = Watcher(self._shim_gone)

    async def launch(self, attempt: Attempt) -> None:
        """Start every rank that has not been; ``running`` is told before any of their ends."""
        await asyncio.gather(*(self._start(attempt, rank) for rank in attempt.ranks))
        failed = any(rank.outcome and rank.outcome.error for rank in attempt.ranks)
        if attempt.memo.phase == "starting" and not failed:
            self.tell(attempt, phase="running", verb="launch")
        for rank in attempt.living():
            self.watcher.add(attempt, rank)
        if attempt.memo.phase == "starting":
            await self._end_all(attempt)

    async def _start(self, attempt: Attempt, rank: Rank) -> None:
        rank.look()
        if rank.main is None and rank.ending() is None:
            async with self._spawning:
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
        driver, began = self._drivers[Level(attempt.memo.level)], time.monotonic()
        if driver.level in (Level.COOPERATIVE, Level.REQUEUE):
            attempt.memo.ending, attempt.memo.why = "cooperative", "told to save itself and let go"
            attempt.save()
        try:
            image = await asyncio.to_thread(driver.save, attempt.gang())
        except WorldError as error:
            self._unless_over(attempt, phase="running", error=str(error))
            return
        if image is None:
            self.arm_kill(attempt)
            return
        attempt.memo.image = image
        if attempt.memo.bounded and attempt.args.world_size > 1:
            attempt.memo.hold_until = boottime() + GANG_FREEZE_BOUND_US / SECOND
            self.arm_hold(attempt)
        self._unless_over(attempt, phase="suspended", took_us=micros(began))

    async def resume(self, attempt: Attempt) -> None:
        memo, began = attempt.memo, time.monotonic()
        if memo.phase != "resuming" or memo.image is None:
            return
        try:
            placement = Placement(node=self._node, cpus=memo.cpus)
            await asyncio.to_thread(self._drivers[Level(memo.level)].restore, memo.image, placement)
        except (OSError, WorldError) as error:
            self._unless_over(attempt, phase="suspended", error=str(error))
            return
        memo.image, memo.hold_until = None, 0.0
        self._unless_over(attempt, phase="running", took_us=micros(began))

    async def stop(self, attempt: Attempt) -> None:
        if attempt.memo.image is not None:
            await asyncio.to_thread(self._drivers[Level(attempt.memo.level)].discard, attempt.memo.image)
            attempt.memo.image = None
        await asyncio.gather(*(asyncio.to_thread(rank.terminate) for rank in attempt.living()))
        if attempt.living():
            self.arm_kill(attempt)
        else:
            self._settle(attempt)

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
        if rank.outcome is not None:
            return
        rank.look()
        if rank.shim_alive():
            self.watcher.add(attempt, rank)
            return
        outcome = rank.ending() or Outcome(137, lost=True)
        if outcome.lost or not rank.tidy():
            await asyncio.to_thread(freezer_of(rank.handle).thaw, rank.handle)
            await asyncio.to_thread(rank.sweep)
            rank.tidy()
        if rank.outcome is None:
            rank.outcome = outcome
            attempt.note_failure(rank)
            self._settle(attempt)

    def _settle(self, attempt: Attempt) -> None:
        """A rank has ended: say so, and conclude when it was the last."""
        if attempt.over:
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
        return driver.can(attempt.gang(), self._kind).reason

    def tell(self, attempt: Attempt, **changes: Any) -> JobReport:
        """Change the memo, put it on disk, publish. A full disk costs the next agent its memory, not the job."""
        for name, value in changes.items():
            setattr(attempt.memo, name, value)
        with contextlib.suppress(FileNotFoundError):
            try:
                attempt.save()
            except OSError as error:
                log.error("cannot save job %d attempt %d: %s", *attempt.key, error)
        report = attempt.report()
        self._publish(report)
        return report

    def _unless_over(self, attempt: Attempt, **changes: Any) -> None:
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

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop watching; ranks live on."""
        self.watcher.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def micros(began: float) -> int:
    """Microseconds since ``began`` (monotonic seconds), at least 1."""
    return max(1, int((time.monotonic() - began) * SECOND))
