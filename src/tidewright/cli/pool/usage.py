"""``tide usage``."""

from __future__ import annotations

import click

from ...wire.api import UsageRow
from .. import output as out
from .. import words
from ..output import Column
from ..session import Session, pass_session


@click.command("usage", short_help="Device-time by team, user or tier.")
@click.option("--by", type=click.Choice(["team", "user", "tier"]), default="team", show_default=True, help="Group by.")
@out.output_options(lambda given: columns(given.get("by") or "team"))
@pass_session
def command(session: Session, by: str, output: str, headers: bool) -> None:
    """Device-hours that live and ended jobs held, and what of it was delivered as run time.

    FRACTION is the mean delivered GPU fraction of the group's jobs.
    """
    reply = session.client().usage(by)
    out.print_rows(reply.rows, columns(by), output, headers, lambda row: row.key, reply)


def hours(device_s: float) -> str:
    """Device-time with its unit."""
    return f"{device_s / 3600:.2f}h" if device_s >= 360 else f"{device_s:.0f}s"


def columns(by: str) -> list[Column[UsageRow]]:
    """The columns of a list of groups ``by`` team, user or tier."""
    return [
        Column(by.upper(), lambda row: row.key or "-", least=10, tail=True),
        Column("JOBS", lambda row: str(row.jobs), right=True),
        Column("LIVE", lambda row: str(row.live), right=True, leave=1),
        Column("HELD", lambda row: hours(row.held_gpu_s), right=True),
        Column("DELIVERED", lambda row: hours(row.delivered_gpu_s), right=True),
        Column("FRACTION", lambda row: words.percent(row.fraction), right=True),
        Column("PREEMPTED", lambda row: str(row.preemptions), right=True, leave=2),
    ]
