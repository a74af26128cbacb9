"""Carrying out the machine's steps on full images: ranks into them and back, and what happens to them in the store."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from ...base.atomic import write_atomically
from ...base.errors import TideError
from ...checkpoint.criu.driver import DamagedImage
from ...checkpoint.protocol import GangImage
from ...launch.init import VERDICT
from ..fair_queue import FairThreads
from ..machine import actions as do
from ..machine import image_actions as on_images
from ..machine.outcomes import RankOutcome
from ..processes import rank_spec
from ..processes.attempt import Attempt
from ..processes.rank import Rank
from ..processes.rank_dir import unpack
from ..processes.rank_steps import RankSteps
from ..rendezvous.coordinator import RendezvousCoordinator
from .checkpoint_io import CheckpointIO
from .images import Images

log = logging.getLogger(__name__)

STORE_AT_ONCE = 4
"""Images put into the store, copied or removed side by side; in threads of their own, because a slow disk or remote store
must not keep other jobs from being suspended or stopped."""

Facts = dict[int, dict[str, Any]]
"""What travels with the image of a rank, by rank."""


class ImageSteps:
    """``checkpoint_io`` dumps and restores ranks; ``images`` stores their images."""

    def __init__(
        self,
        node_context: rank_spec.NodeContext,
        steps: RankSteps,
        checkpoint_io: CheckpointIO,
        images: Images,
        rendezvous: RendezvousCoordinator,
    ) -> None:
        self._node_context, self._steps, self._checkpoint_io, self.images, self._rendezvous = (
            node_context,
            steps,
            checkpoint_io,
            images,
            rendezvous,
        )
        self._storage = FairThreads(STORE_AT_ONCE, "store")
        self._restoring: dict[tuple[int, int], tuple[Path, Facts]] = {}
        """Attempts that are being brought back: where their images are, and what travelled with them."""

    def close(self) -> None:
        """Take no more work."""
        self._storage.close()

    # -- into images ------------------------------------------------------------------------------------------------

    async def measure(self, attempt: Attempt, _: on_images.MeasureRanks) -> dict[int, int]:
        return await asyncio.to_thread(self._checkpoint_io.measure, attempt)

    async def dump(self, attempt: Attempt, step: on_images.DumpRanks) -> on_images.Dumped:
        job, serial = attempt.args.job, step.serial
        try:
            need = await asyncio.to_thread(self._checkpoint_io.need, attempt)
            directory = await asyncio.to_thread(self.images.begin, job, serial, need)
            report = await asyncio.to_thread(
                self._checkpoint_io.dump, attempt, directory, leave_running=step.leave_running
            )
            for rank in attempt.ranks:
                self.images.note(job, serial, rank.number, self._checkpoint_io.facts(attempt, rank.number, step.left))
        except (TideError, OSError) as error:
            raise self.images.in_plain(error, job, serial) from error
        image = GangImage(
            driver=self._checkpoint_io.driver.name,
            job=job,
            attempt=attempt.args.attempt,
            location=str(self.images.raw(job, serial)),
            size_bytes=report.size_bytes,
        )
        return on_images.Dumped(report.size_bytes, image)

    async def undo(self, attempt: Attempt, _: on_images.UndoDump) -> None:
        await asyncio.to_thread(self._checkpoint_io.undo, attempt)

    async def finish(self, attempt: Attempt, _: on_images.FinishDump) -> None:
        await asyncio.to_thread(self._checkpoint_io.driver.finish, attempt.handles())

    async def stop_time_slices(self, attempt: Attempt, _: do.StopTimeSlices) -> None:
        await asyncio.to_thread(self._checkpoint_io.stop_time_slices, attempt)

    # -- in the store -----------------------------------------------------------------------------------------------

    async def discard_raw(self, attempt: Attempt, step: on_images.DiscardRaw) -> None:
        await asyncio.to_thread(self.images.discard_raw, step.job or attempt.args.job, step.serial)

    async def remove_raw(self, job: int, serial: int) -> None:
        """Out of the way at once; its bytes when there is time."""
        gone = self.images.set_aside(job, serial)
        await self._storage.run(job, shutil.rmtree, gone, ignore_errors=True)

    async def store(self, attempt: Attempt, step: on_images.StoreImage) -> int:
        args = attempt.args
        made = await self._storage.run(args.job, self.images.put, args.tenant, args.job, step.serial, step.ranks)
        return sum(each.new_bytes for each in made)

    async def push(self, attempt: Attempt, step: on_images.PushImage) -> bool:
        args = attempt.args
        return await self._storage.run(args.job, self.images.push, args.tenant, args.job, step.serial, step.ranks)

    async def prune(self, attempt: Attempt, step: on_images.PruneImages) -> None:
        args = attempt.args
        keep = self.images.keep_newest
        await self._storage.run(args.job, keep, args.tenant, args.job, step.newest, step.previous)

    async def drop(self, attempt: Attempt, step: on_images.DropImage) -> None:
        await self._storage.run(attempt.args.job, self.images.drop_unknown, attempt.args.job, step.serial)

    def drop_all(self, job: int) -> Coroutine[Any, Any, None]:
        """Noted at once, for an agent that is to end; done when the result is awaited."""
        self.images.end_job(job)
        return self._drop_all(job)

    async def _drop_all(self, job: int) -> None:
        """What is here is found out first: the job may start over, and make other images, before the store has time."""
        last = await asyncio.to_thread(self.images.last_serial, job)
        await self._storage.run(job, self.images.drop_job, job, last)

    async def fetch(self, step: on_images.FetchImages) -> int:
        args = step.args
        new = await self._storage.run(args.job, self.images.fetch, args)
        await self._storage.run(args.job, self.images.keep_newest, args.tenant, args.job, args.serial, args.previous)
        return new

    # -- coming back ------------------------------------------------------------------------------------------------

    def has_raw(self, attempt: Attempt, step: on_images.HasRaw) -> bool:
        return self.images.raw(step.job or attempt.args.job, step.serial).exists()

    async def ready(self, attempt: Attempt, step: on_images.ReadyImages) -> dict[int, int]:
        args = attempt.args
        numbers, job = [seat.rank for seat in args.ranks], step.job or args.job
        directory = await asyncio.to_thread(self.images.ready, args.tenant, job, step.serial, numbers, args.sources)
        facts = {rank: self.images.facts(job, step.serial, rank) or {} for rank in numbers}
        self._rendezvous.unpack(attempt, facts.get(0, {}).get("meeting", ""))
        self._restoring[attempt.key] = directory, facts
        return {rank: int(each.get("need", 0)) for rank, each in facts.items()}

    async def make_generation(self, attempt: Attempt, step: on_images.MakeGeneration) -> on_images.Renewed:
        directory, facts = self._restoring[attempt.key]
        orders = {rank: self._checkpoint_io.driver.restore_spec(directory / str(rank)) for rank in facts}
        restore = {rank: {**order, "judged": True} for rank, order in orders.items()}
        grant = self._steps.shares.acquire(attempt.args)
        specs = rank_spec.specs(attempt.args, self._node_context, step.generation, restore, grant)
        rank_dirs = {
            rank: {name: unpack(content) for name, content in each.get("box", {}).items()}
            for rank, each in facts.items()
        }
        await asyncio.to_thread(attempt.make_generation, step.generation, specs, rank_dirs)
        return on_images.Renewed({rank: spec.cpus for rank, spec in specs.items()}, self._steps.shares.describe(grant))

    async def restore(self, attempt: Attempt, step: on_images.RestoreRanks) -> dict[int, RankOutcome]:
        directory, _ = self._restoring[attempt.key]
        found = await asyncio.gather(*(self._restore_rank(attempt, rank, directory) for rank in attempt.ranks))
        return {rank.number: outcome for rank, outcome in zip(attempt.ranks, found, strict=True) if outcome is not None}

    async def _restore_rank(self, attempt: Attempt, rank: Rank, directory: Path) -> RankOutcome | None:
        """Its image is checked while its shim and its namespaces are made; these wait for the result."""
        check = asyncio.to_thread(self._check_image, rank, directory / str(rank.number))
        outcome, against = await asyncio.gather(self._steps.start(attempt, rank), check)
        return outcome or against

    def _check_image(self, rank: Rank, image: Path) -> RankOutcome | None:
        """Have the rank's init know whether the image is sound, and one that belongs here; blocks."""
        against: dict[str, Any] = {}
        try:
            self._checkpoint_io.driver.check(image)
        except (TideError, OSError) as error:
            against = {"error": str(error), "image": isinstance(error, DamagedImage)}
        try:
            write_atomically(rank.directory / VERDICT, json.dumps(against).encode())
        except OSError as error:
            rank.end()
            return rank.not_started(f"the verdict on {image} cannot be written: {error.strerror}")
        return None

    async def restore_devices(self, attempt: Attempt, step: on_images.RestoreDevices) -> None:
        _, facts = self._restoring.pop(attempt.key)
        await asyncio.to_thread(self._checkpoint_io.restore_devices, attempt, facts)
