"""Results for people: a table in the terminal, and one HTML file with plots that needs nothing from anywhere.

It refuses to know how the figures were made; they are defined in ``sim.result`` and ``sim.metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from rich.table import Table

from ..base.units import SECOND, format_duration
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
    ("JCT mean", "completion minus submission", lambda r: duration(r.jct_mean_s)),
    ("median", "JCT, half of the jobs", lambda r: duration(r.jct_median_s)),
    ("p99", "JCT, all but one in a hundred", lambda r: duration(r.jct_p99_s)),
    ("queue mean", "first start minus submission", lambda r: duration(r.queue_mean_s)),
    ("queue p99", "all but one in a hundred", lambda r: duration(r.queue_p99_s)),
    ("queued", "jobs waiting, mean over time", lambda r: f"{r.queue_length_mean:,.1f}"),
    ("makespan", "until the last job ended", lambda r: duration(r.makespan_s)),
    ("util.", "device-time held, until the last submission", lambda r: percent(r.utilisation_arriving)),
    ("ρ mean", "finish-time fairness; 1: as good as alone on a fair share", lambda r: f"{r.rho_mean:.2f}"),
    ("ρ p99", "of the worst-treated hundredth", lambda r: f"{r.rho_p99:.2f}"),
    ("preempt.", "suspensions by the policy", lambda r: f"{r.preemptions:,}"),
    ("lost", "device-hours of work done twice", lambda r: f"{r.lost_device_hours:,.1f} h"),
    ("goodput", "completed jobs' own work in the device-time held", lambda r: percent(r.goodput)),
)  # fmt: skip
TIER_COLUMNS = ("policy", "tier", "target", "jobs", "fraction", "p5", "attained", "by work", "attainable", "JCT mean")


def _completed(result: SimulationResult) -> str:
    return f"{result.completed:,}" + (f" of {result.jobs:,}" if result.completed < result.jobs else "")


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
    return f"{first.trace}: {first.jobs:,} jobs on {first.cluster} ({first.devices:,} devices)"


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
    found = []
    for result in results:
        for count, text in (
            (result.unfinished, "had not ended and are left out of the means"),
            (result.refused, "could never fit and were refused"),
            (result.failed, "failed, were stopped or cancelled"),
        ):
            if count:
                found.append(f"{result.policy}: {count:,} jobs {text}")
    return found


def _moved(result: SimulationResult) -> bool:
    return bool(result.preemptions or result.lost_device_hours)


# -- HTML -------------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light; --ink: #1c2733; --soft: #5b6b7b; --line: #dde4ea; --ground: #f5f7f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 36px 24px 56px; }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 2px; }
p { margin: 0 0 12px; color: var(--soft); }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px; margin-top: 18px; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 18px; margin-top: 18px; }
.grid section { margin: 0; min-width: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 7px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; font-size: 12.5px; }
th:first-child, td:first-child, .words th:nth-child(2), .words td:nth-child(2) { text-align: left; }
tr:last-child td { border-bottom: 0; }
tr.first td { border-top: 2px solid var(--line); }
td .dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 8px; }
svg { width: 100%; height: auto; display: block; }
ul { color: var(--soft); margin: 10px 0 0; padding-left: 18px; }
footer { color: var(--soft); font-size: 13px; margin-top: 22px; }
"""
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
    plots = "".join(
        f"<section><h2>{name}</h2><p>{text}</p>{draw(kind, results, colours)}</section>" for kind, name, text in _PLOTS
    )
    remarks = "".join(f"<li>{escape(note)}</li>" for note in notes(results))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title(results))}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><main>'
        f"<h1>Simulation: {escape(', '.join(colours))}</h1><p>{escape(title(results))}</p>"
        f"<section>{_html_table(results, colours)}{f'<ul>{remarks}</ul>' if remarks else ''}</section>"
        f'<div class="grid">{plots}</div><section>{_html_tiers(results, colours)}</section>'
        f"<footer>{escape(_FIGURES)}</footer></main></body></html>\n"
    )


def _dot(policy: str, colours: dict[str, str]) -> str:
    return f'<td><span class="dot" style="background:{colours[policy]}"></span>{escape(policy)}</td>'


def _html_table(results: Sequence[SimulationResult], colours: dict[str, str]) -> str:
    heads = "".join(f'<th title="{escape(text)}">{escape(name)}</th>' for name, text, _ in COLUMNS)
    rows = ""
    for result in results:
        cells = "".join(f"<td>{escape(cell(result))}</td>" for _, _, cell in COLUMNS[1:])
        rows += f"<tr>{_dot(result.policy, colours)}{cells}</tr>"
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _html_tiers(results: Sequence[SimulationResult], colours: dict[str, str]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in TIER_COLUMNS)
    rows, before = "", ""
    for row in tier_rows(results):
        first = ' class="first"' if before and row[0] != before else ""
        rows += f"<tr{first}>{_dot(row[0], colours)}{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>"
        before = row[0]
    return (
        f'<div class="scroll"><table class="words"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
