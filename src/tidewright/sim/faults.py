"""What goes wrong, and when: nodes, ranks, saves, restores, launches, slow answers. Each from its own seeded stream. And whether
it leaves jobs time to get on.

It refuses to know what the engine does about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct, structs

from ..base.errors import UsageError
from ..base.key_values import key_values
from ..base.rng import stream
from ..base.units import HOUR, counted, parse_duration
from ..engine.events import Event, NodeDown, NodeHealth, ResumeFailed, StartFailed, SuspendFailed

FAULTS = 2_000
"""Faults of jobs in a row between two looks at the work that jobs have done. One that hits no job counts 1/nodes."""
_OF_NODES = (NodeDown, NodeHealth)
_OF_JOBS = (StartFailed, SuspendFailed, ResumeFailed)
NEVER = 2**62
_CHANCES = ("suspend_failure", "resume_failure", "launch_failure", "checkpoint_failure", "slow_answer")


class FaultSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Means of exponential times in microseconds (0: never) and probabilities (0 to 1; of ``suspend_failure`` and
    ``launch_failure``, which are tried again, below 1)."""

    seed: int = 1
    node_mtbf_us: int = 0
    """Mean time between crashes of one node."""
    node_mttr_us: int = 1 * HOUR
    """Mean time until a crashed node is back."""
    device_mtbf_us: int = 0
    """Mean time between faults of one device; nothing on it can go on until it is repaired."""
    device_mttr_us: int = 1 * HOUR
    """Mean time until a faulty device is back in service."""
    rank_mtbf_us: int = 0
    """Mean run time between failures of one job, whatever its size."""
    suspend_failure: float = 0.0
    resume_failure: float = 0.0
    launch_failure: float = 0.0
    checkpoint_failure: float = 0.0
    slow_answer: float = 0.0
    """Share of answers that take ``slow_factor`` times as long."""
    slow_factor: int = 20

    def __post_init__(self) -> None:
        for name in _CHANCES:
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name}: {getattr(self, name)} is not a probability", "give a number between 0 and 1")
        for name in ("suspend_failure", "launch_failure"):
            if getattr(self, name) == 1:
                raise UsageError(
                    f"{name}: with 1 none ever succeeds, it is tried again and again, and a simulation would not end",
                    "give a number from 0 to below 1, e.g. 0.9",
                )
        for name in ("node_mtbf_us", "node_mttr_us", "device_mtbf_us", "device_mttr_us", "rank_mtbf_us", "slow_factor"):
            if not 0 <= getattr(self, name) <= NEVER:
                raise UsageError(f"{name}: negative, or too large", "give 0 for never")

    @property
    def any(self) -> bool:
        """Whether anything can go wrong at all."""
        times = self.node_mtbf_us or self.device_mtbf_us or self.rank_mtbf_us
        return bool(times or any(getattr(self, name) > 0 for name in _CHANCES))


def parse_faults(text: str, seed: int = 1) -> FaultSettings:
    """Settings from ``node_mtbf=30d,rank_mtbf=10d,suspend_failure=0.01``; an empty text is no faults. Raises UsageError."""
    fields = {one.name.removesuffix("_us"): one for one in structs.fields(FaultSettings)}
    values: dict[str, Any] = {"seed": seed}
    remedy = f"write NAME=VALUE with one of: {', '.join(fields)}"
    for name, value in key_values(text, "faults", remedy).items():
        one = fields.get(name)
        if one is None:
            raise UsageError(f"faults: {name!r} is not a setting", remedy)
        values[one.name] = parse_duration(value) if one.name.endswith("_us") else _number(name, value)
    return FaultSettings(**values)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a number", "write it like 0.01") from None
    return int(value) if value.is_integer() and name in ("seed", "slow_factor") else value


class Faults:
    """Draws from the streams. A draw for one job or node never shifts another's."""

    def __init__(self, settings: FaultSettings) -> None:
        self.settings = settings
        self.active = settings.any
        self._crashes: dict[int, int] = {}
        self._device_faults: dict[int, int] = {}

    def node_uptime(self, node: int) -> int:
        """Microseconds that node lasts from now until it crashes; NEVER when nodes do not."""
        self._crashes[node] = self._crashes.get(node, 0) + 1
        return self._exponential(self.settings.node_mtbf_us, "crash", node, self._crashes[node])

    def node_downtime(self, node: int) -> int:
        """Microseconds until a crashed node is back."""
        return self._exponential(max(1, self.settings.node_mttr_us), "repair", node, self._crashes[node])

    def device_fault(self, node: int, size: int) -> tuple[int, int, int]:
        """(microseconds until a device of the node fails, which one, microseconds until it is repaired); NEVER when none does."""
        seen = self._device_faults[node] = self._device_faults.get(node, 0) + 1
        mean, seed = self.settings.device_mtbf_us // max(1, size), self.settings.seed
        uptime = self._exponential(mean, "device", node, seen)
        repair = self._exponential(max(1, self.settings.device_mttr_us), "device repair", node, seen)
        return uptime, stream(seed, "which device", node, seen).randrange(max(1, size)), repair

    def rank_lasts(self, row: int, epoch: int) -> int:
        """Run time of a job until one of its ranks fails; NEVER when they do not."""
        return self._exponential(self.settings.rank_mtbf_us, "rank", row, epoch)

    def fails(self, kind: str, row: int, epoch: int) -> bool:
        """Whether this ``suspend``, ``resume``, ``launch`` or ``checkpoint`` of a job fails."""
        return self._happens(getattr(self.settings, f"{kind}_failure"), kind, row, epoch)

    def stretched(self, delay_us: int, row: int, epoch: int) -> int:
        """The delay of an answer, sometimes made slow."""
        return (
            delay_us * self.settings.slow_factor
            if self._happens(self.settings.slow_answer, "slow", row, epoch)
            else delay_us
        )

    def _happens(self, chance: float, *names: str | int) -> bool:
        return chance > 0 and stream(self.settings.seed, *names).random() < chance

    def _exponential(self, mean_us: int, *names: str | int) -> int:
        if not mean_us:
            return NEVER
        return max(1, round(-mean_us * math.log(1.0 - stream(self.settings.seed, *names).random())))


class JobsAtWork(Protocol):
    """What a ``SimulatedWorld`` has of jobs: each with ``done``, counted by ``count_progress``."""

    nodes: Sequence[Any]
    jobs: dict[int, Any]

    def count_progress(self, truth: Any, now: int) -> None:
        """Bring ``done`` of a job up to date."""


class FaultWatch:
    """Counts faults while jobs are in the cluster, and compares the work done by then with what it was ``FAULTS`` ago.

    ``stopped``: why the simulation is over, empty while it goes on: in so many faults no job has come or ended, and the jobs
    that are there have, all together, done no more work than at some time before.
    """

    __slots__ = ("_best_us", "_faults", "_known", "_world", "stopped")

    def __init__(self, world: JobsAtWork) -> None:
        self._world = world
        self._faults = 0
        """In parts of 1/nodes."""
        self._best_us = -1
        """Most work, full-speed microseconds, that the present jobs had done at a look."""
        self._known = (0, 0)
        self.stopped = ""

    def count(self, now: int, events: Iterable[Event], lost_milli: int, settled: int, submitted: int) -> None:
        """What happens at ``now``, and the milli-devices that jobs lost by it; ``settled`` and ``submitted``: jobs so far."""
        if not self._world.jobs:
            return
        nodes = len(self._world.nodes)
        for event in events:
            if isinstance(event, _OF_JOBS) or (isinstance(event, NodeDown) and lost_milli > 0):
                self._faults += nodes
            elif isinstance(event, _OF_NODES):
                self._faults += 1
        if self._faults < FAULTS * nodes:
            return
        self._faults, known = 0, (settled, submitted)
        done = sum(self._done(job, now) for job in self._world.jobs)
        if known == self._known and done <= self._best_us:
            waiting = counted(len(self._world.jobs), "job")
            self.stopped = f"{FAULTS:,} faults in a row left {waiting} in the cluster no time to do more work"
        self._best_us = max(done, self._best_us) if known == self._known else done
        self._known = known

    def _done(self, job: int, now: int) -> int:
        truth = self._world.jobs[job]
        self._world.count_progress(truth, now)
        return int(truth.done)
