"""Progress on stderr: bars for people, and lines where there is no terminal for what may take hours."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SHOWN_AFTER_S = 2.0
"""Anything that takes longer than this shows that it goes on."""
LINES_EVERY_S = 5.0
"""Least time between two lines of progress."""
TICK_S = 0.25


class Bar:
    """A bar that appears when the work turns out to take longer than SHOWN_AFTER_S."""

    def __init__(self, text: str, total: float | None) -> None:
        self._text, self._total = text, total
        self._since = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def update(self, done: float | None = None, text: str | None = None) -> None:
        """Say how far it is; with ``done`` None only that it goes on."""
        self._text = text or self._text
        if self._bar is None:
            if not sys.stderr.isatty() or time.monotonic() - self._since < SHOWN_AFTER_S:
                return
            self._open()
        self._bar.update(self._task, completed=done, description=self._text)

    def _open(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

        from .output import rich_console

        middle = [BarColumn(), TaskProgressColumn()] if self._total else [SpinnerColumn()]
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            *middle,
            TimeElapsedColumn(),
            console=rich_console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._text, total=self._total)
        self._bar.start()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


class Lines(Bar):
    """The same as plain lines."""

    def __init__(self, text: str) -> None:
        super().__init__(text, None)
        self._due = self._since + SHOWN_AFTER_S
        self._shown = ""

    def update(self, done: float | None = None, text: str | None = None) -> None:
        self._text = text or self._text
        if time.monotonic() >= self._due:
            self._show()

    def _show(self) -> None:
        self._due = time.monotonic() + LINES_EVERY_S
        self._shown = self._text
        print(self._text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._shown not in ("", self._text):
            self._show()


@contextmanager
def progress(text: str, total: float | None = None, lines: bool = False) -> Iterator[Bar]:
    """A bar around some work; without ``total`` a spinner. ``lines``: plain lines where stderr is no terminal."""
    bar = Lines(text) if lines and not sys.stderr.isatty() else Bar(text, total)
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def ticking(bar: Bar) -> Iterator[None]:
    """Keep a bar up to date around work that does not report by itself, for as long as it takes."""
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(TICK_S):
            bar.update()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
