"""The run time that the hostile world's jobs truly have behind them, as a check on what their limits are charged."""

from __future__ import annotations

from collections.abc import Iterable

from ..engine import commands as co
from ..engine import events as ev
from ..engine.book import Book


class RunTimes:
    """Counts by itself, from the engine's events and commands; microseconds."""

    def __init__(self) -> None:
        self.used: dict[int, int] = {}
        self._now = 0
        self._running: dict[int, bool] = {}
        self._imaged: dict[tuple[int, int], int] = {}
        """Run time that is in each image, by (job, serial)."""
        self._saved: dict[int, bool] = {}
        """Jobs whose program may have saved its own work and has not run since."""

    def before(self, now: int, events: Iterable[ev.Event]) -> None:
        """Time passes, and then these events reach the engine."""
        for job in self._running:
            self.used[job] = self.used.get(job, 0) + now - self._now
        self._now = now
        for event in events:
            if isinstance(event, ev.Exited) and event.code == 75:
                self._saved[event.job] = True

    def after(self, book: Book, commands: Iterable[co.Command]) -> None:
        """A launch brings back the work of its image, or none. Raises AssertionError for a job charged beyond that."""
        for command in commands:
            if isinstance(command, co.CheckpointRanks | co.SuspendRanks) and command.serial:
                self._imaged[command.job, command.serial] = self.used.get(command.job, 0)
            elif isinstance(command, co.Launch) and command.job in book.specs:
                self._launched(book, command)
        table = book.table
        self._running = {job: True for job, row in table.row.items() if table.run_since.item(row) >= 0}
        for job in self._running:
            self._saved.pop(job, None)

    def _launched(self, book: Book, command: co.Launch) -> None:
        job = command.job
        if command.image:
            self.used[job] = 0 if command.image_job else self._imaged[job, command.image]
        elif job not in self._saved:
            self.used[job] = 0
        used, charged = self.used.get(job, 0), book.jobs[job].run_time_used_us
        assert charged <= used, f"job {job} starts with {used} us of work and is charged {charged} us of run time"
