"""What the demonstration shows: the table while it runs, the closing table, the next commands."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tidewright.base.units import SECOND
from tidewright.wire.api import FINAL_STATES, JobView

if TYPE_CHECKING:
    from demo_tour import Tour

STYLES = {
    "running": "green", "suspended": "yellow", "suspending": "yellow", "resuming": "cyan", "starting": "cyan",
    "completed": "dim", "failed": "red",
}  # fmt: skip
COLUMNS = ("job", "tier", "ideal", "real", "fraction", "pre-empted", "steps lost", "hash", "exit")

LEGEND = """\
ideal     seconds of the same program alone, never pre-empted
real      seconds from submission to end
fraction  GPU fraction since submission, by the ledger; promised: premium 0.95, standard 0.70.
          The half second in which another job makes room weighs 0.1 in a job of five seconds
hash      over every step's loss, against that of the program alone
"""

console = Console()


@dataclass
class Program:
    """One script with its arguments. ``seconds``: how long it should train; ``steps`` are chosen to match on this machine."""

    name: str
    tier: str
    script: str
    seed: int
    seconds: float
    ranks: int = 1
    steps: int = 0
    alone_us: int = 0
    hash: str = ""


@dataclass
class Run:
    """One submitted job of a program. ``result`` is what the script wrote; ``steps_lost`` those its log shows twice."""

    program: Program
    name: str
    out: Path
    id: int = -1
    view: JobView | None = None
    result: dict[str, object] = field(default_factory=dict)
    steps_lost: int = 0

    @property
    def final(self) -> bool:
        return self.view is not None and self.view.state in FINAL_STATES

    @property
    def equal(self) -> bool:
        """Whether its losses are, bit for bit, those of the same program run alone."""
        return self.result.get("hash") == self.program.hash


def progress(runs: list[Run], title: str) -> Table:
    """The jobs as they are now."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("job", "tier", "state", "done", "pre-empted", "why"):
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for run in runs:
        if run.view is not None:
            style = STYLES.get(run.view.state, "default")
            done = bar(run.view.ideal_us, run.program.alone_us, run.final)
            state = f"[{style}]{run.view.state}[/]"
            table.add_row(run.name, run.view.tier, state, done, str(run.view.preemptions), run.view.why)
    return table


def bar(done_us: int, whole_us: int, final: bool) -> str:
    """Ten blocks of progress; nothing while the whole is unknown."""
    if not whole_us and not final:
        return ""
    filled = 10 if final else min(9, 10 * done_us // max(whole_us, 1))
    return "█" * filled + "░" * (10 - filled)


def seconds(us: int) -> str:
    return f"{us / SECOND:.1f}"


def show_closing(runs: list[Run], together: list[Run], slots: int) -> None:
    """The closing table, and the use of the pool by those that ran together; fits 80 columns."""
    title = "What each job was delivered"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="bold underline")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("job", "tier", "hash") else "right", no_wrap=True)
    for run in runs:
        table.add_row(*closing_row(run))
    console.print(table)
    console.print(LEGEND, style="dim", highlight=False)
    show_pool([run.view for run in together if run.view is not None], slots)


def show_tour(tour: Tour, run: Run) -> None:
    """What a distributed job went through, and that it made no difference."""
    title = f"What {run.name}, {run.program.ranks} ranks, went through while it trained"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="bold underline")
    for column in ("event", "took", "then on"):
        table.add_column(column, justify="right" if column == "took" else "left", no_wrap=True)
    for stop in tour.stops:
        table.add_row(stop.what, f"{stop.took_us / SECOND:.2f} s", stop.where)
    console.print()
    console.print(table)
    verdict = "[green]equal[/]" if run.equal else "[red]DIFFERENT[/]"
    console.print(f"Hash over every step's loss, against that of the same job never touched: {verdict}")


def closing_row(run: Run) -> tuple[str, ...]:
    view = run.view
    assert view is not None
    return (
        run.name,
        view.tier,
        seconds(run.program.alone_us),
        seconds(view.end - view.submit),
        f"{view.fraction:.2f}",
        str(view.preemptions),
        f"{run.steps_lost} of {run.result.get('steps')}",
        "[green]equal[/]" if run.equal else "[red]DIFFERENT[/]",
        str(view.exit_code),
    )


def show_pool(views: list[JobView], slots: int) -> None:
    span_s = (max(view.end for view in views) - min(view.submit for view in views)) / SECOND
    held = sum(view.held_gpu_s for view in views) / (slots * span_s)
    delivered = sum(view.delivered_gpu_s for view in views) / (slots * span_s)
    console.print(
        f"Utilisation of {slots} CPU slots over {span_s:.0f} s: [bold]{delivered:.0%}[/] running, "
        f"{held - delivered:.0%} switching, {1 - held:.0%} idle (at the tail)."
    )


def show_next(state: Path, checkout: Path) -> None:
    """Three commands to try, as they must be typed here."""
    tide = f"{os.path.relpath(Path(sys.executable).with_name('tide'))} --state {os.path.relpath(state)}"
    python = os.path.relpath(sys.executable)
    script = os.path.relpath(checkout / "examples" / "train_gpt.py")
    console.print("\nThe controller is still up. Try:", style="bold")
    for line in (f"{tide} ps --all", f"{tide} show mlp-a", f"{tide} run --name mine --wait -- {python} {script}"):
        console.print(f"  {line}", soft_wrap=True, highlight=False)
    console.print(f"Stop it with: {tide} down", style="dim", soft_wrap=True, highlight=False)
