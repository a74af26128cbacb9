"""One pool against a split, for people: a table, remarks, and a plot of the day."""

from __future__ import annotations

from typing import Any

from ...report.figure import draw
from .run import PoolComparison

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
