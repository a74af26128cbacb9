"""GPU-seconds by team, user or tier, over jobs in the book and in the archive."""

from __future__ import annotations

from ..engine.book import Book
from ..wire import api
from .archive import Sums
from .say import live_job


def rows(book: Book, archived: list[Sums], by: str, now: int) -> tuple[api.UsageRow, ...]:
    """One row per group, most device-time first."""
    totals: dict[str, list[float]] = {
        one.key: [one.jobs, 0, one.held, one.delivered, one.fraction_sum, one.preemptions] for one in archived
    }
    for job in book.specs:
        view = live_job(book, job, now)
        row = totals.setdefault(str(getattr(view, by)), [0, 0, 0.0, 0.0, 0.0, 0])
        more = (1, 1, view.held_gpu_s, view.delivered_gpu_s, view.fraction, view.preemptions)
        for index, value in enumerate(more):
            row[index] += value
    found = [
        api.UsageRow(
            key=key, jobs=int(row[0]), live=int(row[1]), held_gpu_s=row[2], delivered_gpu_s=row[3],
            fraction=row[4] / max(1, row[0]), preemptions=int(row[5]),
        )
        for key, row in totals.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda row: (-row.held_gpu_s, row.key)))
