"""``tide whatif``: one's own jobs on another pool, or under another policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..base.errors import UsageError
from ..base.units import counted
from . import output as out
from .progress import progress
from .session import Session, pass_session
from .types import DURATION

if TYPE_CHECKING:
    from ..app.simulate import SimulationResult
    from ..app.whatif import Recorded, WhatIf


@click.command("whatif", short_help="Your own jobs on another pool, or under another policy.")
@click.argument("journal", required=False, type=click.Path(path_type=Path))
@click.option("--add", multiple=True, metavar="NODES", help="More nodes: 8xh100 is one of 8 devices, 2x8:h100 two.")
@click.option("--remove", multiple=True, metavar="NODE", help="Without this node; repeatable.")
@click.option("-c", "--cluster", default="", metavar="CLUSTER", help="Other nodes altogether, e.g. 4x8:a100.")
@click.option("-p", "--policy", default="", metavar="NAME", help="Another policy than the recorded one.")
@click.option("--since", type=DURATION, default=0, metavar="TIME", help="Only the last so much of it, e.g. 30d.")
@out.json_option
@pass_session
def command(
    session: Session, journal: Path | None, add: tuple[str, ...], remove: tuple[str, ...], cluster: str, policy: str,
    since: int, output: str,
) -> None:  # fmt: skip
    """Simulate the recorded jobs as it was and with a change, and show both beside what was recorded.

    JOURNAL is a state directory, its journal.db or an exported journal; by default the present state directory, which may be
    in use. Operations take as long as they did in the recording. How far the simulation of what was is off from what was
    recorded is said: differences smaller than that mean nothing. Jobs that no longer fit are counted and named.
    """
    from ..app.whatif import PoolChange, what_if

    if journal is not None and not journal.exists() and re.fullmatch(r"\d+|.*\[\d+\]", str(journal)):
        raise UsageError(
            f"{journal} reads as a job, not as a journal", f"of one job: tide why {journal}, tide eta {journal}"
        )
    change = PoolChange(add=add, remove=remove, cluster=cluster, policy=policy)
    with progress("what if", total=1.0) as bar:
        found = what_if(journal or session.state, change, since, bar.update)
    if output == "json":
        out.print_json(found)
    else:
        out.print_whole(_table(found))
        if found.unfit:
            out.echo(_unfit(found))
    for note in found.notes:
        out.note(f"note: {note}")
    out.note(
        f"note: simulated as it was, the mean JCT of the jobs that ended is {found.off:+.1%} off what was recorded; "
        "a difference smaller than that says nothing"
    )


def _table(found: WhatIf) -> Any:
    from rich.table import Table

    before, after = found.before, found.after
    grid = Table(title=f"{before.trace}: {counted(before.jobs, 'job')}", title_justify="left")
    for at, name in enumerate(("", "recorded", "simulated", "what if", "change")):
        grid.add_column(name, justify="right" if at else "left", no_wrap=True)
    grid.add_row("policy", found.recorded.policy, before.policy, after.policy, "")
    grid.add_row("devices", "", f"{before.devices:,}", f"{after.devices:,}", "")
    for name, recorded, value, text in _rows():
        pair = (value(before), value(after))
        grid.add_row(name, recorded(found.recorded), *map(text, pair), _change(*pair))
    if found.unfit:
        grid.add_row("no longer fit", "", "", f"{len(found.unfit):,}", "")
    for at, tier in enumerate(before.tiers):
        if tier.jobs and tier.target:
            kept = (tier.attained, after.tiers[at].attained)
            grid.add_row(f"promises, {tier.tier}", "", *map(_percent, kept), f"{100 * (kept[1] - kept[0]):+.1f} pp")
    return grid


SHOWN = 10
"""Jobs that no longer fit which are named; -o json has all of them."""


def _unfit(found: WhatIf) -> str:
    """How many jobs no longer fit, and the first of them."""
    jobs = [f"  {one.job} {one.name} ({one.why})" for one in found.unfit[:SHOWN]]
    more = len(found.unfit) - SHOWN
    last = [f"  and {more:,} more: tide whatif … -o json"] if more > 0 else []
    many = (
        "1 job no longer fits and is" if len(found.unfit) == 1 else f"{len(found.unfit):,} jobs no longer fit and are"
    )
    return "\n".join([f"{many} left out of the means of what if:", *jobs, *last])


Row = tuple[str, "Callable[[Recorded], str]", "Callable[[SimulationResult], float]", "Callable[[float], str]"]


def _rows() -> list[Row]:
    return [
        ("jobs ended", lambda r: f"{r.jobs:,}", lambda s: s.completed, lambda count: f"{count:,.0f}"),
        ("JCT mean", lambda r: _duration(r.jct_mean_s), lambda s: s.jct_mean_s, _duration),
        ("JCT median", lambda r: _duration(r.jct_median_s), lambda s: s.jct_median_s, _duration),
        ("JCT p99", lambda r: _duration(r.jct_p99_s), lambda s: s.jct_p99_s, _duration),
        ("wait, mean", lambda r: "", lambda s: s.queue_mean_s, _duration),
        ("wait, p99", lambda r: "", lambda s: s.queue_p99_s, _duration),
        ("utilisation", lambda r: "", lambda s: s.utilisation_arriving, _percent),
        ("preemptions", lambda r: f"{r.preemptions:,}", lambda s: s.preemptions, lambda count: f"{count:,.0f}"),
    ]


def _change(before: float, after: float) -> str:
    return f"{after / before - 1:+.1%}" if before else ""


def _duration(seconds: float) -> str:
    """``-`` for none, as in other tables; nothing here is known to the millisecond."""
    from ..base.units import SECOND, format_duration

    if seconds < 1:
        return "< 1s" if seconds > 0 else "-"
    return format_duration(round(seconds * SECOND))


def _percent(share: float) -> str:
    return f"{share:.1%}"
