"""Isolation where nothing stronger is at hand (L0): memory in use, by process, against what each pod was given. Pure.

It holds nobody back. It says who takes more than was asked for, warns him, and in the end has him evicted; pods that keep
to what they asked for are left alone, whoever shares their GPU. A process belongs to the pod whose cgroup it is in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..base.errors import UsageError
from .gpus import Gpu, Use
from .units import Split

ACTIONS = ("off", "warn", "evict")
_POD = re.compile(
    r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:/|$)", re.MULTILINE
)
"""In a line of /proc/PID/cgroup, written by the kubelet's cgroupfs driver (dashes) or its systemd driver (underscores);
static pods have 32 digits."""
Place = tuple[str, int]
"""A pod's uid and a GPU's index."""


@dataclass(frozen=True, slots=True)
class Rules:
    """``slack_mib``: what a pod may use beyond its units on each GPU, for what CUDA itself takes (300 to 500 MiB for each
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
class Sight:
    """Who uses how many MiB: pods, and on each GPU processes of no pod. ``blind``: processes are there but not seen."""

    pods: Mapping[Place, int]
    outside: Mapping[int, int]
    blind: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done about a pod: ``warn``, ``evict``, or nothing any more (``calm``)."""

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
    """What pods have done until now. ``look`` at them every few seconds."""

    rules: Rules
    _cases: dict[Place, _Case] = field(default_factory=dict)

    def look(self, now_s: float, used: Mapping[Place, int], allowed: Mapping[Place, int]) -> list[Step]:
        """``used`` and ``allowed`` in MiB. Pods that are not in ``allowed`` on any GPU are not looked at."""
        ours = {uid for uid, _ in allowed}
        over = {
            place: mib
            for place, mib in used.items()
            if place[0] in ours and mib > allowed.get(place, 0) + self.rules.slack_mib
        }
        ended = [place for place in self._cases if place not in over]
        steps = [
            Step("calm", *place, used.get(place, 0), allowed.get(place, 0))
            for place in ended
            if self._cases.pop(place).warned_s <= now_s and place[0] in ours
        ]
        for place, mib in sorted(over.items()):
            kind = self._due(self._cases.setdefault(place, _Case(now_s)), now_s)
            if kind:
                steps.append(Step(kind, *place, mib, allowed.get(place, 0)))
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


def pod_in(cgroup: str) -> str:
    """The uid of the pod that a process is in, by its /proc/PID/cgroup; empty when it is in none."""
    found = _POD.findall(cgroup)
    return found[-1].replace("_", "-") if found else ""


def sees_node(proc: Path) -> bool:
    """Whether the first process is not one of our own container's: without the node's pid namespace a driver names processes
    that cannot be looked up, or none at all."""
    try:
        return (proc / "1" / "cgroup").read_text() != (proc / "self" / "cgroup").read_text()
    except OSError:
        return False


def sight(uses: Iterable[Use], pod_of: Callable[[int], str | None]) -> Sight:
    """``pod_of``: the pod's uid, empty for a process of no pod, None for one that cannot be seen."""
    pods: Counter[Place] = Counter()
    outside: Counter[int] = Counter()
    seen = unseen = 0
    for use in uses:
        uid = pod_of(use.pid)
        seen, unseen = seen + (uid is not None), unseen + (uid is None)
        if uid:
            pods[uid, use.gpu] += use.mib
        else:
            outside[use.gpu] += use.mib
    return Sight(pods, outside, blind=bool(unseen and not seen))


def foreign_units(gpu: Gpu, units: int, mib: int, split: Split) -> int:
    """Whole units of a GPU that ``mib`` of others leave nothing of. What is too little for a unit is theirs first."""
    beyond = mib - (gpu.memory_mib - units * split.unit_mib)
    return min(units, max(0, -(-beyond // split.unit_mib)))


def by_pod(held: Mapping[Place, int]) -> dict[str, dict[int, int]]:
    """MiB by uid and GPU."""
    found: dict[str, dict[int, int]] = {}
    for (uid, gpu), mib in held.items():
        found.setdefault(uid, {})[gpu] = mib
    return found
