"""One attempt of a job on this node: its record, how its ranks ended, and the report that sums it up.

What is done to it is in ``launching``, ``suspending``, ``imaging``, ``restoring`` and ``ending``; when, in ``table``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from msgspec.structs import replace

from ...base.units import SECOND, format_duration
from ...checkpoint.protocol import EXIT_REQUEUE
from ...model.failure import RankFailure
from ...model.job import Level
from ...wire.agent import Fault, ImageReport, JobReport, LaunchArgs
from .actions import Effect, Key, Log, PublishReport, SaveRecord
from .outcomes import SIGKILL_CODE, SIGTERM_CODE, RankOutcome, describe
from .record import AttemptRecord, image_ordered
from .scripts import Gate, Script, ScriptQueue, Scripts

ENDS = "it is being ended"
CUTS_KEPT = 32
ANY_CUT = -1
RECOVERY = -2
"""Stands for a cut while what an earlier agent left of one is undone."""
OPS_KEPT = 32
"""Recent op_ids per attempt; a late duplicate of an older one would have to overtake this many calls."""


class AttemptState:
    """Ranks of one (job, attempt). ``logs``: (rank, path) of their logs."""

    def __init__(
        self, args: LaunchArgs, record: AttemptRecord, scripts: Scripts, logs: tuple[tuple[int, str], ...] = ()
    ) -> None:
        self.args, self.record, self.logs = args, record, logs
        self.scripts, self.script_queue = scripts, ScriptQueue()
        self.outcomes: dict[int, RankOutcome] = {}
        """How ranks of the present generation ended."""
        self.ended_in_dump: set[int] = set()
        """Ranks of which a dump has seen the end: CRIU may have caused it. Until the agent ends."""
        self.restoring = False
        """Its ranks are being brought back: that all of those before them are gone does not end it."""
        self.departing = False
        """It lives elsewhere, and what is left of it here is being ended."""
        self.next: Callable[[], None] | None = None
        """What was asked of it since, to be done once it has left."""
        self.kill_timer = 0
        self.kill_at_us = 0
        self.decided: dict[int, Gate] = {}
        """What became of cuts that another node leads, by number; it may be heard of before it is waited for."""
        self.ended_cuts: deque[int] = deque(maxlen=CUTS_KEPT)
        """Cuts of which the ranks here are no part any more: who still wants to hold them for one comes too late."""
        self.underway: dict[int, Gate] = {}
        """Cuts that were asked for here and are not done with, by number."""
        self.newest_image = 0
        """The highest number of an image that was asked for here."""
        self.held_for: int | None = None
        """The cut for which the ranks here were last held, until they are released; ``ANY_CUT`` when it has no number."""

    # -- facts ------------------------------------------------------------------------------------------------------

    @property
    def key(self) -> Key:
        return self.args.job, self.args.attempt

    @property
    def over(self) -> bool:
        return self.record.phase in ("exited", "failed")

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of its ranks here."""
        return tuple(seat.rank for seat in self.args.ranks)

    @property
    def suspended_to_image(self) -> bool:
        """Whether full images stand for the ranks: their processes are dead or about to be."""
        return self.record.image is not None and self.record.level == Level.FULL

    @property
    def restored(self) -> bool:
        """Whether all ranks of the present generation have come back from full images; what is left of an interrupted try is
        killed and does not count."""
        return bool(self.record.whole) and self.record.whole == self.record.generation

    @property
    def last_made(self) -> int:
        """The number of the last image that was made here; 0: none."""
        return self.record.last_image.serial if self.record.last_image is not None else 0

    def living(self) -> tuple[int, ...]:
        """Ranks of which something may be left."""
        return tuple(rank for rank in self.numbers if rank not in self.outcomes)

    def may_be_trapped(self, rank: int) -> bool:
        """Whether a CRIU that was killed may have left a trap in its code (docs/why/criu.md)."""
        return self.record.checkpointing or self.record.phase == "suspending" or rank in self.ended_in_dump

    def since(self, began_us: int) -> int:
        """Microseconds since ``began_us`` (``Instant.mono_us``), at least 1."""
        return max(1, self.scripts.now.mono_us - began_us)

    # -- changes ----------------------------------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        self.scripts.emit(self.key, effect)

    def log(self, level: Literal["info", "warning", "error"], text: str) -> None:
        self.emit(Log(level, f"job {self.key[0]} attempt {self.key[1]}: {text}"))

    def queue(self, script: Script) -> None:
        """Run after the scripts that are queued for the attempt."""
        self.scripts.queue(self.script_queue, self.key, script)

    def start(self, script: Script) -> None:
        """Run concurrently with the queued scripts."""
        self.scripts.start(self.key, script)

    def update(self, **changes: Any) -> JobReport:
        """Change the record, save it, publish a report."""
        for name, value in changes.items():
            setattr(self.record, name, value)
        self.emit(SaveRecord())
        report = self.report()
        self.emit(PublishReport(report))
        return report

    def update_unless_over(self, **changes: Any) -> None:
        """At the end of a script; keeps the phase of ranks that ended, or were asked to stop, meanwhile."""
        if not self.over and self.record.ending != "stop":
            self.update(**changes)

    def report_image(self, *, error: str = "", taken: ImageReport | None = None) -> None:
        """Report of an image, whatever the attempt itself is doing."""
        if not self.over:
            report = replace(self.report(), verb="checkpoint", error=error, image=taken or self.record.last_image)
            self.emit(PublishReport(report))

    def seen(self, op_id: str) -> bool:
        """Whether this call was made before; remembers it."""
        if not op_id:
            return False
        if op_id in self.record.ops:
            return True
        self.record.ops = [*self.record.ops[-OPS_KEPT + 1 :], op_id]
        return False

    def forget_unmade(self) -> None:
        """Forget orders of images that were not made: the controller, without a report of them, repeats these orders."""
        made = self.last_made
        self.record.ops = [op for op in self.record.ops if (serial := image_ordered(op)) is None or serial <= made]

    def end_by(self, ending: Literal["stop", "cooperative"]) -> None:
        """The ranks are asked to end: no later end of a rank counts as its own failure."""
        self.record.ending = ending
        self.record.ending_at = self.record.ending_at or self.scripts.now.wall_s

    def decision(self, cut: int) -> Gate:
        """Opens with why there is no cut, or with nothing."""
        while len(self.decided) > CUTS_KEPT:
            del self.decided[next(iter(self.decided))]
        return self.decided.setdefault(cut, Gate())

    def begin_cut(self, cut: int, *, image: bool = False) -> None:
        """From the request on no other cut may touch the ranks, until ``end_cut``. ``image``: the cut has an image's number."""
        self.underway.setdefault(cut, Gate())
        if image:
            self.newest_image = max(self.newest_image, cut)

    def end_cut(self, cut: int) -> None:
        self.ended_cuts.append(cut)
        gate = self.underway.pop(cut, None)
        if gate is not None:
            self.scripts.open(gate)

    def before_cut(self, cut: int) -> Gate | None:
        """What was asked for before a cut, or before it is asked for, and is not done with."""
        first = next(iter(self.underway), cut)
        return None if first == cut else self.underway[first]

    def has_moved_on(self, cut: int) -> bool:
        """Whether a later image was asked for here, and this one was not: images are numbered in the order in which the
        controller asks for them, and it gives up a request that the next one overtakes."""
        return cut not in self.underway and cut < self.newest_image and self.newest_image in self.underway

    def has_made(self, cut: int) -> bool:
        """Whether the image of the cut, or a later one, has been made here, perhaps by an earlier agent. Should the agent that
        leads the cut begin it again, its own part would be of another moment."""
        return 0 < cut <= self.last_made

    def give_up_overtaken(self, cut: int, why: str) -> None:
        """The node that leads a cut decides on no earlier one any more: it was never asked for that, or is done with it. What it
        has decided on and is under way here goes on."""
        for other in [each for each in self.underway if 0 < each < cut]:
            gate = self.decided.get(other)
            if gate is None:
                self.ended_cuts.append(other)
            elif not gate.opened:
                self.scripts.open(gate, why)

    def hold_for(self, cut: int | None) -> None:
        """The ranks are about to be held for a cut: what was decided on another one, and not used yet, is of no use any more."""
        self._void_decisions(cut)
        self.held_for = ANY_CUT if cut is None else cut

    def note_release(self) -> None:
        """The ranks are about to be released: whatever cut they were held for is over."""
        self._void_decisions(None)
        self.held_for = None

    def held_by(self, cut: int) -> bool:
        """Whether nothing has released the ranks since they were held for the cut."""
        return self.held_for in (cut, ANY_CUT)

    def held_for_later(self, cut: int) -> bool:
        """Whether the ranks are held for a later cut than this one, on which the node that leads both decides no more."""
        if self.held_for is None or not 0 < cut < self.held_for:
            return False
        gate = self.decided.get(self.held_for)
        return gate is None or not gate.opened or not gate.value

    @property
    def held_in_vain(self) -> bool:
        """Whether the ranks are held for a cut that this node was never asked for, and a later image was: the controller gives up
        a request that the next one overtakes."""
        return (
            self.held_for is not None and 0 < self.held_for < self.newest_image and self.held_for not in self.underway
        )

    def _void_decisions(self, but: int | None) -> None:
        for other in [each for each, gate in self.decided.items() if each != but and gate.opened and not gate.value]:
            del self.decided[other]
            self.ended_cuts.append(other)

    def give_up_cuts(self) -> None:
        """Wait for no other node's cut any more: the attempt is to end, and the node that leads it may be dead."""
        for gate in list(self.decided.values()):
            self.scripts.open(gate, ENDS)

    # -- the grace --------------------------------------------------------------------------------------------------

    def arm_kill(self, kill: Callable[[], Script]) -> None:
        """SIGKILL after the grace; an earlier date is never put off."""
        at = self.scripts.now.mono_us + self.record.grace_us
        if self.kill_timer and self.kill_at_us <= at:
            return
        self.scripts.cancel(self.kill_timer)
        self.kill_at_us = at

        def over() -> None:
            self.kill_timer = 0
            if not self.over:
                self.record.why += f"; killed after its grace of {format_duration(self.record.grace_us)}"
                self.queue(kill())

        self.kill_timer = self.scripts.after(self.record.grace_us / SECOND, over)

    # -- how it ended -----------------------------------------------------------------------------------------------

    def failed_first(self, outcome: RankOutcome) -> bool:
        """Whether this end of a rank is what the attempt's end is to be put down to, by all that is known so far. Ends are
        not heard of in the order in which they came."""
        record, known = self.record, self.record.first_failure
        if not (outcome.code or outcome.lost):
            return False
        if record.ending and not 0 < outcome.ended < record.ending_at:
            return False
        return known is None or 0 < outcome.ended < known.ended

    def note_failure(self, rank: int, outcome: RankOutcome, lines: tuple[str, ...] = ()) -> None:
        """Remember the first rank that failed of itself."""
        if self.failed_first(outcome):
            lost = outcome.cause or "its shim was killed"
            why = outcome.error or (lost if outcome.lost else describe(outcome.code, outcome.note))
            self.record.first_failure = RankFailure(
                rank, outcome.code, why, ended=outcome.ended, memory_limit=outcome.memory_limit, lines=lines
            )

    def conclude(self) -> None:
        """All ranks are gone: set the last phase."""
        never_ran = [outcome for outcome in self._outcomes() if outcome.error]
        self.record.phase = "failed" if never_ran and not self.record.ending else "exited"
        if never_ran and not self.record.error:
            self.record.error = min(never_ran, key=lambda outcome: outcome.fault != "user").error

    def _outcomes(self) -> list[RankOutcome]:
        return [self.outcomes[rank] for rank in self.numbers if rank in self.outcomes]

    def code(self) -> int:
        """The attempt's exit code from its ranks'; a rank's own failure outranks what a later stop did to others."""
        codes = [outcome.code for outcome in self._outcomes()]
        if self.record.evicted:
            return SIGKILL_CODE
        if self.record.ending and self.record.first_failure:
            return self.record.first_failure.code
        if self.record.ending == "cooperative" and EXIT_REQUEUE in codes:
            others = [code for code in codes if code not in (0, EXIT_REQUEUE, SIGTERM_CODE)]
            return max(others, default=EXIT_REQUEUE)
        return max(codes, default=0)

    def report(self) -> JobReport:
        """How the attempt stands."""
        record, outcomes = self.record, self._outcomes()
        return JobReport(
            job=self.args.job,
            attempt=self.args.attempt,
            state=record.phase,
            verb=record.verb,
            code=self.code() if self.over else 0,
            lost=any(outcome.lost for outcome in outcomes) if self.over else False,
            fault=self._fault([outcome.fault for outcome in outcomes if outcome.fault]),
            error=record.error,
            op_id=record.op_id if record.verb in ("suspend", "resume") else "",
            took_us=record.took_us,
            why=self._why() or record.why,
            first_failure=record.first_failure,
            logs=self.logs,
            image=record.last_image,
            level=record.max_level,
            level_why=record.max_level_why,
            memory_limit=record.memory_limit,
            share_limits=record.share_limits,
            host_limits=record.host_limits,
            notice=record.notice,
            no_room=record.no_room,
        )

    def _fault(self, faults: list[str]) -> Fault:
        if self.record.phase == "failed":
            return "user" if "user" in faults else "world"
        return "user" if self.over and self.record.evicted else ""

    def _why(self) -> str:
        if self.over and self.record.first_failure:
            failure = self.record.first_failure
            return f"rank {failure.rank}: {failure.why}" if self.args.world_size > 1 else failure.why
        return ""
