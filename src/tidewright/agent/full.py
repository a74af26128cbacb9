"""Full images behind the verbs: a gang stands still, every rank is dumped, its processes end, and it comes back anywhere.

Order matters for a kill at any moment. The image counts from the moment the memo names it; only then are processes
ended. Until then they live, stopped, and the next agent begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..base.atomic import write_atomically
from ..base.errors import TideError, WorldError
from ..checkpoint.criu import DamagedImage, RanksLost
from ..checkpoint.cuda import DeviceStateLost
from ..checkpoint.protocol import Image
from ..checkpoint.space import in_plain, is_full
from ..launch.init import VERDICT
from ..model.failure import RankFailure
from ..model.job import Level
from ..wire.agent import CheckpointArgs, FetchArgs, ImageReport, JobReport
from . import prepare
from .attempt import Attempt
from .boxes import unpack
from .gang import Gangs
from .images import Images
from .in_flight import Unneeded
from .meeting import Meeting
from .rank import Outcome, Rank, micros
from .saves import Saves

if TYPE_CHECKING:
    from .deeds import Deeds

log = logging.getLogger(__name__)

CLEAR_S = 2.0
"""How long ranks run again before the raw images that they came from are removed."""


class Full:
    """The deeds of level FULL, on behalf of ``deeds``, which keeps records and tells."""

    def __init__(
        self,
        deeds: Deeds,
        house: prepare.House,
        ranks: Saves,
        images: Images,
        gangs: Gangs,
        meeting: Meeting,
    ) -> None:
        self._deeds, self._house, self._ranks = deeds, house, ranks
        self.images, self.gangs, self._meeting = images, gangs, meeting

    # taking images

    async def suspend(self, attempt: Attempt) -> None:
        """Into an image, and away."""
        memo, began = attempt.memo, time.monotonic()
        if memo.image is None:
            try:
                shot = await self._shoot(attempt, memo.serial, leave_running=False)
                await self._count(attempt, shot)
            except (TideError, OSError) as error:
                self._deeds.unless_over(attempt, phase="running", error=str(error), no_room=is_full(error))
                return
        await asyncio.to_thread(self._ranks.driver.finish, attempt.handles())
        for rank in attempt.living():
            rank.outcome = Outcome(137)
        self._deeds.unless_over(attempt, phase="suspended", took_us=micros(began))
        self._deeds.behind(attempt, self._store(attempt, memo.serial), wait=False)

    async def _count(self, attempt: Attempt, shot: ImageReport) -> None:
        """From now on the image stands for the ranks. Raises DiskFull and OSError, with the ranks running on."""
        memo = attempt.memo
        before, memo.shot, memo.image = memo.shot, shot, self._image(attempt, shot)
        try:
            attempt.save()
        except OSError as error:
            memo.shot, memo.image = before, None
            plain = in_plain(error, attempt.directory, f"the record of image {shot.serial}")
            await self._throw_away(attempt, shot.serial, error)
            raise plain from error

    async def checkpoint(self, attempt: Attempt, args: CheckpointArgs) -> None:
        """An image of ranks that run on."""
        memo, began, serial = attempt.memo, time.monotonic(), args.serial
        against = f"it is {memo.phase}" if memo.phase != "running" else ""
        if why := against or await asyncio.to_thread(self._deeds.refusal, attempt, Level.FULL):
            self._news(attempt, error=why, shot=ImageReport(serial=serial))
            await self.gangs.refuse(attempt.key, serial, args.peers, why)
            return
        memo.checkpointing, memo.peers, memo.previous = True, args.peers or memo.peers, args.previous
        with self.gangs.imaging(attempt.key, serial):
            try:
                attempt.save()
                shot = await self._shoot(attempt, serial, leave_running=True)
                # Before _run_on, which saves the memo: no moment may know neither the order nor the image.
                memo.shot = replace(shot, save_us=micros(began))
            except (TideError, OSError) as error:
                why = str(in_plain(error, attempt.directory, f"the record of image {serial}"))
                self._news(attempt, error=why, shot=ImageReport(serial=serial))
                return
            finally:
                await self._run_on(attempt)
        self._news(attempt)
        self._deeds.behind(attempt, self._store(attempt, serial), wait=False)

    async def _run_on(self, attempt: Attempt) -> None:
        """After an image, or a failed try, of ranks that stay: let them run."""
        with contextlib.suppress(WorldError):
            await self._let_go(attempt)
        attempt.memo.checkpointing = False
        with contextlib.suppress(OSError):
            attempt.save()

    def take_over(self, attempt: Attempt) -> None:
        """What an agent that died has left to do about images, before anything else is done."""
        memo = attempt.memo
        attempt.forget_unmade()
        if memo.checkpointing or (memo.phase == "suspending" and memo.level == Level.FULL and not attempt.imaged):
            self._deeds.behind(attempt, self._recover(attempt))
        elif memo.phase in ("running", "stopping") and not attempt.imaged:
            self.take_turns(attempt)
        if memo.phase == "suspended" and attempt.imaged:
            for rank in attempt.ranks:
                rank.outcome = Outcome(137)
        if memo.shot is not None and not memo.shot.stored and not memo.shot.lost:
            self._deeds.behind(attempt, self._store(attempt, memo.shot.serial), wait=False)
        elif memo.shot is not None:
            self.clear(attempt, memo.shot.serial)

    async def _recover(self, attempt: Attempt) -> None:
        """Stopped in the middle of a dump: processes go on, and all ranks are let go, as the next cut can only be made of
        ranks that run."""
        try:
            await asyncio.to_thread(self._ranks.undo, attempt)
        except WorldError as error:
            if attempt.memo.phase == "running" or isinstance(error, DeviceStateLost):
                await self._perish(attempt, str(error))
            return
        await self._run_on(attempt)

    async def _let_go(self, attempt: Attempt) -> None:
        """Ranks that stand still run on; they need their turns for it."""
        self.take_turns(attempt)
        await self.gangs.let_go(attempt.key)

    def take_turns(self, attempt: Attempt) -> None:
        """See to it that ranks which share a device by swapping get it, from now on."""
        loop = asyncio.get_running_loop()

        def perish(why: str) -> None:
            self._deeds.behind(attempt, self._perish(attempt, why), wait=False)

        def lost(why: str) -> None:
            with contextlib.suppress(RuntimeError):  # this agent is about to end; the next one will see
                loop.call_soon_threadsafe(perish, why)

        self._ranks.take_turns(attempt, lost)

    async def _perish(self, attempt: Attempt, why: str) -> None:
        """Ranks that cannot have their devices back can only be ended: by the end of their shims the attempt is lost."""
        log.error("job %d attempt %d is ended: %s", *attempt.key, why)
        memo, living = attempt.memo, attempt.living()
        if attempt.over or not living:
            return
        memo.error, memo.first_failure = why, memo.first_failure or RankFailure(living[0].number, 137, why)
        with contextlib.suppress(OSError):
            attempt.save()
        await asyncio.to_thread(self._ranks.rest, attempt)
        await asyncio.gather(*(asyncio.to_thread(rank.end) for rank in living))

    async def _shoot(self, attempt: Attempt, serial: int, *, leave_running: bool) -> ImageReport:
        """Stand still, dump. Raises WorldError with the ranks running on."""
        job, ended = attempt.args.job, [rank.number for rank in attempt.ranks if rank.outcome is not None]
        if ended:
            raise WorldError(f"rank {ended[0]} has ended already; the job is about to")
        await asyncio.to_thread(self._ranks.measure, attempt)
        left: list[str] = []
        still = await self.gangs.still(
            attempt.key, serial, attempt.memo.peers, hurry=not leave_running,
            then=lambda: left.append(self._meeting.pack(job)),
        )  # fmt: skip
        began = time.monotonic()
        try:
            need = await asyncio.to_thread(self._ranks.need, attempt)
            directory = await asyncio.to_thread(self.images.begin, job, serial, need)
            report = await asyncio.to_thread(self._ranks.dump, attempt, directory, leave_running=leave_running)
            for rank in attempt.ranks:
                self.images.note(job, serial, rank.number, self._ranks.facts(attempt, rank.number, "".join(left)))
        except (TideError, OSError) as error:
            await self._throw_away(attempt, serial, error)
            raise self.images.in_plain(error, job, serial) from error
        ranks = tuple(rank.number for rank in attempt.ranks)
        return ImageReport(
            serial=serial, ranks=ranks, size_bytes=report.size_bytes, hold_us=still.hold_us, save_us=micros(began)
        )

    async def _throw_away(self, attempt: Attempt, serial: int, error: Exception) -> None:
        """After a dump that failed: the ranks go on. The end of one is reported as at any other time."""
        await asyncio.to_thread(self.images.discard_raw, attempt.args.job, serial)
        if isinstance(error, RanksLost):
            attempt.ended_in_dump.update(error.ranks)
        try:
            if isinstance(error, DeviceStateLost):
                raise error
            await asyncio.to_thread(self._ranks.undo, attempt)
        except WorldError as worse:
            await self._perish(attempt, str(worse))
        else:
            await self._let_go(attempt)

    def _image(self, attempt: Attempt, shot: ImageReport) -> Image:
        raw = self.images.raw(attempt.args.job, shot.serial)
        return Image(
            driver=self._ranks.driver.name, job=attempt.args.job, attempt=attempt.args.attempt, location=str(raw),
            size_bytes=shot.size_bytes,
        )  # fmt: skip

    # behind the suspension

    async def _store(self, attempt: Attempt, serial: int) -> None:
        """Into the store and to the remote one; a failure is told, and the raw image kept."""
        args, began, storage = attempt.args, time.monotonic(), self._deeds.storage.run
        shot = attempt.memo.shot or ImageReport(serial=serial)
        try:
            made = await storage(args.job, self.images.put, args.tenant, args.job, serial, shot.ranks)
            if attempt.over:  # nobody will hear of it
                await storage(args.job, self.images.drop_unknown, args.job, serial)
                return
            shot = replace(shot, stored=True, new_bytes=sum(each.new_bytes for each in made), store_us=micros(began))
            self._keep(attempt, shot)
            if await storage(args.job, self.images.push, args.tenant, args.job, serial, shot.ranks):
                shot = replace(shot, remote=True)
                self._keep(attempt, shot)
        except Unneeded:
            return
        except (TideError, OSError) as error:
            if attempt.over:
                return
            log.error("image %d of job %d is not stored: %s", serial, args.job, error)
            self._news(attempt, error=f"image {serial} is not stored: {error}", shot=shot)
            return
        await storage(args.job, self.images.keep_newest, args.tenant, args.job, serial, attempt.memo.previous)
        self.clear(attempt, serial)

    def _keep(self, attempt: Attempt, shot: ImageReport) -> None:
        if attempt.memo.shot is None or attempt.memo.shot.serial <= shot.serial:
            attempt.memo.shot = shot
        self._news(attempt, shot=shot)

    def clear(self, attempt: Attempt, serial: int) -> None:
        """Drop the raw image of a job that runs again, once the store has it."""
        shot, memo = attempt.memo.shot, attempt.memo
        if shot is not None and shot.serial == serial and shot.stored and memo.phase == "running":
            self._deeds.alone(self._discard(attempt, serial))

    async def _discard(self, attempt: Attempt, serial: int) -> None:
        """Not at once: removing some hundred megabytes keeps a core from ranks that have just been let go, and a loop
        that waits for it would keep them from meeting."""
        await asyncio.sleep(CLEAR_S)
        memo = attempt.memo
        needed = memo.serial == serial and memo.phase in ("suspended", "resuming")  # they come from it once more
        if not needed and not attempt.leaving:
            gone = self.images.set_aside(attempt.args.job, serial)
            await self._deeds.storage.run(attempt.args.job, shutil.rmtree, gone, ignore_errors=True)

    def _news(self, attempt: Attempt, *, error: str = "", shot: ImageReport | None = None) -> None:
        """Tell of an image, whatever the attempt itself is doing."""
        if not attempt.over:
            report = attempt.report()
            self._deeds.publish(replace(report, verb="checkpoint", error=error, image=shot or attempt.memo.shot))

    async def fetch(self, args: FetchArgs, report: JobReport) -> None:
        """Copies of images of a job that runs elsewhere."""
        shot, storage = ImageReport(serial=args.serial, ranks=args.ranks), self._deeds.storage.run
        try:
            new = await storage(args.job, self.images.fetch, args)
            shot = replace(shot, stored=True, new_bytes=new)
            error = ""
            await storage(args.job, self.images.keep_newest, args.tenant, args.job, args.serial)
        except (TideError, OSError) as failure:
            error = str(failure)
        self._deeds.publish(replace(report, verb="fetch", error=error, image=shot))

    # coming back

    async def restore(self, attempt: Attempt) -> str:
        """Bring all ranks here back from images of ``memo.serial``; why not, or empty. They still stand still.

        A raw image that turns out damaged gives way to the store's copy, or that of another node.
        """
        raw = self.images.raw(attempt.args.job, attempt.memo.serial).exists()
        why = await self._restore(attempt)
        shot = attempt.memo.shot
        if raw and shot is not None and shot.lost:
            attempt.memo.shot = None
            log.error("job %d attempt %d: %s; trying another copy", *attempt.key, why)
            again = await self._restore(attempt)
            why = self._lost(attempt, f"{why}; {again}") if again else ""
        if why:
            self._meeting.fail(attempt, why)
        return why

    async def _restore(self, attempt: Attempt) -> str:
        memo, args = attempt.memo, attempt.args
        await self._clear_away(attempt)
        numbers = [seat.rank for seat in args.ranks]
        try:
            directory = await asyncio.to_thread(
                self.images.ready, args.tenant, args.job, memo.serial, numbers, args.sources
            )
            facts = {rank: self.images.facts(args.job, memo.serial, rank) or {} for rank in numbers}
            memo.needs = {rank: int(each.get("need", 0)) for rank, each in facts.items()}
            self._meeting.unpack(attempt, facts.get(0, {}).get("meeting", ""))
            await self._renew(attempt, directory, facts)
        except DamagedImage as error:
            return self._lost(attempt, str(error))
        except (TideError, OSError) as error:
            return str(error)
        await asyncio.gather(*(self._come_back(attempt, rank, directory) for rank in attempt.ranks))
        failed = [rank.outcome for rank in attempt.ranks if rank.outcome is not None]
        if not failed:
            return await self._awaken(attempt, facts)
        await self._clear_away(attempt)
        worst = next((each for each in failed if each.image), failed[0])
        if worst.image:
            return self._lost(attempt, worst.error)
        return worst.error or "a rank ended while it was brought back"

    def _lost(self, attempt: Attempt, why: str) -> str:
        """The image is damaged: it is not tried again, and never taken for a whole one."""
        memo = attempt.memo
        memo.shot = ImageReport(serial=memo.serial, lost=why)
        self.images.discard_raw(attempt.args.job, memo.serial)
        return why

    async def _awaken(self, attempt: Attempt, facts: dict[int, dict[str, Any]]) -> str:
        """Processes that used GPUs come back without; give them theirs. Why not, or empty."""
        try:
            await asyncio.to_thread(self._ranks.awaken, attempt, facts)
        except WorldError as error:
            await self._clear_away(attempt)
            return str(error)
        self.take_turns(attempt)
        return ""

    async def _come_back(self, attempt: Attempt, rank: Rank, directory: Path) -> None:
        """Its image is checked while its shim and its namespaces are made; these wait for the verdict."""
        check = asyncio.to_thread(self._judge, rank, directory / str(rank.number))
        await asyncio.gather(self._deeds.start(attempt, rank), check)

    def _judge(self, rank: Rank, image: Path) -> None:
        """Have the rank's init know whether the image is sound, and one that belongs here; blocks."""
        against: dict[str, Any] = {}
        try:
            self._ranks.driver.check(image)
        except (TideError, OSError) as error:
            against = {"error": str(error), "image": isinstance(error, DamagedImage)}
        try:
            write_atomically(rank.directory / VERDICT, json.dumps(against).encode())
        except OSError as error:
            rank.end()
            rank.never(f"the verdict on {image} cannot be written: {error.strerror}")

    async def _renew(self, attempt: Attempt, directory: Path, facts: dict[int, dict[str, Any]]) -> None:
        args, generation = attempt.args, attempt.memo.generation + 1
        orders = {rank: self._ranks.driver.restore_spec(directory / str(rank)) for rank in facts}
        restore = {rank: {**order, "judged": True} for rank, order in orders.items()}
        specs = prepare.specs(args, self._house, generation, restore)
        boxes = {
            rank: {name: unpack(content) for name, content in each.get("box", {}).items()}
            for rank, each in facts.items()
        }
        await asyncio.to_thread(attempt.renew, args, specs, boxes)
        await self._meeting.write(attempt, attempt.memo.sitting)

    async def _clear_away(self, attempt: Attempt) -> None:
        """Nothing of an earlier try to bring the ranks back may live on."""
        await asyncio.to_thread(self._ranks.rest, attempt)
        for rank in attempt.ranks:
            await asyncio.to_thread(rank.end)
            self._deeds.watcher.drop(rank)
            rank.outcome = Outcome(137)

    def discard(self, attempt: Attempt) -> None:
        """The image that the attempt is suspended in will not be needed."""
        if attempt.memo.image is not None:
            self.images.discard_raw(attempt.args.job, attempt.memo.serial)
