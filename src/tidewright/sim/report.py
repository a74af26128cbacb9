"""Results for people: a table in the terminal, and one HTML file with plots that needs nothing from anywhere.

It refuses to know how the figures were made; they are defined in ``sim.result`` and ``sim.metrics``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from html import escape

from rich.table import Table

from ..base.units import SECOND, agreeing, counted, format_duration
from ..report.page import body_row, head_row, page, plot_section
from ..report.page import table as page_table
from .result import SimulationResult, TierResult

Cell = Callable[[SimulationResult], str]


def duration(seconds: float) -> str:
    """``"1h05m"`` of seconds."""
    return format_duration(round(seconds * SECOND))


def percent(share: float) -> str:
    """``"93.4%"`` of a share."""
    return f"{100 * share:.1f}%"


COLUMNS: tuple[tuple[str, str, Cell], ...] = (
    ("policy", "who and how much", lambda r: r.policy),
    ("done", "completed jobs of all", lambda r: _completed(r)),
    ("JCT mean", "completion minus submission", lambda r: _of_completed(r, duration(r.jct_mean_s))),
    ("median", "JCT, half of the jobs", lambda r: _of_completed(r, duration(r.jct_median_s))),
    ("p99", "JCT, all but one in a hundred", lambda r: _of_completed(r, duration(r.jct_p99_s))),
    ("queue mean", "first start minus submission", lambda r: _of_completed(r, duration(r.queue_mean_s))),
    ("queue p99", "all but one in a hundred", lambda r: _of_completed(r, duration(r.queue_p99_s))),
    ("queued", "jobs waiting, mean over time", lambda r: f"{r.queue_length_mean:,.1f}"),
    ("makespan", "until the last job ended", lambda r: duration(r.makespan_s)),
    ("util.", "device-time held, until the last job is admitted", lambda r: percent(r.utilisation_arriving)),
    ("ρ mean", "finish-time fairness; 1: as good as alone on a fair share", lambda r: _of_completed(r, f"{r.rho_mean:.2f}")),
    ("ρ p99", "of the worst-treated hundredth", lambda r: _of_completed(r, f"{r.rho_p99:.2f}")),
    ("preempt.", "suspensions by the policy", lambda r: f"{r.preemptions:,}"),
    ("lost", "device-hours of work done twice", lambda r: f"{r.lost_device_hours:,.1f} h"),
    ("goodput", "completed jobs' own work in the device-time held", lambda r: percent(r.goodput)),
)  # fmt: skip
TIER_COLUMNS = ("policy", "tier", "target", "jobs", "fraction", "p5", "attained", "by work", "attainable", "JCT mean")


def _completed(result: SimulationResult) -> str:
    return f"{result.completed:,}" + (f" of {result.jobs:,}" if result.completed < result.jobs else "")


def _of_completed(result: SimulationResult, text: str) -> str:
    """A figure over completed jobs; a dash where there are none."""
    return text if result.completed else "–"


def tier_rows(results: Sequence[SimulationResult]) -> list[tuple[str, ...]]:
    """One row of text per policy and tier that has jobs, in the order of TIER_COLUMNS."""
    return [
        (
            result.policy, tier.tier, f"{tier.target:.2f}" if tier.target else "none", f"{tier.jobs:,}",
            f"{tier.fraction_mean:.3f}", f"{tier.fraction_p5:.3f}", *_attained(tier), duration(tier.jct_mean_s),
        )
        for result in results
        for tier in result.tiers
        if tier.jobs
    ]  # fmt: skip


def _attained(tier: TierResult) -> tuple[str, ...]:
    shares = (tier.attained, tier.attained_by_work, tier.attainable)
    return tuple(percent(share) if tier.target else "–" for share in shares)


def title(results: Sequence[SimulationResult]) -> str:
    """What was simulated, in one line."""
    first = results[0]
    return f"{first.trace}: {counted(first.jobs, 'job')} on {first.cluster} ({counted(first.devices, 'device')})"


def table(results: Sequence[SimulationResult]) -> Table:
    """One line per policy; columns that would be the same empty word everywhere are left out."""
    dull = () if any(_moved(r) for r in results) else ("preempt.", "lost", "goodput")
    shown = [column for column in COLUMNS if column[0] not in dull]
    grid = Table(title=title(results), title_justify="left")
    for name, _, _ in shown:
        grid.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for result in results:
        grid.add_row(*(cell(result) for _, _, cell in shown))
    return grid


def tier_table(results: Sequence[SimulationResult]) -> Table:
    """Delivered GPU fraction per policy and tier."""
    grid = Table(title="delivered GPU fraction by tier", title_justify="left")
    for at, name in enumerate(TIER_COLUMNS):
        grid.add_column(name, justify="left" if at < 2 else "right", no_wrap=True)
    before = ""
    for row in tier_rows(results):
        if before and row[0] != before:
            grid.add_section()
        grid.add_row(*row)
        before = row[0]
    return grid


def notes(results: Sequence[SimulationResult]) -> list[str]:
    """What a reader must know about jobs that are not in the means."""
    found = list(dict.fromkeys(remark for result in results for remark in result.remarks))
    for result in results:
        refused = ", ".join(f"{why}: {count:,}" for why, count in result.refusals.items())
        are = agreeing(result.unfinished, "is", "are")
        for count, text in (
            (result.unfinished, f"had not ended{_at_horizon(result)} and {are} left out of the means"),
            (result.refused, f"{agreeing(result.refused, 'was', 'were')} refused ({refused})"),
            (result.failed, f"failed, {agreeing(result.failed, 'was', 'were')} stopped or cancelled"),
        ):
            if count:
                found.append(f"{result.policy}: {counted(count, 'job')} {text}")
        if result.moves_refused:
            found.append(f"{result.policy}: {moves_refused([result])}")
    return found


def _at_horizon(result: SimulationResult) -> str:
    cut = 0 < result.horizon_s <= result.makespan_s
    return f" at the horizon, after {duration(result.horizon_s)}," if cut else ""


def moves_refused(results: Sequence[SimulationResult]) -> str:
    """``"4 of 10 moves were refused (DevicesTaken: 4)"``, the most frequent reason first; empty where none was."""
    count, moves, why = sum(r.moves_refused for r in results), sum(r.moves for r in results), Counter[str]()
    for result in results:
        why.update(result.move_refusals)
    reasons = ", ".join(
        f"{code}: {times:,}" for code, times in sorted(why.items(), key=lambda item: (-item[1], item[0]))
    )
    were = agreeing(count, "was", "were")
    return f"{count:,} of {counted(moves, 'move')} {were} refused, as they did not hold ({reasons})" if count else ""


def _moved(result: SimulationResult) -> bool:
    return bool(result.preemptions or result.lost_device_hours)


# -- HTML -------------------------------------------------------------------------------------------------------------

_PLOTS = (
    ("jct_cdf", "Job completion time", "Share of jobs that ended within this time of submission."),
    ("tiers", "Delivered GPU fraction by tier", "Bar: mean. Whisker: worst twentieth. Dashed: what is promised."),
    ("queue", "Jobs waiting over time", "Jobs in the system that hold no device."),
    ("held", "Devices in use over time", "Share of devices held, saving and restoring included."),
)  # fmt: skip
_FIGURES = (
    "JCT: end minus submission. Queueing: first start minus submission. Fraction: true run time on the full allotment "
    "over time since submission. Attained: share of jobs at or above their tier's target; by work: weighted by "
    "device-time; attainable: the share that could attain with the cluster to itself, launching included. ρ: "
    "completion time over the time the job would have taken alone on its 1/N share of the cluster (Themis, NSDI'20)."
)


def html(results: Sequence[SimulationResult]) -> str:
    """A self-contained page. Raises UsageError naming the extra to install when matplotlib is missing."""
    from .plots import COLOURS, draw

    colours = {result.policy: COLOURS[at % len(COLOURS)] for at, result in enumerate(results)}
    plots = "".join(plot_section(name, text, draw(kind, results, colours)) for kind, name, text in _PLOTS)
    remarks = "".join(f"<li>{escape(note)}</li>" for note in notes(results))
    body = (
        f"<section>{_html_table(results, colours)}{f'<ul>{remarks}</ul>' if remarks else ''}</section>"
        f'<div class="grid">{plots}</div><section>{_html_tiers(results, colours)}</section>'
    )
    return page(title(results), f"Simulation: {', '.join(colours)}", body, _FIGURES)


def _html_table(results: Sequence[SimulationResult], colours: dict[str, str]) -> str:
    rows = [
        body_row(result.policy, colours[result.policy], [cell(result) for _, _, cell in COLUMNS[1:]])
        for result in results
    ]
    return page_table(head_row((name, text) for name, text, _ in COLUMNS), rows)


def _html_tiers(results: Sequence[SimulationResult], colours: dict[str, str]) -> str:
    rows, before = [], ""
    for row in tier_rows(results):
        rows.append(body_row(row[0], colours[row[0]], row[1:], "first" if before and row[0] != before else ""))
        before = row[0]
    return page_table(head_row((name, "") for name in TIER_COLUMNS), rows, "words")
