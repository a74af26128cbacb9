"""One pool against a split, for people: a table, remarks, and a plot of the day."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ...report.figure import draw
from .run import PoolComparison, SplitDay

_BLUE, _ORANGE, _GREEN = "#0072b2", "#e69f00", "#009e73"


def plot(found: PoolComparison) -> bytes:
    """Devices over the day: those of replicas, those that are wanted, and where the splits lie. Raises UsageError without
    matplotlib."""

    def paint(axes: Any) -> None:
        for name, colour, label, width in (
            ("held", _BLUE, "held by replicas", 0.9),
            ("wanted", _ORANGE, "replicas wanted", 0.6),
        ):
            stretches = found.lines[name]
            edges = [since for since, _, _ in stretches] + [stretches[-1][1]]
            values = [value for _, _, value in stretches]
            axes.stairs(values, edges, color=colour, label=label, lw=width, fill=name == "held", alpha=0.8)
        axes.axhline(found.split.serving_devices, color=_GREEN, lw=1.4, label="static split, same attainment")
        axes.axhline(found.peak_split.serving_devices, color=_GREEN, lw=1.0, ls="--", label="static split for the peak")
        axes.set_xlim(0, found.day_s / 3600)
        axes.set_ylim(0, found.devices)
        axes.set_xlabel("hours of the recorded day")
        axes.set_ylabel(f"of {found.devices} devices; the rest train")
        axes.legend(loc="upper right")

    return draw("one-pool", paint, (7.2, 3.6))


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
