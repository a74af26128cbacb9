"""Progress bars, on stderr and only for people: a pipe or a dumb terminal gets nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SHOWN_AFTER_S = 2.0
"""Anything that takes longer than this shows that it goes on."""


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
            TextColumn("{task.description}"),
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


@contextmanager
def progress(text: str, total: float | None = None) -> Iterator[Bar]:
    """A bar around some work; without ``total`` a spinner."""
    bar = Bar(text, total)
    try:
        yield bar
    finally:
        bar.close()
