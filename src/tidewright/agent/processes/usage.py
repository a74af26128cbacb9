"""What attempts and devices use now: processor time, memory, steps."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from ...base.errors import WorldError
from ...checkpoint.processes import grouped, members
from ...devices.protocol import Backend
from ...wire.agent import DeviceUse, JobUsage, Usage
from ...wire.own_file import open_regular
from .attempt import Attempt
from .rank import Rank
from .rank_spec import step_files

MAX_STEP_FILE = 64
"""Bytes read of a step file: one or two whole numbers in digits."""

_MOST_DIGITS = 18
"""More do not fit 64 bits, and no answer of the agent could hold them."""


class StepCount(NamedTuple):
    """What a program says of its progress: steps, and samples if it counts them, both since its first step."""

    steps: int
    samples: int | None = None


class UsageReading(NamedTuple):
    """What one rank uses: ``percent`` of one core since the last reading, processor seconds so far, bytes."""

    percent: float = 0.0
    seconds: float = 0.0
    rss: int = 0
    processes: int = 0


class UsageMeter:
    """Remembers the last reading of each rank, for percentages since then. Blocks; call it in a thread."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._last: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._one = threading.Lock()

    def read(self, attempts: list[Attempt]) -> Usage:
        """Usage of every attempt that is not over, and of every device that can be asked."""
        with self._one:  # two that ask at once would halve each other's periods
            jobs: list[JobUsage] = []
            on: dict[int, float] = defaultdict(float)
            for attempt in attempts:
                if not attempt.over:
                    readings = {rank.number: self._rank(attempt, rank) for rank in attempt.living()}
                    jobs.append(self._job(attempt, list(readings.values())))
                    for device, percent in shares(attempt, readings).items():
                        on[device] += percent
            seen = {attempt.key for attempt in attempts}
            self._last = {key: reading for key, reading in self._last.items() if key[:2] in seen}
            return Usage(jobs=tuple(jobs), devices=self._devices(on))

    def _devices(self, on: Mapping[int, float]) -> tuple[DeviceUse, ...]:
        """Each device; what its jobs use of it (``on``) stands in for a utilisation that the device cannot tell."""
        try:
            loads = self._backend.usage()
        except WorldError:
            return ()
        return tuple(
            DeviceUse(
                index=load.index,
                percent=load.percent if load.percent >= 0 else min(100.0, round(on.get(load.index, 0.0), 1)),
                memory_used=load.memory_used,
                processes=load.processes,
            )
            for load in loads
        )

    def _rank(self, attempt: Attempt, rank: Rank) -> UsageReading:
        handle = rank.handle
        pids = grouped(handle.cgroups) or members(handle)
        seconds, rss = 0.0, 0
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                with process.oneshot():
                    seconds += sum(process.cpu_times()[:4])
                    rss += process.memory_info().rss
        key, now = (*attempt.key, rank.number), time.monotonic()
        then, before = self._last.get(key, (now, seconds))
        self._last[key] = (now, seconds)
        percent = max(0.0, 100 * (seconds - before) / (now - then)) if now > then else 0.0
        return UsageReading(percent, seconds, rss, len(pids))

    def _job(self, attempt: Attempt, readings: list[UsageReading]) -> JobUsage:
        count = steps_of(attempt)
        return JobUsage(
            job=attempt.args.job,
            attempt=attempt.args.attempt,
            cpu_percent=round(sum(reading.percent for reading in readings), 1),
            cpu_seconds=round(sum(reading.seconds for reading in readings), 2),
            rss_bytes=sum(reading.rss for reading in readings),
            processes=sum(reading.processes for reading in readings),
            steps=count.steps if count else None,
            samples=count.samples if count else None,
        )


def shares(attempt: Attempt, readings: Mapping[int, UsageReading]) -> dict[int, float]:
    """Percent of each device's cores that the ranks on it use."""
    found: dict[int, float] = defaultdict(float)
    for number, reading in readings.items():
        cores = len(attempt.record.cpus.get(number, ())) or 1
        for device in attempt.record.devices.get(number, ()):
            found[device] += reading.percent / cores
    return found


def steps_of(attempt: Attempt) -> StepCount | None:
    """How far the first rank here has come, by the first step file that says so."""
    first = attempt.ranks[0]
    found = (read_steps(path, first.owner) for path in step_files(attempt.args, first.directory))
    return next((count for count in found if count is not None), None)


def read_steps(path: Path, owner: int | None = None) -> StepCount | None:
    """The number or numbers in a step file, which users may make a link; None when there is none, or it is not ``owner``'s."""
    try:
        with os.fdopen(open_regular(path, owner), "rb") as file:
            words = file.read(MAX_STEP_FILE).split()
    except OSError:
        return None
    if not 1 <= len(words) <= 2 or not all(word.isdigit() and len(word) <= _MOST_DIGITS for word in words):
        return None
    return StepCount(*map(int, words))
