"""The verbs: launch, suspend, resume, stop, forget. Each answers at once with a report; what takes time goes on behind.

Asking twice is harmless: an attempt is started once for ever, and a verb whose end is reached answers with the report.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable

from msgspec.structs import replace

from ..base.errors import Conflict, TideError, UsageError, WorldError
from ..checkpoint.cgroup import remove
from ..checkpoint.protocol import Driver
from ..devices.excess import Rules
from ..model.job import Level
from ..wire.agent import (
    CheckpointArgs,
    FetchArgs,
    ForgetArgs,
    ImageReport,
    JobReport,
    LaunchArgs,
    ResumeArgs,
    StopArgs,
    SuspendArgs,
)
from . import prepare
from .accounts import at_home
from .attempt import Attempt, clear_halves
from .boxes import complaints
from .deeds import Deeds, boottime
from .groups import RankGroups
from .images import Images
from .log_cap import LOOK_S, LogCap
from .memory import MemoryGuard, enforcement
from .rank import Outcome

log = logging.getLogger(__name__)

EVICTS = Rules(action="evict")
FORGOTTEN_KEPT = 10_000
"""Attempts remembered after ``forget``, so that a late duplicate of ``launch`` starts nothing."""

Key = tuple[int, int]


class Supervisor:
    """Every attempt on this node. ``publish`` is told of each change; ``drivers`` are by level."""

    def __init__(
        self,
        house: prepare.House,
        drivers: dict[Level, Driver],
        publish: Callable[[JobReport], None],
        rules: Rules = EVICTS,
        log_cap: LogCap | None = None,
    ) -> None:
        self._house, self._publish, self._log_cap = house, publish, log_cap or LogCap(0)
        self._layout, self._backend = house.layout, house.backend
        self._groups = RankGroups(house.freezer, house.layout.tag)
        node = house.backend.discover()
        self._node = node.name
        self.deeds = Deeds(node.name, node.kind, drivers, publish)
        self.attempts: dict[Key, Attempt] = {}
        self.memory = MemoryGuard(house.backend, self.deeds, self.attempts, rules)
        self._kind = node.kind
        self._forgotten: OrderedDict[Key, None] = OrderedDict()

    # verbs

    def launch(self, args: LaunchArgs, op_id: str) -> JobReport:
        """Start the ranks of an attempt. What no node could launch is a failed report, the job's own fault; what this node
        cannot, for want of devices or disk, raises UsageError or WorldError."""
        key, args = (args.job, args.attempt), at_home(args)
        if key in self.attempts:
            return self._again(self.attempts[key])
        if key in self._forgotten:
            raise Conflict(f"job {args.job} attempt {args.attempt} has ended and was forgotten", "use a new attempt")
        try:
            prepare.check(args)
        except UsageError as error:
            return JobReport(
                job=args.job, attempt=args.attempt, state="failed", verb="launch", error=str(error), fault="user"
            )
        attempt = self._record(args, op_id)
        self.deeds.behind(attempt, self.deeds.launch(attempt))
        return attempt.report()

    def _record(self, args: LaunchArgs, sitting: str) -> Attempt:
        """Put an attempt on disk. Raises UsageError and WorldError; then nothing is there."""
        specs = prepare.specs(args, self._house)
        try:
            attempt = Attempt.create(self._layout, args, specs, sitting)
        except OSError as error:
            for spec in specs.values():
                remove(spec.cgroups)
            raise WorldError(f"cannot record the launch: {error.strerror}") from error
        attempt.memo.memory_limit = enforcement(args, self._kind, self.memory.rules)
        self.attempts[attempt.key] = attempt
        return attempt

    def suspend(self, args: SuspendArgs, op_id: str) -> JobReport:
        """Make a running attempt let go by ``args.level``, once an image that is being taken is done; a refusal is told as
        ``running`` with ``error``."""
        attempt = self._find(args.job, args.attempt)
        if attempt.seen(op_id):
            return self._again(attempt)
        if attempt.memo.phase in ("starting", "resuming"):
            return self._later(attempt, lambda: self.suspend(args, ""))
        if attempt.memo.phase != "running":
            return self._again(attempt)
        memo = attempt.memo
        memo.level, memo.bounded, memo.grace_us = args.level, args.bounded, args.grace_us
        memo.serial, memo.previous, memo.peers = args.serial, args.previous, args.peers or memo.peers
        report = self.deeds.tell(attempt, phase="suspending", verb="suspend", error="", no_room=False, took_us=0)
        self.deeds.behind(attempt, self.deeds.suspend(attempt))
        return report

    def resume(self, args: ResumeArgs, op_id: str) -> JobReport:
        """Let a suspended attempt run, on the devices given. Raises UsageError for devices that do not exist."""
        known = self.attempts.get((args.job, args.attempt))
        if args.launch is not None:
            args = replace(args, launch=at_home(args.launch))
        if args.launch is not None and known is None:
            return self._arrive(args.launch, args, op_id)
        if args.launch is not None and known is not None and known.leaving:
            known.next = lambda: self._resume_here(args, op_id)
            return replace(known.report(), state="resuming", verb="resume", error="")
        attempt = self._find(args.job, args.attempt)
        if attempt.seen(op_id):
            return self._again(attempt)
        return self._resume(attempt, args, op_id)

    def _resume_here(self, args: ResumeArgs, op_id: str) -> None:
        """A resumption that had to wait, and was answered already: what it cannot do, it must tell."""
        attempt = self.attempts.get((args.job, args.attempt))
        report = attempt.report() if attempt else JobReport(job=args.job, attempt=args.attempt, state="suspended")
        try:
            if attempt is None:
                self.resume(args, op_id)
            elif attempt.memo.phase == "suspending":
                raise WorldError("its suspension came to no end")
            else:
                self._resume(attempt, args, op_id)
        except TideError as error:
            self._publish(replace(report, state="suspended", verb="resume", error=str(error)))

    def _resume(self, attempt: Attempt, args: ResumeArgs, sitting: str) -> JobReport:
        if attempt.memo.phase == "suspending" and not attempt.memo.ending:
            return self._later(attempt, lambda: self._resume_here(args, sitting))
        if attempt.memo.phase != "suspended":
            return self._again(attempt)
        if args.launch is not None:
            prepare.places(args.launch, self._house)
            try:
                attempt.intend(args.launch)
            except OSError as error:
                raise WorldError(f"cannot record the resumption: {error.strerror}") from error
            attempt.memo.serial = args.serial
            if not args.back:
                attempt.memo.sitting = sitting
        for seat in args.ranks:
            attempt.memo.cpus[seat.rank] = self._backend.environment(seat.devices).cpus
            attempt.memo.devices[seat.rank] = seat.devices
        report = self.deeds.tell(attempt, phase="resuming", verb="resume", error="", took_us=0)
        self.deeds.behind(attempt, self.deeds.resume(attempt))
        return report

    def _arrive(self, launch: LaunchArgs, args: ResumeArgs, op_id: str) -> JobReport:
        """An attempt that was suspended on other nodes comes here."""
        self._forgotten.pop((args.job, args.attempt), None)
        attempt = self._record(replace(launch, image=args.serial), "" if args.back else op_id)
        attempt.memo.level = int(Level.FULL)
        report = self.deeds.tell(attempt, phase="resuming", verb="resume")
        self.deeds.behind(attempt, self.deeds.resume(attempt))
        return report

    def checkpoint(self, args: CheckpointArgs, op_id: str) -> JobReport:
        """Take images of a running attempt, which runs on; told of by a report of verb ``checkpoint``."""
        attempt = self._find(args.job, args.attempt)
        if attempt.seen(op_id) or attempt.over:
            return attempt.report()
        if self.deeds.full is None:
            error, image = self.deeds.refusal(attempt, Level.FULL), ImageReport(serial=args.serial)
            report = replace(attempt.report(), verb="checkpoint", error=error, image=image)
            self._publish(report)
            return report
        self.deeds.behind(attempt, self.deeds.full.checkpoint(attempt, args))
        return attempt.report()

    def fetch(self, args: FetchArgs, op_id: str) -> JobReport:
        """Take copies of images from other nodes; told of by a report of verb ``fetch``."""
        report = JobReport(job=args.job, attempt=args.attempt, state="exited", verb="fetch", why="not here")
        if self.deeds.full is None:
            return replace(report, error="this node keeps no images", image=ImageReport(serial=args.serial))
        self.deeds.alone(self.deeds.full.fetch(args, report))
        return report

    def stop(self, args: StopArgs, op_id: str) -> JobReport:
        """End an attempt. One that is not here is answered as exited and lost."""
        attempt = self.attempts.get((args.job, args.attempt))
        if attempt is None:
            return JobReport(job=args.job, attempt=args.attempt, state="exited", verb="stop", lost=True, why="not here")
        if attempt.over:
            return self._again(attempt)
        again = attempt.memo.ending == "stop"
        attempt.end_by("stop")
        self._hurry(attempt)
        attempt.memo.grace_us = args.grace_us
        report = self.deeds.tell(attempt, phase="stopping", verb="stop", error="", why="stopped on request")
        if again:
            self.deeds.arm_kill(attempt)
        else:
            self.deeds.behind(attempt, self.deeds.stop(attempt))
        return report

    def forget(self, args: ForgetArgs, op_id: str) -> JobReport:
        """Drop the records of an ended attempt. Raises Conflict while it lives, unless it has ``left``."""
        key = (args.job, args.attempt)
        attempt = self.attempts.get(key)
        if args.images and self.deeds.full is not None:
            self.deeds.full.images.end_job(args.job)
            self.deeds.alone(self._drop_images(self.deeds.full.images, args.job))
        if attempt is None:
            return JobReport(job=args.job, attempt=args.attempt, state="exited", why="not here")
        if args.left:
            return self._leave(attempt)
        if not attempt.over:
            raise Conflict(f"job {args.job} attempt {args.attempt} is {attempt.memo.phase}", "stop it first")
        report = attempt.report()
        self._drop(attempt)
        self._forgotten[key] = None
        while len(self._forgotten) > FORGOTTEN_KEPT:
            self._forgotten.popitem(last=False)
        return report

    async def _drop_images(self, images: Images, job: int) -> None:
        """Which is found out at once: the job may start over, and make others, before the store has time for this."""
        last = await asyncio.to_thread(images.last_serial, job)
        await self.deeds.storage.run(job, images.drop_job, job, last)

    def _leave(self, attempt: Attempt) -> JobReport:
        """The attempt lives elsewhere: whatever is left of it here ends without a word."""
        report, attempt.next = attempt.report(), None
        if attempt.leaving:
            return report
        attempt.end_by("stop")
        self._hurry(attempt)
        attempt.leaving = True
        with contextlib.suppress(OSError):
            attempt.save()
        ranks = attempt.living()
        for rank in ranks:
            rank.outcome = Outcome(137)
            self.deeds.watcher.drop(rank)

        async def end() -> None:
            try:
                await asyncio.gather(*(asyncio.to_thread(rank.end) for rank in ranks))
                self._drop(attempt)
            finally:
                if attempt.next is not None:
                    attempt.next()

        self.deeds.behind(attempt, end())
        return report

    def _hurry(self, attempt: Attempt) -> None:
        """It is to end: what waits for other nodes does so no longer."""
        if self.deeds.gangs is not None:
            self.deeds.gangs.give_up(attempt.key, "it is to end")

    def _drop(self, attempt: Attempt) -> None:
        del self.attempts[attempt.key]
        if self.deeds.meeting is not None and all(job != attempt.args.job for job, _ in self.attempts):
            self.deeds.meeting.close(attempt.args.job)
        self._log_cap.look(attempt.cappable_logs())
        attempt.remove()
        self._groups.clear_attempt(attempt.key)

    async def cap_logs(self) -> None:
        """For ever: keep the logs of ranks below their limit."""
        while True:
            await asyncio.sleep(LOOK_S)
            paths = [path for attempt in self.attempts.values() for path in attempt.cappable_logs()]
            if paths:
                await asyncio.to_thread(self._log_cap.look, paths)

    def reports(self) -> tuple[JobReport, ...]:
        """Every attempt here, by job; not one that is about to be gone, of which nobody would hear more."""
        return tuple(each.report() for _, each in sorted(self.attempts.items()) if not each.leaving)

    def _find(self, job: int, attempt: int) -> Attempt:
        found = self.attempts.get((job, attempt))
        if found is None:
            raise UsageError(f"job {job} attempt {attempt} is not on this node", "ask inventory for what is")
        return found

    def _again(self, attempt: Attempt) -> JobReport:
        """The answer to a repeated call, published too, for a controller that lost the first report."""
        report = attempt.report()
        self._publish(report)
        return report

    def _later(self, attempt: Attempt, verb: Callable[[], object]) -> JobReport:
        """Carry out a verb once the deeds before it are done."""

        async def deed() -> None:
            if attempt.key in self.attempts and not attempt.leaving:
                verb()

        self.deeds.behind(attempt, deed())
        return attempt.report()

    # the next agent

    def adopt(self) -> None:
        """Take over every attempt an earlier agent left, and go on with what it was doing."""
        clear_halves(self._layout.ranks)
        for directory in sorted(self._layout.ranks.iterdir()):
            if directory.name.startswith("."):
                continue
            try:
                attempt = Attempt.load(self._layout, directory)
            except WorldError as error:
                log.error("%s; moved aside", error)
                directory.rename(directory.with_name(f".damaged.{directory.name}.{int(boottime())}"))
                continue
            self.attempts[attempt.key] = attempt
            self._take_over(attempt)
        self.clear_groups()
        log.info("adopted %d attempts", len(self.attempts))

    def _take_over(self, attempt: Attempt) -> None:
        memo = attempt.memo
        if attempt.over:
            for rank in attempt.ranks:
                rank.outcome = rank.ending() or rank.outcome
            return
        if memo.ending == "stop" and memo.phase != "stopping":
            self._leave(attempt)
            return
        if self.deeds.meeting is not None:
            self.deeds.meeting.take_over(attempt)
        if self.deeds.full is not None:
            self.deeds.full.take_over(attempt)
        if memo.phase != "starting" and not attempt.imaged:
            for rank in attempt.ranks:
                self.deeds.watcher.add(attempt, rank)
        if memo.phase == "starting":
            self.deeds.behind(attempt, self.deeds.launch(attempt))
        elif memo.phase == "stopping":
            self.deeds.behind(attempt, self.deeds.stop(attempt))
        elif memo.phase == "suspending":
            self.deeds.behind(attempt, self.deeds.suspend(attempt))
        elif memo.phase == "resuming":
            self.deeds.behind(attempt, self.deeds.resume(attempt))
        elif memo.hold_until:
            self.deeds.arm_hold(attempt)

    def patrol(self) -> None:
        """One round of the safety poll: shims whose death went unnoticed, groups of ranks that are gone, wrappers that could
        not wrap something."""
        self.deeds.watcher.check()
        self.clear_groups()
        for attempt in self.attempts.values():
            if attempt.memo.phase == "running":
                level, why = complaints(attempt)
                if level != -1 and level != attempt.memo.cap:
                    self.deeds.tell(attempt, cap=level, cap_why=why)

    async def close(self) -> None:
        """Stop watching; ranks live on."""
        for attempt in self.attempts.values():
            if attempt.kill_timer is not None:
                attempt.kill_timer.cancel()
        await self.deeds.close()

    def clear_groups(self) -> None:
        """Remove the groups of ranks that are gone; only an agent that knows all of its attempts may, at work or at its end."""
        self._groups.clear(self.attempts)
