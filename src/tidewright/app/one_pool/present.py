"""One pool against a split, for people: a table, remarks, and a plot of the day."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ...report.figure import draw
from .run import PoolComparison, SplitDay

_PARTS = 288
"""Of the day, in plots: of five minutes each."""
_BLUE, _ORANGE, _GREEN = "#0072b2", "#e69f00", "#009e73"


def plot(found: PoolComparison) -> bytes:
    """Devices that replicas held and replicas that were wanted over the day, the most within each of its parts, and where the
    splits lie: SVG. Raises UsageError without matplotlib."""
    hours = found.day_s / 3600
    edges = [hours * at / _PARTS for at in range(_PARTS + 1)]

    def paint(axes: Any) -> None:
        axes.stairs(
            _most(found.lines["held"], hours), edges, color=_BLUE, fill=True, alpha=0.45, label="held by replicas"
        )
        axes.stairs(_most(found.lines["wanted"], hours), edges, color=_ORANGE, lw=1.0, label="replicas wanted")
        axes.axhline(found.split.serving_devices, color=_GREEN, lw=1.4, label="static split, same attainment")
        axes.axhline(found.peak_split.serving_devices, color=_GREEN, lw=1.0, ls="--", label="static split for the peak")
        axes.set_xlim(0, hours)
        axes.set_ylim(0, found.devices)
        axes.set_xlabel("hours of the day")
        axes.set_ylabel(f"of {found.devices} devices; the rest train")
        axes.legend(loc="upper right")

    return draw("one-pool", paint, (7.2, 3.6))


def _most(stretches: list[tuple[float, float, int]], hours: float) -> list[int]:
    """The highest value within each part of the day."""
    most = [0] * _PARTS
    for since, to, value in stretches:
        first, last = int(since / hours * _PARTS), min(int(to / hours * _PARTS), _PARTS - 1)
        for part in range(first, last + 1):
            most[part] = max(most[part], value)
    return most


def table(found: PoolComparison) -> Table:
    """One row for the pool and one for each split."""
    shown = Table(title=f"{found.devices} devices, of which the service needs {found.peak_replicas} at its peak")
    for name in ("", "serve", "in time", "bins >= 99 %", "train", "useful device-hours", "pool has more by"):
        shown.add_column(name, justify="left" if not name else "right")
    pool = found.pool
    shown.add_row(
        "one pool", f"{pool.held_devices:.1f} (mean)", f"{pool.attainment.requests:.2%}", f"{pool.attainment.bins:.1%}",
        f"{pool.training.devices:.1f}", f"{pool.training.useful:,.1f}", "",
    )  # fmt: skip
    for name, split, gain in (
        ("split, as many requests in time", found.split, found.gain),
        ("split, as many good bins", found.bins_split, found.gain_over_bins),
        ("split for the peak", found.peak_split, found.gain_over_peak),
    ):
        shown.add_row(*_split_cells(name, split), f"{gain:+.1%}")
    return shown


def _split_cells(name: str, split: SplitDay) -> tuple[str, ...]:
    return (
        name, str(split.serving_devices), f"{split.attainment.requests:.2%}", f"{split.attainment.bins:.1%}",
        f"{split.training.devices:.1f}", f"{split.training.useful:,.1f}",
    )  # fmt: skip


def remarks(found: PoolComparison) -> list[str]:
    """How long replicas waited for devices of training, and what makes the table say less than it seems to."""
    reclaims, pool = found.pool.reclaims, found.pool
    said = [
        f"{reclaims.replicas:,} replicas were wanted: a device after {reclaims.released_p50_s:.1f} s "
        f"(p99 {reclaims.released_p99_s:.1f} s), "
        f"ready after {reclaims.ready_p50_s:.1f} s (p99 {reclaims.ready_p99_s:.1f} s), within --start-time {reclaims.in_time:.1%}"
    ]
    if pool.training.lost:
        said.append(f"{pool.training.lost:,.1f} device-hours of training were done again")
    if not pool.training.waiting:
        said.append("no job waited at the end of the day: with more training, one pool would do more of it")
    return said
