"""Memory in use on devices against what each of several users of them was given: who takes more, and what is done. Pure.

It limits no process. A holder that takes more than its share is warned after a while, and evicted if it goes on; one within its
share is left alone, whatever others on the device do. A *holder* is a pod's uid, or an attempt of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..base.errors import UsageError

ACTIONS = ("off", "warn", "evict")
Place = tuple[str, int]
"""A holder and a device's index."""


@dataclass(frozen=True, slots=True)
class Rules:
    """``slack_mib``: what a holder may use beyond its share of each device, for what CUDA itself takes (300 to 500 MiB for each
    process). ``patience_s``: so long over before a warning; ``grace_s``: from there to the eviction."""

    action: str = "warn"
    slack_mib: int = 512
    patience_s: float = 30.0
    grace_s: float = 60.0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise UsageError(f"excess {self.action!r} does not exist", f"choose one of {', '.join(ACTIONS)}")
        if min(self.slack_mib, self.patience_s, self.grace_s) < 0:
            raise UsageError("a slack, patience or grace below 0", "give 0 or more")


@dataclass(frozen=True, slots=True)
class ExcessStep:
    """What is to be done about a holder: ``warn``, ``evict``, or nothing any more (``calm``)."""

    kind: str
    uid: str
    gpu: int
    used_mib: int
    allowed_mib: int


@dataclass(slots=True)
class _Case:
    since_s: float
    warned_s: float = float("inf")
    evicted_s: float = float("-inf")


@dataclass(slots=True)
class Watchdog:
    """What holders have done until now. ``look`` at them every few seconds."""

    rules: Rules
    _cases: dict[Place, _Case] = field(default_factory=dict)

    def look(self, now_s: float, used: Mapping[Place, int], allowed: Mapping[Place, int]) -> list[ExcessStep]:
        """``used`` and ``allowed`` in MiB. Holders that are not in ``allowed`` on any device are not looked at."""
        ours = {uid for uid, _ in allowed}
        over = {
            place: mib
            for place, mib in used.items()
            if place[0] in ours and mib > allowed.get(place, 0) + self.rules.slack_mib
        }
        ended = [place for place in self._cases if place not in over]
        steps = [
            ExcessStep("calm", *place, used.get(place, 0), allowed.get(place, 0))
            for place in ended
            if self._cases.pop(place).warned_s <= now_s and place[0] in ours
        ]
        for place, mib in sorted(over.items()):
            kind = self._due(self._cases.setdefault(place, _Case(now_s)), now_s)
            if kind:
                steps.append(ExcessStep(kind, *place, mib, allowed.get(place, 0)))
        return steps

    def _due(self, case: _Case, now_s: float) -> str:
        """The next thing to do in a case. An eviction that was refused is asked for again after another grace."""
        if now_s - case.since_s < self.rules.patience_s:
            return ""
        if case.warned_s > now_s:
            case.warned_s = now_s
            return "warn"
        last = max(case.warned_s, case.evicted_s)
        if self.rules.action != "evict" or now_s - last < self.rules.grace_s:
            return ""
        case.evicted_s = now_s
        return "evict"
