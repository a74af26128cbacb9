"""What must hold of answers, besides what must hold of training: none is late, made up, or costs ranks when little was broken."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tidewright.engine import commands as cmd
from tidewright.engine import events as ev
from tidewright.engine.book import Book
from tidewright.model.cause import Cause, Code
from tidewright.model.job import State

LATE_S = 12.0
"""Every request on a simulated node is a dozen steps of at most 0.2 s, behind a few others; what waits for a decision that never
comes waits 75 s."""
LATE_IN_PEACE_S = 100.0
"""What came before may still be waited for."""
ASKED = {cmd.SuspendRanks: "suspend", cmd.ResumeRanks: "resume", cmd.CheckpointRanks: "checkpoint"}
WAITING = {"suspend": (State.SUSPENDING,), "resume": (State.RESUMING,), "checkpoint": (State.RUNNING,)}
"""States in which an answer is waited for."""
ANSWERED: dict[type, tuple[str, ...]] = {
    ev.Suspended: ("suspend", "checkpoint"),
    ev.SuspendFailed: ("suspend",),
    ev.Resumed: ("resume",),
    ev.ResumeFailed: ("resume",),
    ev.Checkpointed: ("checkpoint",),
    ev.CheckpointFailed: ("checkpoint",),
    ev.Exited: ("suspend", "resume", "checkpoint"),
    ev.StartFailed: ("suspend", "resume", "checkpoint"),
}


@dataclass
class Answers:
    """``wrong`` says what did not hold. ``calm``: nothing is broken, and every request is answered in time; ``faithful``: agents
    and controllers die, and nothing else: no ranks are lost over it."""

    wrong: list[str]
    calm: bool = False
    faithful: bool = False
    steady: bool = False
    """Nothing fails: what is suspended comes back at the first try."""
    peace: float = math.inf
    """When everything was up and nothing failed any more."""
    asked: dict[tuple[int, str], float] = field(default_factory=dict)
    refused: dict[tuple[int, str], float] = field(default_factory=dict)
    """When a node last said anew that it could not: (job, verb)."""

    def refuses(self, job: int, verb: str, now: float) -> None:
        """Some node could not do what was asked of it."""
        self.refused[job, verb] = now

    def note(self, events: list[Any], commands: list[Any], now: float) -> None:
        """A step of the controller."""
        for event in events:
            self._answered(event, now)
        for command in commands:
            if type(command) in ASKED:
                self.asked[command.job, ASKED[type(command)]] = now

    def left(self, book: Book) -> None:
        """What was asked of a job that is past it needs no answer: it is stopped or has ended, an image was given up for a
        suspension, or its ranks went with a node, which the book knew by itself."""
        for job, verb in list(self.asked):
            record = book.jobs.get(job)
            if record is None or record.state not in WAITING[verb]:
                del self.asked[job, verb]

    def _answered(self, event: Any, now: float) -> None:
        if isinstance(event, ev.SuspendFailed | ev.ResumeFailed):
            (verb,) = ANSWERED[type(event)]
            asked, refused = self.asked.get((event.job, verb)), self.refused.get((event.job, verb), 0.0)
            if asked is not None and refused < asked:
                self.wrong.append(f"job {event.job}: {verb} is said to have failed on no node: {event.error}")
        if self.steady and isinstance(event, ev.ResumeFailed):
            self.wrong.append(f"job {event.job} does not come back: {event.error}")
        if self.faithful and isinstance(event, ev.Exited) and event.lost and not self._cannot_go_back(event):
            self.wrong.append(f"job {event.job} has lost its ranks, though no node did: {event.why}")
        for verb in ANSWERED.get(type(event), ()):
            self.asked.pop((event.job, verb), None)

    def _cannot_go_back(self, event: ev.Exited) -> bool:
        """Half of a suspension was to be undone, and could not be."""
        in_part = isinstance(event.why, Cause) and event.why.code is Code.SUSPENDED_IN_PART
        return in_part and (event.job, "resume") in self.refused

    def check(self, now: float) -> None:
        """No request waits for what will not come."""
        if self.calm or now > self.peace + LATE_IN_PEACE_S:
            for (job, verb), asked in self.asked.items():
                if now > (asked + LATE_S if self.calm else max(asked, self.peace) + LATE_IN_PEACE_S):
                    self.wrong.append(f"job {job}: {verb} has not been answered in {now - asked:.0f} s")
