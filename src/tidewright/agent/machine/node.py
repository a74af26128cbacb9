"""Every attempt on a node, and requests about them: a repeated one changes nothing and is answered with the report."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, assert_never

from msgspec.structs import replace

from ...base.errors import Conflict, TideError, UsageError, WorldError
from ...model.job import Level
from ...wire.agent import (
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
from . import events as ev
from .actions import (
    ActionFailed,
    AnswerRequest,
    CheckLevel,
    CheckSeats,
    CreateAttempt,
    Do,
    Key,
    Log,
    PublishReport,
    Refuse,
    RemoveAttempt,
)
from .adopting import adopt
from .attempt import AttemptState
from .cuts import ABANDONED, grant_hold
from .ending import abort, end_all, leave, reap, stop
from .image_actions import DropJobImages
from .imaging import checkpoint, fetch
from .launching import launch
from .record import AttemptRecord, cut_of
from .scripts import Instant, Script, Scripts
from .suspending import resume, suspend
from .table import TABLE, VerbResponse
from .validate import check

FORGOTTEN_KEPT = 10_000
"""Attempts remembered after ``forget``, so that a late duplicate of ``launch`` starts nothing."""


class NodeMachine:
    """``images``: the node takes and restores full images. ``boot`` is another after each boot of the node."""

    def __init__(self, node: str, *, images: bool, boot: str = "") -> None:
        self.node, self.images, self.boot = node, images, boot
        self.attempts: dict[Key, AttemptState] = {}
        self._scripts = Scripts()
        self._forgotten: OrderedDict[Key, None] = OrderedDict()
        self._verbs: dict[str, Callable[[ev.Requested], Script]] = {
            "launch": self._launch,
            "suspend": self._suspend,
            "resume": self._resume,
            "checkpoint": self._checkpoint,
            "fetch": self._fetch,
            "stop": self._stop,
            "forget": self._forget,
        }

    def handle(self, now: Instant, event: ev.Event) -> list[Do]:
        """Take note of an event; what is to be done, in this order."""
        self._scripts.now = now
        match event:
            case ev.StepDone(number, value):
                self._scripts.done(number, value)
            case ev.StepFailed(number, error):
                self._scripts.failed(number, error)
            case ev.TimerFired(timer):
                self._scripts.fired(timer)
            case ev.Requested():
                self._ask(event)
            case ev.Adopted():
                self._adopt(event)
            case _:
                self._happened(event)
        return self._scripts.take()

    def reports(self) -> tuple[JobReport, ...]:
        """Every attempt here, by job; not one that is being removed."""
        return tuple(each.report() for _, each in sorted(self.attempts.items()) if not each.departing)

    # -- requests ---------------------------------------------------------------------------------------------------

    def _ask(self, ask: ev.Requested) -> None:
        self._scripts.start((ask.args.job, ask.args.attempt), self._handle_request(ask))

    def _handle_request(self, ask: ev.Requested) -> Script:
        try:
            yield from self._verbs[ask.verb](ask)
        except ActionFailed as error:
            self._refuse(ask, error.cause)
        except TideError as error:
            self._refuse(ask, error)

    def _refuse(self, ask: ev.Requested, error: TideError) -> None:
        """A resumption that had to wait was answered already: what it cannot do, it must report."""
        key = ask.args.job, ask.args.attempt
        if ask.ask:
            self._scripts.emit(key, Refuse(ask.ask, error))
        elif ask.verb == "resume":
            state = self.attempts.get(key)
            report = state.report() if state else JobReport(job=key[0], attempt=key[1], state="suspended")
            report = replace(report, state="suspended", verb="resume", error=str(error), op_id=ask.op_id)
            self._scripts.emit(key, PublishReport(report))
        else:
            self._scripts.emit(key, Log("error", f"job {key[0]} attempt {key[1]}: {ask.verb}: {error}"))

    def _answer(self, ask: ev.Requested, report: JobReport, *, publish: bool = False) -> None:
        """``publish``: a repeated call; for a controller that lost the first report."""
        key = ask.args.job, ask.args.attempt
        if publish:
            self._scripts.emit(key, PublishReport(report))
        if ask.ask:
            self._scripts.emit(key, AnswerRequest(ask.ask, report))

    def _find(self, ask: ev.Requested) -> AttemptState:
        found = self.attempts.get((ask.args.job, ask.args.attempt))
        if found is None:
            raise UsageError(
                f"job {ask.args.job} attempt {ask.args.attempt} is not on this node", "ask inventory for what is"
            )
        return found

    def _queue_request(self, ask: ev.Requested, state: AttemptState) -> None:
        """Handle a request after what is queued for the attempt."""
        self._answer(ask, state.report())

        def script() -> Script:
            if self.attempts.get(state.key) is state and not state.departing:
                self._ask_again(ask)
            yield from ()

        state.queue(script())

    def _ask_again(self, ask: ev.Requested) -> None:
        """Handle a request that was answered already as a new one."""
        self._ask(ev.Requested(0, ask.verb, ask.args, ask.op_id))

    # -- verbs ------------------------------------------------------------------------------------------------------

    def _launch(self, ask: ev.Requested) -> Script:
        """Start the ranks of an attempt. What no node could launch is a failed report, the job's own fault; what this node
        cannot, for want of devices or disk, is refused."""
        args: LaunchArgs = ask.args
        key = args.job, args.attempt
        if key in self.attempts:
            self._answer(ask, self.attempts[key].report(), publish=True)
            return
        if key in self._forgotten:
            raise Conflict(f"job {args.job} attempt {args.attempt} has ended and was forgotten", "use a new attempt")
        try:
            check(args)
        except UsageError as error:
            self._answer(
                ask,
                JobReport(
                    job=args.job, attempt=args.attempt, state="failed", verb="launch", error=str(error), fault="user"
                ),
            )
            return
        state = yield from self._create(args, ask.op_id)
        state.queue(launch(state, images=self.images))
        self._answer(ask, state.report())

    def _create(self, args: LaunchArgs, generation: str) -> Any:
        record = AttemptRecord(
            grace_us=args.grace_us,
            devices={seat.rank: seat.devices for seat in args.ranks},
            serial=args.image,
            peers=args.peers,
            rendezvous_generation=generation,
            boot=self.boot,
        )
        logs = yield CreateAttempt(args, record)
        state = AttemptState(args, record, self._scripts, logs)
        self.attempts[state.key] = state
        return state

    def _suspend(self, ask: ev.Requested) -> Script:
        """Suspend a running attempt by ``args.level``, once an image that is being taken is done; a refusal is reported as
        ``running`` with ``error``."""
        args: SuspendArgs = ask.args
        state = self._find(ask)
        response = TABLE[state.record.phase, "suspend"]
        if (ask.ask and state.seen(ask.op_id)) or response is VerbResponse.REPEAT:
            self._answer(ask, state.report(), publish=True)
        elif response is VerbResponse.QUEUE:
            self._queue_request(ask, state)
        else:
            record = state.record
            record.level, record.bounded, record.grace_us = args.level, args.bounded, args.grace_us
            record.serial, record.previous, record.peers = args.serial, args.previous, args.peers or record.peers
            record.cut, record.op_id = cut_of(args.serial, ask.op_id), ask.op_id
            state.begin_cut(record.cut, image=bool(args.serial))
            report = state.update(phase="suspending", verb="suspend", error="", no_room=False, took_us=0)
            state.queue(suspend(state, self.node, images=self.images))
            self._answer(ask, report)
        yield from ()

    def _resume(self, ask: ev.Requested) -> Script:
        """Let a suspended attempt run, on the devices given."""
        args: ResumeArgs = ask.args
        known = self.attempts.get((args.job, args.attempt))
        if args.launch is not None and known is None:
            yield from self._arrive(ask, args.launch, args)
            return
        if args.launch is not None and known is not None and known.departing:
            known.next = lambda: self._ask_again(ask)
            self._answer(ask, replace(known.report(), state="resuming", verb="resume", error=""))
            return
        state = self._find(ask)
        if ask.ask and state.seen(ask.op_id):
            self._answer(ask, state.report(), publish=True)
        elif not ask.ask and state.record.phase == "suspending":
            raise WorldError("its suspension did not complete")
        else:
            yield from self._resume_known(ask, state, args)

    def _resume_known(self, ask: ev.Requested, state: AttemptState, args: ResumeArgs) -> Script:
        record = state.record
        response = TABLE[record.phase, "resume"]
        if response is VerbResponse.QUEUE and not record.ending:
            self._queue_request(ask, state)
        elif response is not VerbResponse.BEGIN:
            self._answer(ask, state.report(), publish=True)
        else:
            cpus, state.logs = yield CheckSeats(args.launch, args.ranks)
            if args.launch is not None:
                state.args, record.serial = args.launch, args.serial
                if not args.back:
                    record.rendezvous_generation = ask.op_id
            record.boot, record.op_id = self.boot, ask.op_id
            record.cpus.update(cpus)
            record.devices.update({seat.rank: seat.devices for seat in args.ranks})
            report = state.update(phase="resuming", verb="resume", error="", took_us=0)
            state.queue(resume(state, images=self.images))
            self._answer(ask, report)

    def _arrive(self, ask: ev.Requested, args: LaunchArgs, resumption: ResumeArgs) -> Script:
        """Resume an attempt here that was suspended on other nodes."""
        self._forgotten.pop((args.job, args.attempt), None)
        state = yield from self._create(replace(args, image=resumption.serial), "" if resumption.back else ask.op_id)
        state.record.level, state.record.op_id, state.record.ops = int(Level.FULL), ask.op_id, [ask.op_id]
        report = state.update(phase="resuming", verb="resume")
        state.queue(resume(state, images=self.images))
        self._answer(ask, report)

    def _checkpoint(self, ask: ev.Requested) -> Script:
        """Take images of a running attempt, which runs on; answered by a report of verb ``checkpoint``, without the refusal of
        an earlier suspension: the next one may be under way when the answer arrives."""
        args: CheckpointArgs = ask.args
        state = self._find(ask)
        repeated = state.seen(ask.op_id) or TABLE[state.record.phase, "checkpoint"] is VerbResponse.REPEAT
        error, image = "", None
        if self.images and not repeated:
            state.begin_cut(args.serial, image=True)
            state.queue(checkpoint(state, self.node, args))
        elif not repeated:
            error, image = (yield CheckLevel(Level.FULL)), ImageReport(serial=args.serial)
        report = replace(state.report(), verb="checkpoint", error=error, image=image or state.record.last_image)
        self._answer(ask, report, publish=bool(error))

    def _fetch(self, ask: ev.Requested) -> Script:
        """Take copies of images from other nodes; answered by a report of verb ``fetch``."""
        args: FetchArgs = ask.args
        report = JobReport(job=args.job, attempt=args.attempt, state="exited", verb="fetch", why="not here")
        if self.images:
            self._scripts.start((args.job, args.attempt), fetch(self._scripts, args, report))
        else:
            report = replace(report, error="this node keeps no images", image=ImageReport(serial=args.serial))
        self._answer(ask, report)
        yield from ()

    def _stop(self, ask: ev.Requested) -> Script:
        """End an attempt. One that is not here is answered as exited and lost."""
        args: StopArgs = ask.args
        state = self.attempts.get((args.job, args.attempt))
        if state is None:
            gone = JobReport(job=args.job, attempt=args.attempt, state="exited", verb="stop", lost=True, why="not here")
            self._answer(ask, gone)
            return
        if TABLE[state.record.phase, "stop"] is VerbResponse.REPEAT:
            self._answer(ask, state.report(), publish=True)
            return
        again = state.record.ending == "stop"
        state.end_by("stop")
        state.give_up_cuts()
        state.record.grace_us = args.grace_us
        report = state.update(phase="stopping", verb="stop", error="", why="stopped on request")
        if again:
            state.arm_kill(lambda: end_all(state))
        else:
            state.queue(stop(state, images=self.images))
        self._answer(ask, report)
        yield from ()

    def _forget(self, ask: ev.Requested) -> Script:
        """Drop the records of an ended attempt. Refused while it lives, unless it has ``left``."""
        args: ForgetArgs = ask.args
        key = args.job, args.attempt
        state = self.attempts.get(key)
        if args.images and self.images:
            self._scripts.emit(key, DropJobImages(args.job))
        if state is None:
            self._answer(ask, JobReport(job=args.job, attempt=args.attempt, state="exited", why="not here"))
            return
        report = state.report()
        if args.left:
            state.next = None
            if not state.departing:
                leave(state, lambda: self._drop(state))
        elif not state.over:
            raise Conflict(f"job {args.job} attempt {args.attempt} is {state.record.phase}", "stop it first")
        else:
            self._drop(state)
            self._forgotten[key] = None
            while len(self._forgotten) > FORGOTTEN_KEPT:
                self._forgotten.popitem(last=False)
        self._answer(ask, report)
        yield from ()

    def _drop(self, state: AttemptState) -> None:
        """No report is sent of it any more, and nothing waits for its cuts. Harmless for one that was dropped."""
        if self.attempts.get(state.key) is not state:
            return
        del self.attempts[state.key]
        state.give_up_cuts()
        for cut in list(state.underway):
            state.end_cut(cut)
        last = all(job != state.args.job for job, _ in self.attempts)
        self._scripts.emit(state.key, RemoveAttempt(last))

    def _adopt(self, found: ev.Adopted) -> None:
        """Go on with what an earlier agent was doing."""
        state = AttemptState(found.args, found.record, self._scripts, found.logs)
        self.attempts[state.key] = state
        state.outcomes.update(found.outcomes)
        if not state.over:
            adopt(state, self.node, lambda: self._drop(state), images=self.images, boot=self.boot)

    # -- what happens -----------------------------------------------------------------------------------------------

    def _happened(self, event: ev.Event) -> None:
        key: Key = event.key  # type: ignore[attr-defined]
        state = self.attempts.get(key)
        if isinstance(event, ev.HoldRequested):
            self._hold(event, state)
        elif state is None:
            return
        elif isinstance(event, ev.RankGone):
            state.start(reap(state, event.rank, event.generation))
        elif isinstance(event, ev.DevicesLost):
            state.start(abort(state, event.why))
        elif isinstance(event, ev.CutDecided):
            self._decided(state, event)
        elif isinstance(event, ev.LevelCapped):
            if state.record.phase == "running" and event.level != state.record.max_level:
                state.update(max_level=event.level, max_level_why=event.why)
        elif isinstance(event, ev.NoticeGiven):
            state.update(notice=event.text)
        elif isinstance(event, ev.Evicted):
            self._evict(state, event.why)
        else:
            assert_never(event)  # type: ignore[arg-type]

    def _hold(self, event: ev.HoldRequested, state: AttemptState | None) -> None:
        if state is None:
            why = f"job {event.key[0]} attempt {event.key[1]} is not on this node"
            self._scripts.emit(event.key, Refuse(event.ask, WorldError(why)))
        else:
            state.start(grant_hold(state, event.ask, event.cut))

    def _decided(self, state: AttemptState, event: ev.CutDecided) -> None:
        """A cut for which the ranks here are not held is none: an earlier agent granted the hold, and this one releases them."""
        state.give_up_overtaken(event.cut, ABANDONED)
        if event.cut not in state.ended_cuts:
            why = event.why or ("" if state.held_by(event.cut) else ABANDONED)
            self._scripts.open(state.decision(event.cut), why)

    def _evict(self, state: AttemptState, why: str) -> None:
        """End a running attempt for what it does: SIGTERM, its grace, SIGKILL."""
        record = state.record
        if record.ending or record.phase != "running":
            return
        record.evicted, record.ending, record.grace_us = True, "stop", state.args.grace_us
        state.update(phase="stopping", verb="stop", why=why, notice=why)
        state.queue(stop(state, images=self.images))
