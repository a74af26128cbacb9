"""DISB results for people: a table in the terminal, and one HTML file with plots that needs nothing from anywhere.

Figures of a model are marked as such wherever they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from rich.table import Table

from ...report.page import body_row, head_row, page, plot_section
from ...report.page import table as page_table
from .result import DisbMatrix, DisbResult, over_dedicated

Cell = Callable[[DisbResult, DisbMatrix], str]
MODEL_NOTE = "Figures of a discrete-event model of the device, not measurements."


def microseconds(us: float) -> str:
    """``"12.3 µs"``, ``"4.82 ms"``; a dash for 0."""
    if us <= 0:
        return "–"
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.2f} ms" if us < 100_000 else f"{us / 1000:.0f} ms"


def _increase(share: float | None, result: DisbResult) -> str:
    return f"{100 * share:+.1f}%" if share is not None and result.rt.count else "–"


COLUMNS: tuple[tuple[str, str, Cell], ...] = (
    ("row", "way of sharing the device", lambda r, m: r.row),
    ("RT p50", "latency of real-time requests, from their launch", lambda r, m: microseconds(r.rt.p50)),
    ("p99", "all but one in a hundred", lambda r, m: microseconds(r.rt.p99)),
    ("p99.9", "all but one in a thousand", lambda r, m: microseconds(r.rt.p999)),
    ("RT max", "the slowest", lambda r, m: microseconds(r.rt.max)),
    ("over alone", "mean of latency over that of the model alone, less 1", lambda r, m: _increase(r.rt_increase, r)),
    ("its p99", "the same, all but one in a hundred", lambda r, m: _increase(r.rt_increase_p99, r)),
    ("over RT-only", "mean latency over that of a dedicated device, less 1", lambda r, m: _increase(over_dedicated(m, r), r)),
    ("RT/s", "real-time requests completed a second", lambda r, m: f"{r.rt_per_second:.1f}"),
    ("BE/s", "best-effort requests completed a second", lambda r, m: f"{r.be_per_second:.1f}"),
    ("all/s", "requests completed a second", lambda r, m: f"{r.per_second:.1f}"),
    ("work", "completed requests, each weighted by its model's latency alone", lambda r, m: f"{r.done:.2f}"),
    ("dropped", "real-time launches given up as late", lambda r, m: f"{r.dropped:,}"),
    ("intended p99", "real-time latency from the intended launch", lambda r, m: microseconds(r.rt_since_intended.p99)),
    ("preempt p50", "until best-effort work has left the device", lambda r, m: microseconds(r.preemption.latency.p50)),
    ("preempt max", "the longest of these", lambda r, m: microseconds(r.preemption.latency.max)),
    ("restore", "from the relaunch to the first kernel, mean", lambda r, m: microseconds(r.preemption.restore.mean)),
    ("wasted", "best-effort work done twice", lambda r, m: f"{100 * r.preemption.wasted:.1f}%"),
    ("busy", "capacity of the device in use", lambda r, m: f"{100 * r.busy:.0f}%"),
)  # fmt: skip
NARROW = (
    "row", "RT p50", "p99", "over alone", "its p99", "over RT-only", "RT/s", "BE/s", "work", "dropped", "preempt p50", "wasted",
)  # fmt: skip


def title(matrix: DisbMatrix) -> str:
    """What was run, in one line."""
    first = matrix.results[0]
    kind = "model of " if matrix.modelled else ""
    return f"DISB on {kind}{matrix.device}, {first.loop} loop, {first.seconds:g} s a run, seed {first.seed}"


def by_workload(matrix: DisbMatrix) -> Mapping[str, list[DisbResult]]:
    """Workload to its results, in their order."""
    found: dict[str, list[DisbResult]] = {}
    for result in matrix.results:
        found.setdefault(result.workload, []).append(result)
    return found


def table(matrix: DisbMatrix, columns: tuple[str, ...] = NARROW) -> Table:
    """One line per workload and row."""
    cells = {name: cell for name, _, cell in COLUMNS}
    grid = Table(title=title(matrix), title_justify="left", caption=MODEL_NOTE if matrix.modelled else None)
    for at, name in enumerate(("workload", *columns)):
        grid.add_column(name, justify="left" if at < 2 else "right", no_wrap=True)
    for workload, results in by_workload(matrix).items():
        for result in results:
            grid.add_row(workload, *(cells[name](result, matrix) for name in columns))
        grid.add_section()
    return grid


# -- HTML -------------------------------------------------------------------------------------------------------------

_WIDE = (
    (
        "increase",
        "Real-time latency",
        "Bar: mean increase over the model alone. Dash: p99. Dashed line: 2 %. Requests that queue behind others are in.",
    ),
    ("work", "Work done", "Requests weighted by their model's latency alone; below the white line real-time ones."),
)
_NARROW = (
    ("trade_off", "Latency against work", "Means of the workloads; up and left is better. Dashed line: 2 %."),
    ("preemption", "Preemption latency", "From the preemption until no best-effort work is on the device."),
)
_FIGURES = (
    "Workloads: DISB (SJTU IPADS, Apache-2.0); B-220 and E-1s as in the artifact of REEF. In the closed loop a client has one "
    "request outstanding and gives up launches that are late (dropped), as DISB does: its latencies hide queueing. Increase "
    "divides by the latency of the model alone. Wasted: best-effort work that was killed or run again."
)


def html(matrix: DisbMatrix, about: Mapping[str, str] | None = None) -> str:
    """A self-contained page; ``about`` says what each row is. Raises UsageError when matplotlib is missing."""
    from .plots import draw

    def plots(kinds: tuple[tuple[str, str, str], ...]) -> str:
        return "".join(plot_section(name, text, draw(kind, matrix)) for kind, name, text in kinds)

    tables = "".join(
        f"<section><h2>Workload {escape(workload)}</h2>{_html_table(results, matrix)}</section>"
        for workload, results in by_workload(matrix).items()
    )
    body = (
        f'{plots(_WIDE)}<div class="grid">{plots(_NARROW)}</div>'
        f"{_html_list('Rows', about or {})}{tables}{_html_list('Facts', dict(matrix.facts))}"
    )
    heading, warning = "Real-time and best-effort inference on one device", MODEL_NOTE if matrix.modelled else ""
    return page(title(matrix), heading, body, _FIGURES, warning=warning, wide=True)


def _html_list(name: str, entries: Mapping[str, str]) -> str:
    if not entries:
        return ""
    lines = "".join(f"<li><b>{escape(key)}</b>: {escape(text)}</li>" for key, text in entries.items())
    return f"<section><h2>{name}</h2><ul>{lines}</ul></section>"


def _html_table(results: list[DisbResult], matrix: DisbMatrix) -> str:
    from .plots import colours

    colour = colours(matrix)
    rows = [
        body_row(result.row, colour[result.row], [cell(result, matrix) for _, _, cell in COLUMNS[1:]])
        for result in results
    ]
    return page_table(head_row((name, text) for name, text, _ in COLUMNS), rows)
