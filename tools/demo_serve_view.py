"""What make demo-serve shows and how it judges: the table while it runs, the bars at the end, the plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from demo_load import Answer, Load
from demo_view import STYLES, Run, console
from rich.table import Table

from tidewright.base.units import SECOND
from tidewright.report.figure import draw

__all__ = ["Bar", "Bars", "Sample", "Story", "console", "live_table", "plot", "show_bars"]

INSIDE = 0.99
"""Part of the requests that must be answered within the objective."""
BACK_S = 2.0
"""After so long the requests of the spike are to be inside their objective."""
BIN_S, LASTING_S = 0.25, 1.0
COLOURS = {"replicas": "#2a6f97", "standard": "#e09f3e", "basic": "#9aa5b1"}


@dataclass(frozen=True)
class Sample:
    """The pool at a moment. ``at``: seconds since the load began; ``running``: replicas that the controller knows to answer;
    ``serving``: devices of replicas; ``held``: devices by training job."""

    at: float
    wanted: int
    running: int
    serving: int
    held: dict[str, int]
    states: dict[str, str]


@dataclass(frozen=True)
class Story:
    """Answers and samples of one run; times are seconds since the load began."""

    answers: Sequence[Answer]
    samples: Sequence[Sample]
    spike_s: float
    """When the spike begins."""
    lasts_s: float
    objective_s: float

    @property
    def real_time(self) -> list[Answer]:
        return sorted((one for one in self.answers if not one.best_effort), key=lambda one: one.sent)

    def inside(self, answers: Sequence[Answer]) -> float:
        """Part that was answered within the objective; 1 of none."""
        good = sum(one.status == 200 and one.took <= self.objective_s for one in answers)
        return good / len(answers) if answers else 1.0

    def between(self, start_s: float, end_s: float) -> list[Answer]:
        return [one for one in self.real_time if start_s <= one.sent < end_s]

    def back_s(self) -> float:
        """Seconds from the beginning of the spike to the first quarter second from which on, for a second, enough of the requests
        are inside the objective; infinite when they never are."""
        bins, lasting = round(self.lasts_s / BIN_S), round(LASTING_S / BIN_S)
        starts = [self.spike_s + number * BIN_S for number in range(bins)]
        good = [self.inside(self.between(start, start + BIN_S)) >= INSIDE for start in starts]
        found = (at for at in range(bins - lasting + 1) if all(good[at : at + lasting]))
        return next((at * BIN_S for at in found), float("inf"))

    def later(self) -> list[Answer]:
        """Requests of the spike since it was back inside the objective."""
        return self.between(self.spike_s + self.back_s(), self.spike_s + self.lasts_s)


@dataclass(frozen=True)
class Bar:
    """A figure, what it is to be, and whether it is."""

    what: str
    figure: str
    bar: str
    kept: bool


@dataclass(frozen=True)
class Bars:
    """All of them, in the order in which they are shown."""

    rows: tuple[Bar, ...] = field(default=())

    @property
    def kept(self) -> bool:
        return all(row.kept for row in self.rows)

    @staticmethod
    def of(story: Story, runs: Sequence[Run], slots: int) -> Bars:
        """Judge a run."""
        back, end = story.back_s(), story.spike_s + story.lasts_s
        calm = [*story.between(0, story.spike_s), *story.between(end, float("inf"))]
        later = story.inside(story.later())
        quiet, most = story.inside(calm), max((sample.running for sample in story.samples), default=0)
        equal, lost = sum(run.equal for run in runs), sum(run.steps_lost for run in runs)
        away = [run for run in runs if run.view is not None and run.view.preemptions]
        batch = sum(one.status == 200 for one in story.answers if one.best_effort)
        broken = sum(one.status not in (200, 503) for one in story.answers)
        return Bars((
            Bar("the spike is inside its objective after", f"{back:.2f} s", f"<= {BACK_S:.0f} s", back <= BACK_S),
            Bar("its requests after that inside", f"{later:.1%}", f">= {INSIDE:.0%}", bool(story.later()) and later >= INSIDE),
            Bar("requests before and after it inside", f"{quiet:.1%}", f">= {INSIDE:.0%}", quiet >= INSIDE),
            Bar("replicas that answered at its peak", str(most), f"{slots}", most == slots),
            Bar("training jobs that were preempted for it", f"{len(away)} of {len(runs)}", "all", len(away) == len(runs)),
            Bar("loss hashes equal to those undisturbed", f"{equal} of {len(runs)}", "all", equal == len(runs)),
            Bar("training steps lost", str(lost), "0", lost == 0),
            Bar("requests lost or failed", str(broken), "0", broken == 0),
            Bar("batch inference answered in the gaps", str(batch), "> 0", batch > 0),
        ))  # fmt: skip


def recent(load: Load, objective_s: float) -> tuple[int, int, float]:
    """Requests of the last second that were answered in time, those refused, and their median latency in milliseconds."""
    now = load.elapsed()
    last = [one for one in load.answers[-1000:] if not one.best_effort and one.sent + one.took >= now - 1]
    good = [one.took for one in last if one.status == 200 and one.took <= objective_s]
    refused = sum(one.status == 503 for one in last)
    return len(good), refused, 1000 * statistics.median(good) if good else 0.0


def live_table(
    samples: Sequence[Sample], load: Load, runs: Sequence[Run], objective_s: float, slots: int, since_s: float
) -> Table:
    """The pool and the requests as they are now."""
    now = samples[-1]
    title = f"3/3 training, and a spike of requests   {since_s:.0f} s"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("who", "tier", "devices", "state"):
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    good, refused, median_ms = recent(load, objective_s)
    said = f"{load.rate(now.at):.0f}/s asked, {good} inside {objective_s:g} s, {refused} refused, median {median_ms:.0f} ms"
    table.add_row("detector", "premium", "█" * now.serving + "░" * (now.wanted - now.serving), said)
    for run in runs:
        view = run.view
        if view is not None:
            style = STYLES.get(view.state, "default")
            held = "█" * now.held[run.name] if view.state != "suspending" else "░" * now.held[run.name]
            table.add_row(run.name, view.tier, held, f"[{style}]{view.state}[/] {view.why}")
    free = max(0, slots - now.serving - sum(now.held.values()))
    table.add_row("free or on its way", "", "░" * free, "")
    return table


def absences(run: Run) -> list[str]:
    """What each preemption of a job was, in words: when its devices were free, and how long it was away."""
    found, since, freed = [], 0, 0
    for line in run.view.story if run.view is not None else ():
        if line.what == "suspending":
            since, freed = line.at, 0
        elif line.what == "suspended":
            freed = line.at
        elif line.what == "running" and freed:
            took_s, away_s = (freed - since) / SECOND, (line.at - freed) / SECOND
            found.append(f"released its devices in {took_s:.2f} s, ran again {away_s:.1f} s later")
            freed = 0
    return found


def show_bars(bars: Bars, runs: Sequence[Run], load: Load) -> None:
    """The closing table; fits 80 columns."""
    table = Table(
        title="A spike on a full pool",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="bold underline",
    )
    for column in ("", "measured", "bar", ""):
        table.add_column(column, justify="right" if column in ("measured", "bar") else "left", no_wrap=True)
    for row in bars.rows:
        table.add_row(row.what, row.figure, row.bar, "[green]kept[/]" if row.kept else "[red]MISSED[/]")
    console.print(table)
    for run in runs:
        for away in absences(run):
            console.print(f"{run.name}: {away}", style="dim", highlight=False, soft_wrap=True)
    console.print(
        f"The client sent its requests at most {1000 * load.late_s:.0f} ms late.", style="dim", highlight=False
    )


# -- the plot -----------------------------------------------------------------------------------------------------------


def plot(story: Story, slots: int, form: Literal["svg", "png"] = "svg") -> bytes:
    """Requests, latency and devices over time."""

    def paint(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        requests, latency, devices = figure.subplots(3, sharex=True)
        _paint_requests(requests, story)
        _paint_latency(latency, story)
        _paint_devices(devices, story, slots)
        for one in (requests, latency, devices):
            one.axvspan(0, story.lasts_s, color="#f4e9dc", zorder=0, linewidth=0)
        devices.set_xlabel("seconds since the spike began (shaded while it lasts)")

    return draw("spike", paint, (8.4, 7.2), form, ground="white")


def _bins(story: Story) -> list[tuple[float, list[Answer]]]:
    """(middle of the bin, seconds since the spike began; its real-time requests)."""
    found: dict[int, list[Answer]] = {}
    for one in story.real_time:
        found.setdefault(int((one.sent - story.spike_s) // BIN_S), []).append(one)
    return [((at + 0.5) * BIN_S, found[at]) for at in sorted(found)]


def _paint_requests(axes: Any, story: Story) -> None:
    bins = _bins(story)
    times = [at for at, _ in bins]
    inside = [sum(one.status == 200 and one.took <= story.objective_s for one in each) / BIN_S for _, each in bins]
    axes.fill_between(times, inside, color="#2a6f97", alpha=0.8, linewidth=0, label="answered within the objective")
    axes.plot(times, [len(each) / BIN_S for _, each in bins], color="#1c2733", linewidth=1.2, label="sent")
    axes.set_ylabel("requests/s")
    axes.legend(loc="upper right")


def _paint_latency(axes: Any, story: Story) -> None:
    answered = [one for one in story.real_time if one.status == 200]
    axes.scatter(
        [one.sent - story.spike_s for one in answered], [1000 * one.took for one in answered], s=2, color="#2a6f97", linewidths=0,
        rasterized=True, label="each answer",
    )  # fmt: skip
    axes.axhline(1000 * story.objective_s, color="#b3261e", linewidth=1, label="objective")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("latency, ms")
    axes.legend(loc="upper right")


def _paint_devices(axes: Any, story: Story, slots: int) -> None:
    times = [sample.at - story.spike_s for sample in story.samples]
    names = list(story.samples[0].held) if story.samples else []
    columns = [[sample.serving for sample in story.samples]]
    columns += [[sample.held[name] for sample in story.samples] for name in names]
    colours = [COLOURS["replicas"], COLOURS["standard"], COLOURS["basic"]]
    axes.stackplot(times, *columns, labels=["replicas", *names], colors=colours, step="post", linewidth=0)
    axes.set_ylim(0, slots)
    axes.set_yticks(range(slots + 1))
    axes.set_ylabel("devices")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(columns))
