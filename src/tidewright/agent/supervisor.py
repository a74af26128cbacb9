"""The shell around the machine: requests and what happens to ranks go in as events, its actions are carried out here.

Every request is answered at once with a report; what takes time runs afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from functools import partialmethod
from typing import Any

from msgspec.structs import replace

from ..base.errors import TideError, WorldError
from ..checkpoint.protocol import Driver
from ..devices.excess import Rules
from ..model.job import Level
from ..wire.agent import JobReport
from .checkpointing.image_steps import ImageSteps
from .machine import actions as do
from .machine import events as ev
from .machine import image_actions as on_images
from .machine.loop import MachineLoop
from .machine.node import NodeMachine
from .processes import rank_spec
from .processes.accounts import with_account_env
from .processes.attempt import Attempt, clear_partial
from .processes.freezer_groups import RankGroups
from .processes.log_cap import LOOK_S, LogCap
from .processes.memory_guard import MemoryGuard, enforcement
from .processes.rank import Rank
from .processes.rank_dir import complaints
from .processes.rank_steps import RankSteps
from .processes.shares import AttemptShares
from .processes.shim_watch import ShimWatch
from .services import Services, boottime, failure, logged, nothing, now

log = logging.getLogger(__name__)

EVICTS = Rules(action="evict")
LEFT_KEPT = 1000
Key = tuple[int, int]
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR, "bug": logging.ERROR}


class Supervisor:
    """Every attempt on this node. ``publish`` is called at each change; ``drivers`` are by level; ``boot`` is another after
    each boot of the host."""

    def __init__(
        self,
        node_context: rank_spec.NodeContext,
        drivers: dict[Level, Driver],
        publish: Callable[[JobReport], None],
        rules: Rules = EVICTS,
        log_cap: LogCap | None = None,
        boot: str = "",
    ) -> None:
        self._node_context, self._publish, self._log_cap = node_context, publish, log_cap or LogCap(0)
        self._layout = node_context.layout
        self._groups = RankGroups(node_context.freezer, node_context.limits, node_context.layout.tags)
        node = node_context.backend.discover()
        self.attempts: dict[Key, Attempt] = {}
        self.memory = MemoryGuard(node_context.backend, self.feed, self.attempts, rules)
        self._watcher = ShimWatch(self._shim_gone)
        self.shares = AttemptShares(node_context.backend, node_context.limits, self.attempts)
        self.steps = RankSteps(
            node_context,
            drivers,
            self._watcher,
            lambda args: enforcement(args, node.kind, self.memory.rules),
            self.shares,
        )
        self.services: Services | None = None
        self._images: ImageSteps | None = None
        self._machine = NodeMachine(node.name, images=False, boot=boot)
        self._loop = MachineLoop(self._machine, now, self._perform)
        self._asks = 0
        self._answers: dict[int, JobReport | TideError] = {}
        self._left: dict[Key, Attempt] = {}
        """Attempts that were here last: their images are stored still."""
        self._holds: dict[int, asyncio.Future[None]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._effects = self._effect_table()
        self._step_table = self._steps()

    def attach_services(self, services: Services) -> None:
        """Attach what the node has; before the first request."""
        self.services = services
        if services.checkpoint_io is not None and services.images is not None:
            self._images = ImageSteps(
                self._node_context, self.steps, services.checkpoint_io, services.images, services.rendezvous
            )
            self._machine.images = True
            self._step_table |= self._image_steps(self._images)

    # -- requests ---------------------------------------------------------------------------------------------------

    def ask(self, verb: str, args: Any, op_id: str) -> JobReport:
        """The answer to a request. Raises UsageError, Conflict and WorldError."""
        args = with_account_env(args) if verb == "launch" else args
        if verb == "resume" and args.launch is not None:
            args = replace(args, launch=with_account_env(args.launch))
        self._asks += 1
        number = self._asks
        self.feed(ev.Requested(number, verb, args, op_id))
        answer = self._answers.pop(number)
        if isinstance(answer, TideError):
            raise answer
        return answer

    launch, suspend, resume = partialmethod(ask, "launch"), partialmethod(ask, "suspend"), partialmethod(ask, "resume")
    checkpoint, fetch = partialmethod(ask, "checkpoint"), partialmethod(ask, "fetch")
    stop, forget = partialmethod(ask, "stop"), partialmethod(ask, "forget")

    async def may_hold(self, key: Key, cut: int | None) -> None:
        """Returns when the agent that leads a cut may hold the ranks of a gang here. Raises WorldError for unknown ones."""
        self._asks += 1
        number, granted = self._asks, asyncio.get_running_loop().create_future()
        self._holds[number] = granted
        try:
            self.feed(ev.HoldRequested(number, key, cut))
            await granted
        finally:
            del self._holds[number]

    def cut_decided(self, key: Key, cut: int, why: str) -> None:
        """The agent that leads a cut says what became of it."""
        self.feed(ev.CutDecided(key, cut, why))

    def reports(self) -> tuple[JobReport, ...]:
        """Every attempt here, by job; not one that is being removed, which publishes no more reports."""
        return self._machine.reports()

    # -- the loop ---------------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        """Let the machine know, and have done what follows at once."""
        self._loop.feed(event)

    def _perform(self, what: do.Do) -> None:
        attempt = self._find(what.key) if what.key is not None else None
        if isinstance(what.action, do.Effect):
            try:
                self._effects[type(what.action)](attempt, what.action)
            except Exception:
                log.exception("%s of %s failed", type(what.action).__name__, what.key)
            return
        handler = self._step_table[type(what.action)]
        if what.action.INSTANT:
            try:
                self._loop.feed(ev.StepDone(what.number, handler(attempt, what.action)))
            except Exception as error:
                self._loop.feed(ev.StepFailed(what.number, failure(error)))
            return
        self._spawn(self._step(what, handler, attempt))

    def _find(self, key: Key) -> Attempt | None:
        return self.attempts.get(key) or self._left.get(key)

    async def _step(self, what: do.Do, handler: Callable[[Any, Any], Any], attempt: Attempt | None) -> None:
        try:
            value = await handler(attempt, what.action)
        except Exception as error:
            self.feed(ev.StepFailed(what.number, failure(error)))
        else:
            self.feed(ev.StepDone(what.number, value))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- effects ----------------------------------------------------------------------------------------------------

    def _effect_table(self) -> dict[type, Callable[[Any, Any], None]]:
        return {
            do.AnswerRequest: lambda _, answer: self._answers.update({answer.ask: answer.report}),
            do.Refuse: self._refuse,
            do.PublishReport: self._report,
            do.Log: lambda _, line: log.log(LEVELS[line.level], "%s", line.text),
            do.StartTimer: self._start_timer,
            do.CancelTimer: lambda _, timer: self._timers.pop(timer.timer).cancel(),
            do.SaveRecord: self.steps.save,
            do.WatchRanks: self.steps.watch,
            do.UnwatchRanks: self.steps.unwatch,
            do.RemoveAttempt: self._remove,
            do.GrantHold: lambda _, grant: self._grant(grant.ask),
            do.AdoptRendezvous: self._adopt_rendezvous,
            do.FailRendezvous: self._fail_rendezvous,
            do.StartTimeSlices: self._start_time_slices,
            on_images.RemoveRaw: self._remove_raw,
            on_images.DropJobImages: self._drop_images,
            on_images.EnterGeneration: lambda attempt, _: attempt.enter_generation(),
        }

    def _refuse(self, _: Attempt | None, refusal: do.Refuse) -> None:
        if refusal.ask in self._holds:
            self._holds[refusal.ask].set_exception(refusal.error)
        else:
            self._answers[refusal.ask] = refusal.error

    def _report(self, attempt: Attempt | None, news: do.PublishReport) -> None:
        """What an attempt no longer has of a device is released first: by its report others are placed there."""
        if attempt is not None and attempt.key in self.attempts:
            self.shares.follow(attempt)
        self._publish(news.report)

    def _grant(self, ask: int) -> None:
        granted = self._holds.get(ask)
        if granted is not None and not granted.done():
            granted.set_result(None)

    def _start_timer(self, _: Attempt | None, timer: do.StartTimer) -> None:
        def fire() -> None:
            del self._timers[timer.timer]
            self.feed(ev.TimerFired(timer.timer))

        self._timers[timer.timer] = asyncio.get_running_loop().call_later(timer.seconds, fire)

    def _remove(self, attempt: Attempt, action: do.RemoveAttempt) -> None:
        self._left[attempt.key] = self.attempts.pop(attempt.key)
        while len(self._left) > LEFT_KEPT:
            del self._left[next(iter(self._left))]
        if action.last and self.services is not None:
            self.services.rendezvous.close(attempt.args.job)
        self._log_cap.look(attempt.cappable_logs())
        attempt.remove()
        self.shares.release(attempt.key)
        self._groups.clear_attempt(attempt.key)

    def _adopt_rendezvous(self, attempt: Attempt, _: do.AdoptRendezvous) -> None:
        if self.services is not None:
            self.services.rendezvous.adopt(attempt)

    def _fail_rendezvous(self, attempt: Attempt, action: do.FailRendezvous) -> None:
        if self.services is not None:
            self.services.rendezvous.fail(attempt, action.why)

    def _start_time_slices(self, attempt: Attempt, _: do.StartTimeSlices) -> None:
        if self.services is None or self.services.checkpoint_io is None:
            return
        loop, key = asyncio.get_running_loop(), attempt.key

        def lost(why: str) -> None:
            with contextlib.suppress(RuntimeError):  # this agent is about to end; the next one will see
                loop.call_soon_threadsafe(self.feed, ev.DevicesLost(key, why))

        self.services.checkpoint_io.start_time_slices(attempt, lost)

    def _remove_raw(self, _: Attempt | None, action: on_images.RemoveRaw) -> None:
        if self._images is not None:
            self._spawn(logged(self._images.remove_raw(action.job, action.serial)))

    def _drop_images(self, _: Attempt | None, action: on_images.DropJobImages) -> None:
        if self._images is not None:
            self._spawn(logged(self._images.drop_all(action.job)))

    # -- steps ------------------------------------------------------------------------------------------------------

    def _steps(self) -> dict[type, Callable[[Any, Any], Any]]:
        steps = self.steps
        return {
            do.CreateAttempt: self._create,
            do.CheckSeats: steps.check_seats,
            do.CommitRecord: steps.commit,
            do.SpawnRanks: steps.spawn,
            do.TerminateRanks: steps.terminate,
            do.SweepRanks: steps.sweep,
            do.KillRanks: steps.kill,
            do.ReadEnding: steps.read_ending,
            do.TidyRank: steps.tidy,
            do.FindDeviceFault: steps.find_fault,
            do.ReadLastLines: steps.last_lines,
            do.CheckLevel: steps.check_level,
            do.SuspendByDriver: steps.suspend,
            do.ResumeByDriver: steps.resume,
            do.DiscardImage: steps.discard,
            do.WriteEndpoints: self._write_endpoints,
            do.FindControlPages: lambda attempt, _: self.services is not None and attempt.worlds(),
            do.PackRendezvous: lambda attempt, _: self._required().rendezvous.pack(attempt.args.job),
            do.CutGang: lambda attempt, step: self._required().gangs.cut(attempt.key, step),
            do.SendCutResult: self._send_result,
            do.ReleaseRanks: self._release,
            do.StopTimeSlices: nothing,
        }

    def _image_steps(self, images: ImageSteps) -> dict[type, Callable[[Any, Any], Any]]:
        return {
            on_images.MeasureRanks: images.measure,
            on_images.DumpRanks: images.dump,
            on_images.UndoDump: images.undo,
            on_images.FinishDump: images.finish,
            do.StopTimeSlices: images.stop_time_slices,
            on_images.DiscardRaw: images.discard_raw,
            on_images.StoreImage: images.store,
            on_images.PushImage: images.push,
            on_images.PruneImages: images.prune,
            on_images.DropImage: images.drop,
            on_images.FetchImages: lambda _, step: images.fetch(step),
            on_images.HasRaw: images.has_raw,
            on_images.ReadyImages: images.ready,
            on_images.MakeGeneration: images.make_generation,
            on_images.RestoreRanks: images.restore,
            on_images.RestoreDevices: images.restore_devices,
        }

    def _required(self) -> Services:
        if self.services is None:
            raise WorldError("this node has no peer server")
        return self.services

    def _create(self, _: Attempt | None, step: do.CreateAttempt) -> tuple[tuple[int, str], ...]:
        attempt = self._known(self.steps.create(step))
        return attempt.logs()

    def _known(self, attempt: Attempt) -> Attempt:
        attempt.bind(lambda: self._machine.attempts.get(attempt.key))
        self.attempts[attempt.key] = attempt
        return attempt

    async def _write_endpoints(self, attempt: Attempt, step: do.WriteEndpoints) -> None:
        if self.services is None or not any(rank.sandboxed for rank in attempt.ranks):
            return
        if step.reset:
            self.services.rendezvous.reset(attempt)
        await self.services.rendezvous.write(attempt, step.generation)

    async def _send_result(self, attempt: Attempt, step: do.SendCutResult) -> None:
        if self.services is not None:
            await self.services.gangs.send_result(attempt.key, step)

    async def _release(self, attempt: Attempt, _: do.ReleaseRanks) -> None:
        if self.services is not None:
            await self.services.gangs.release(attempt.key)

    def _shim_gone(self, attempt: Attempt, rank: Rank) -> None:
        rank.close()
        self.feed(ev.RankGone(attempt.key, rank.number, rank.generation))

    # -- an agent's life --------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over every attempt an earlier agent left, and go on with what it was doing."""
        clear_partial(self._layout.ranks)
        for directory in sorted(self._layout.ranks.iterdir()):
            if directory.name.startswith("."):
                continue
            try:
                attempt = Attempt.load(self._layout, directory)
            except WorldError as error:
                log.error("%s; moved aside", error)
                directory.rename(directory.with_name(f".damaged.{directory.name}.{int(boottime())}"))
                continue
            self.shares.follow(self._known(attempt))
            endings = {rank.number: rank.ending() for rank in attempt.ranks} if attempt.over else {}
            outcomes = {number: outcome for number, outcome in endings.items() if outcome is not None}
            self.feed(ev.Adopted(attempt.args, attempt.record, attempt.logs(), outcomes))
        self.clear_groups()
        log.info("adopted %d attempts", len(self.attempts))

    def health_check(self) -> None:
        """One round of the safety poll: shims whose death went unnoticed, groups of ranks that are gone, wrappers that could
        not wrap something."""
        self._watcher.check()
        self.clear_groups()
        for attempt in list(self.attempts.values()):
            if attempt.record.phase == "running":
                level, why = complaints(attempt)
                if level != -1 and level != attempt.record.max_level:
                    self.feed(ev.LevelCapped(attempt.key, level, why))

    async def cap_logs(self) -> None:
        """Keep the logs of ranks below their limit, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            paths = [path for attempt in self.attempts.values() for path in attempt.cappable_logs()]
            if paths:
                await asyncio.to_thread(self._log_cap.look, paths)

    def clear_groups(self) -> None:
        """Remove the groups of ranks that are gone; only an agent that knows all of its attempts may, at work or at its end."""
        self._groups.clear(self.attempts)

    async def close(self) -> None:
        """Stop watching; ranks live on."""
        for timer in self._timers.values():
            timer.cancel()
        self._watcher.close()
        if self._images is not None:
            self._images.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
