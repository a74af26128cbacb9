"""Run times foretold from those of similar jobs that have ended, as quantiles, with the error that this has had so far.

Similar are, in this order, jobs of the same user, name and size, of the same user and name, of the same user and size, of the
same team and size, of the same size, and all. The first group with enough jobs counts: users repeat themselves (Helios, SC'21,
section 4.2; Weng et al., NSDI'22: 65 % of tasks recur).
"""

from __future__ import annotations

import math
import re

from msgspec import Struct

from ..model.job import JobSpec

KEPT = 32
"""Run times kept of each group, the latest."""
ENOUGH = 4
"""Ended jobs of a group from which quantiles are read."""
GROUPS = 8192
"""Groups kept, those that ended jobs last."""
_REFRESHED = 16
"""Jobs that end between two looks at the errors of estimates."""
RECENT = 512
"""Ended jobs that are kept to tell what will be submitted."""
ERRORS = 512
"""Predictions whose error is kept, the latest."""
_MIDDLE_OF_NORMAL = 0.6745
"""Half of a standard normal lies nearer to 0 than this."""
_VARIABLE = re.compile(r"[\d]+|[0-9a-f]{8,}")
"""What tells one run of a job from the next: counters, dates, hashes."""


class RunTimePrediction(Struct, frozen=True):
    """Run time on the full allotment, microseconds: median, tenth and ninth decile of ``jobs`` similar ones."""

    median_us: int
    low_us: int
    high_us: int
    jobs: int
    group: str
    """What they have in common: ``user name devices``, ``user name``, ``user devices``, ``team devices``, ``devices`` or nothing
    (``all``)."""


class PastJob(Struct, frozen=True, array_like=True):
    """A job that has ended, as far as it says what kinds of jobs come, and when. Times in microseconds."""

    submit: int
    ran_us: int
    """Run time on its full allotment."""
    devices: int
    tier: str
    expected_us: int
    user: str
    team: str
    name: str


class RunTimeHistory(Struct):
    """Run times by group, oldest first, and how wrong predictions and users' estimates were. Part of the book."""

    groups: dict[str, list[int]] = {}
    errors: list[float] = []
    """Of predictions: logarithms of the factors, without their sign."""
    given_errors: list[float] = []
    """Of users' estimates, likewise."""
    sigma: float = 0.0
    """Standard deviation of the logarithm of users' estimates over what they were for."""
    ended: int = 0
    """Jobs with an estimate that have ended."""
    recent: list[PastJob] = []
    """Jobs that ended last, in the order of their ends."""
    recent_since: int = 0
    """Every job submitted since then that has ended is in ``recent``."""

    def note(self, spec: JobSpec, submit: int, ran_us: int, now: int) -> None:
        """A job submitted at ``submit`` has ended now."""
        if not self.recent:
            self.recent_since = submit
        self.recent.append(
            PastJob(submit, ran_us, spec.devices, spec.tier, spec.expected_us, spec.user, spec.team, spec.name)
        )
        if len(self.recent) > RECENT:
            del self.recent[: RECENT // 8]
            self.recent_since = now

    def similar(self, spec: JobSpec) -> tuple[int, ...]:
        """Run times of the jobs most like it, oldest first; empty before enough have ended."""
        return tuple(self._closest(spec)[1])

    def _closest(self, spec: JobSpec) -> tuple[str, list[int]]:
        """What the jobs most like it have in common, and their run times."""
        for group, key in _keys(spec):
            times = self.groups.get(key)
            if times is not None and len(times) >= ENOUGH:
                return group, times
        return "", []

    def predict(self, spec: JobSpec) -> RunTimePrediction | None:
        """What similar jobs took; None before enough have ended."""
        group, times = self._closest(spec)
        return RunTimePrediction(*_quantiles(times), len(times), group) if times else None

    def add(self, spec: JobSpec, ran_us: int, predicted_us: int = 0) -> None:
        """A job has ended after ``ran_us`` full-speed microseconds; ``predicted_us``: what had been foretold (0: nothing)."""
        for _, key in _keys(spec):
            times = self.groups.pop(key, None)
            if times is None:
                times = []
                if len(self.groups) >= GROUPS:
                    del self.groups[next(iter(self.groups))]
            times.append(ran_us)
            if len(times) > KEPT:
                del times[0]
            self.groups[key] = times  # last again: the group that ended a job longest ago goes first
        if predicted_us:
            _note(self.errors, ran_us, predicted_us)

    def add_estimate(self, ran_us: int, expected_us: int) -> None:
        """A job whose user had said ``expected_us`` has ended after ``ran_us``."""
        _note(self.given_errors, ran_us, expected_us)
        self.ended += 1
        if self.ended % _REFRESHED == 0 or self.ended < _REFRESHED:
            self.sigma = _middle(self.given_errors) / _MIDDLE_OF_NORMAL

    def error_factor(self) -> float:
        """By which factor the middle one of the last predictions was wrong, up or down; 0 before the first. 2: half or twice."""
        return math.exp(_middle(self.errors)) if self.errors else 0.0


def _note(errors: list[float], ran_us: int, said_us: int) -> None:
    errors.append(round(abs(math.log(max(ran_us, 1) / said_us)), 3))  # a thousandth off is as good as exact
    if len(errors) > ERRORS:
        del errors[: ERRORS // 8]


def _middle(errors: list[float]) -> float:
    return sorted(errors)[len(errors) // 2] if errors else 0.0


def _keys(spec: JobSpec) -> tuple[tuple[str, str], ...]:
    """(what is in common, key) of the groups of a job, the most alike first."""
    name = _VARIABLE.sub("#", spec.name or spec.command[0])
    size, user, team = spec.devices, spec.user, spec.team
    mine = (
        ("user name devices", f"u {user} n {name} d {size}"),
        ("user name", f"u {user} n {name}"),
        ("user devices", f"u {user} d {size}"),
    )
    return (
        *(mine if user or spec.name else ()),
        ("team devices", f"t {team} d {size}"),
        ("devices", f"d {size}"),
        ("all", ""),
    )


def _quantiles(times: list[int]) -> tuple[int, int, int]:
    ordered = sorted(times)
    last = len(ordered) - 1
    return ordered[last // 2], ordered[last // 10], ordered[-1 - last // 10]
