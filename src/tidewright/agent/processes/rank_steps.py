"""Carrying out the machine's steps on ranks: their processes, their records, and suspension by every level below FULL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ...base.errors import WorldError
from ...checkpoint.cgroup import freezer_of, remove
from ...checkpoint.files.space import in_plain
from ...checkpoint.protocol import Driver, GangImage, RestorePlacement
from ...devices.protocol import ShareGrant
from ...model.job import Level
from ...wire.agent import LaunchArgs
from ..fair_queue import FairQueue
from ..health import HealthMonitor
from ..machine import actions as do
from ..machine.outcomes import RankOutcome
from . import rank_spec
from .attempt import Attempt
from .log_tail import last_lines
from .rank import Rank
from .shares import AttemptShares, device_of
from .shim_watch import ShimWatch

log = logging.getLogger(__name__)

Seats = tuple[dict[int, tuple[int, ...]], tuple[tuple[int, str], ...]]
"""Cores by rank, and (rank, path of its log)."""
SPAWN_AT_ONCE = 8
"""Shims started side by side; each costs some 40 ms of one core."""


@dataclass
class RankSteps:
    """``drivers`` are by level; ``enforcement`` says what keeps an attempt to its share of a device's memory. Must live in a
    running event loop."""

    node_context: rank_spec.NodeContext
    drivers: dict[Level, Driver]
    watcher: ShimWatch
    enforcement: Callable[[Any], str]
    shares: AttemptShares
    health: HealthMonitor | None = None
    """Of devices that can fail by themselves; None where there are none."""
    spawning: FairQueue = field(default_factory=lambda: FairQueue(SPAWN_AT_ONCE))

    # -- records ----------------------------------------------------------------------------------------------------

    def create(self, step: do.CreateAttempt) -> Attempt:
        grant = self.shares.acquire(step.args)
        try:
            return self._create(step, grant)
        except Exception:
            self.shares.release((step.args.job, step.args.attempt))
            raise

    def _create(self, step: do.CreateAttempt, grant: ShareGrant) -> Attempt:
        specs = rank_spec.specs(step.args, self.node_context, grant=grant)
        step.record.cpus = {rank: spec.cpus for rank, spec in specs.items()}
        step.record.memory_limit = self.enforcement(step.args)
        step.record.share_limits = self.shares.describe(grant)
        step.record.host_limits = self.node_context.limits.describe(step.args.cpus_milli, step.args.memory)
        try:
            return Attempt.create(self.node_context.layout, step.args, specs, step.record)
        except OSError as error:
            for spec in specs.values():
                remove(spec.groups)
            raise WorldError(f"cannot record the launch: {error.strerror}") from error

    def check_seats(self, attempt: Attempt, step: do.CheckSeats) -> Seats:
        if step.launch is not None:
            rank_spec.places(step.launch, self.node_context)
        cpus = {seat.rank: self.node_context.backend.environment(seat.devices).cpus for seat in step.seats}
        self.shares.acquire(*self._share_back(attempt, step))
        if step.launch is not None:
            try:
                attempt.intend(step.launch)
            except OSError as error:
                self.shares.follow(attempt)
                raise WorldError(f"cannot record the resumption: {error.strerror}") from error
        return cpus, attempt.logs()

    def _share_back(self, attempt: Attempt, step: do.CheckSeats) -> tuple[LaunchArgs, int]:
        """What a suspended attempt asks for to run, and the device it is to be on."""
        args = step.launch or attempt.args
        seats = args.ranks if step.launch is not None else step.seats
        return args, next((seat.devices[0] for seat in seats if seat.devices), device_of(attempt))

    def save(self, attempt: Attempt, _: do.SaveRecord) -> None:
        attempt.pace()
        try:
            attempt.save()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.error("cannot save job %d attempt %d: %s", *attempt.key, error)

    def commit(self, attempt: Attempt, step: do.CommitRecord) -> None:
        attempt.pace()
        try:
            attempt.save()
        except OSError as error:
            raise in_plain(error, attempt.directory, step.what) from error

    # -- starting and ending ----------------------------------------------------------------------------------------

    async def spawn(self, attempt: Attempt, _: do.SpawnRanks) -> dict[int, RankOutcome]:
        found = await asyncio.gather(*(self.start(attempt, rank) for rank in attempt.ranks))
        return {rank.number: outcome for rank, outcome in zip(attempt.ranks, found, strict=True) if outcome is not None}

    async def start(self, attempt: Attempt, rank: Rank) -> RankOutcome | None:
        """Have the rank's shim started; how it ended when it never ran."""
        rank.look()
        if rank.main is None and rank.ending() is None:
            async with self.spawning.slot(attempt.args.job):
                if attempt.record.ending:
                    return rank.not_started("stopped before it started")
                try:
                    await rank.spawn()
                except OSError as error:
                    return rank.not_started(f"cannot start a process: {error.strerror}")
        if rank.main is None and rank.ending() is None and not rank.shim_alive():
            return rank.not_started(f"its shim did not start; see {rank.directory / 'shim.log'}")
        outcome = rank.ending()
        return outcome if outcome and outcome.error else None

    def watch(self, attempt: Attempt, step: do.WatchRanks) -> None:
        for number in step.ranks:
            self.watcher.add(attempt, attempt.rank(number))

    def unwatch(self, attempt: Attempt, step: do.UnwatchRanks) -> None:
        for rank in attempt.ranks:
            if rank.number in step.ranks:
                self.watcher.drop(rank)

    async def terminate(self, attempt: Attempt, step: do.TerminateRanks) -> None:
        await asyncio.gather(*(asyncio.to_thread(attempt.rank(number).terminate) for number in step.ranks))

    async def sweep(self, attempt: Attempt, step: do.SweepRanks) -> tuple[int, ...]:
        survivors = []
        for rank in [attempt.rank(number) for number in step.ranks]:
            await asyncio.to_thread(freezer_of(rank.handle).thaw, rank.handle)
            if not await asyncio.to_thread(rank.sweep):
                survivors.append(rank.number)
        return tuple(survivors)

    async def kill(self, attempt: Attempt, step: do.KillRanks) -> None:
        ranks = [rank for rank in attempt.ranks if rank.number in step.ranks]
        await asyncio.gather(*(asyncio.to_thread(rank.end) for rank in ranks))

    def read_ending(self, attempt: Attempt, step: do.ReadEnding) -> do.RankEnding:
        rank = attempt.rank(step.rank)
        rank.look()
        if rank.shim_alive():
            return do.RankEnding(True, None)
        return do.RankEnding(False, rank.ending())

    def tidy(self, attempt: Attempt, step: do.TidyRank) -> bool:
        ranks = [rank for rank in attempt.ranks if (rank.number, rank.generation) == (step.rank, step.generation)]
        return all(rank.tidy() for rank in ranks)

    async def find_fault(self, attempt: Attempt, step: do.FindDeviceFault) -> str:
        return await self.health.under(step.devices) if self.health is not None else ""

    async def last_lines(self, attempt: Attempt, step: do.ReadLastLines) -> tuple[str, ...]:
        rank = attempt.rank(step.rank)
        return await asyncio.to_thread(last_lines, attempt.log_of(rank), rank.owner)

    # -- suspension -------------------------------------------------------------------------------------------------

    async def check_level(self, attempt: Attempt, step: do.CheckLevel) -> str:
        return await asyncio.to_thread(self._refusal, attempt, step.level)

    def _refusal(self, attempt: Attempt, level: int) -> str:
        driver = self.drivers.get(Level(level)) if level in list(Level) else None
        if driver is None:
            return f"this node cannot suspend by level {Level(level).name.lower() if level in list(Level) else level}"
        gang = attempt.gang()
        if attempt.worlds():
            gang = replace(gang, bounded=True)
        return driver.can(gang, self.node_context.backend.discover().kind).reason

    async def suspend(self, attempt: Attempt, step: do.SuspendByDriver) -> GangImage | None:
        return await asyncio.to_thread(self.drivers[step.level].save, attempt.gang())

    async def resume(self, attempt: Attempt, step: do.ResumeByDriver) -> None:
        placement = RestorePlacement(node=self.node_context.backend.discover().name, cpus=attempt.record.cpus)
        await asyncio.to_thread(self.drivers[step.level].restore, step.image, placement)

    async def discard(self, attempt: Attempt, step: do.DiscardImage) -> None:
        await asyncio.to_thread(self.drivers[step.level].discard, step.image)
