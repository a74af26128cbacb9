"""What attempts and devices use now: processor time, memory, steps."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from ..base.errors import WorldError
from ..checkpoint.processes import grouped, members
from ..devices.protocol import Backend
from ..wire.agent import DeviceUse, JobUsage, Usage
from .attempt import Attempt
from .layout import Layout
from .prepare import step_file

MAX_STEP_FILE = 64
"""Bytes read of a step file: one whole number in digits."""


class Meter:
    """Remembers the last reading of each attempt, for percentages since then. Blocks; call it in a thread."""

    def __init__(self, layout: Layout, backend: Backend) -> None:
        self._layout, self._backend = layout, backend
        self._last: dict[tuple[int, int], tuple[float, float]] = {}

    def read(self, attempts: list[Attempt]) -> Usage:
        """Usage of every attempt that is not over, and of every device that can be asked."""
        jobs = tuple(self._job(attempt) for attempt in attempts if not attempt.over)
        seen = {attempt.key for attempt in attempts}
        self._last = {key: reading for key, reading in self._last.items() if key in seen}
        return Usage(jobs=jobs, devices=self._devices())

    def _devices(self) -> tuple[DeviceUse, ...]:
        try:
            loads = self._backend.usage()
        except WorldError:
            return ()
        return tuple(
            DeviceUse(index=load.index, percent=load.percent, memory_used=load.memory_used, processes=load.processes)
            for load in loads
        )

    def _job(self, attempt: Attempt) -> JobUsage:
        handles = [rank.handle for rank in attempt.living()]
        pids = [pid for handle in handles for pid in (grouped(handle.cgroups) or members(handle))]
        seconds, rss = 0.0, 0
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                with process.oneshot():
                    seconds += sum(process.cpu_times()[:4])
                    rss += process.memory_info().rss
        now = time.monotonic()
        then, before = self._last.get(attempt.key, (now, seconds))
        self._last[attempt.key] = (now, seconds)
        percent = max(0.0, 100 * (seconds - before) / (now - then)) if now > then else 0.0
        return JobUsage(
            job=attempt.args.job,
            attempt=attempt.args.attempt,
            cpu_percent=round(percent, 1),
            cpu_seconds=round(seconds, 2),
            rss_bytes=rss,
            processes=len(pids),
            steps=read_steps(Path(step_file(attempt.args, self._layout))),
        )


def read_steps(path: Path) -> int | None:
    """The number in a step file; None when there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_STEP_FILE).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
