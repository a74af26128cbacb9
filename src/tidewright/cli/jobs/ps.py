"""``tide ps``: the list of jobs. Its start-up time is a bar (bench/cli_start.py): import nothing big here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

import click

from ...base.errors import UsageError
from ...wire.api import FINAL_STATES, JobList, JobView
from ...wire.states import STATES, states_of
from .. import output as out
from .. import words
from ..output import Column
from ..session import Session, pass_session


@click.command("ps", short_help="List jobs.")
@click.option("-a", "--all", "everything", is_flag=True, help="Ended jobs too.")
@click.option(
    "-s",
    "--state",
    metavar="STATE[,STATE]",
    help=f"Only jobs in these states: {', '.join(STATES)}; in any case, or as Slurm has them (PD, R, CG, ...).",
)
@click.option("--team", help="Only jobs of this team.")
@click.option("--user", help="Only jobs of this user.")
@click.option("--name", help="Only jobs of this name, or of the array of this name.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("-r", "--array", "expand", is_flag=True, help="A row for each waiting member of an array.")
@click.option("-w", "--watch", is_flag=True, help="Print again every two seconds, until interrupted.")
@out.output_options(lambda given: columns(0))
@pass_session
def command(
    session: Session, everything: bool, state: str | None, team: str | None, user: str | None, name: str | None,
    limit: int | None, expand: bool, watch: bool, output: str, headers: bool,
) -> None:  # fmt: skip
    """List live jobs, oldest first; with --all the ended ones too.

    FRACTION is the delivered GPU fraction: full-speed run time over time since submission. DEVICES is what was
    asked for, or held/asked when it holds fewer.

    Members of an array that wait alike share a row, as 12_[4-99%4]: indices 4 to 99 of array 12, of which 4 may run at once.
    A member that has started has its own, 12_3. -r shows all; so does -o json, with "array" and "array_index".
    """
    for key, value in (("state", state), ("team", team), ("user", user), ("name", name)):
        if value is not None and not value.strip(" ,"):
            raise UsageError(f"--{key} is empty", "give a value, or leave it out for all jobs")
    wanted = states_of(state or "")
    ended = everything or not FINAL_STATES.isdisjoint(wanted)
    client = session.client()

    def fetch() -> JobList:
        return client.jobs(
            all=ended,
            state=",".join(wanted) or None,
            team=team,
            user=user,
            name=name,
            limit=limit or 0,
            collapse=not expand and output != "json",
        )

    if watch:
        _watch(fetch, output, headers)
    listing = fetch()
    out.print_rows(listing.jobs, columns(listing.now), output, headers, words.job_ref, listing)
    if not listing.jobs and output in ("table", "wide"):
        out.note("no jobs; submit one: tide run -- COMMAND" if not wanted and not ended else "no such jobs")
    if listing.more:
        out.note(f"{len(listing.jobs)} shown, there are more; see them with a higher --limit")


def _watch(fetch: Callable[[], JobList], output: str, headers: bool) -> NoReturn:
    from ..watching import PERIOD_S, repeat

    def table() -> Any:
        from rich.text import Text

        listing = fetch()
        shown = out.chosen_columns(columns(listing.now), output)
        return Text.from_ansi(out.table_text(listing.jobs, shown, headers, whole=output == "wide"))

    if output in ("table", "wide") and out.colourful():
        repeat(table)
    while True:
        listing = fetch()
        out.print_rows(listing.jobs, columns(listing.now), output, headers, words.job_ref, listing)
        click.echo("")
        time.sleep(PERIOD_S)


def columns(now: int) -> list[Column[JobView]]:
    """The columns of a list of jobs; ``now`` is the controller's."""
    return [
        Column("ID", words.job_ref, right=True),
        Column("NAME", lambda job: job.name, least=10, tail=True),
        Column("TIER", lambda job: job.tier, leave=4),
        Column("TEAM", lambda job: job.team, wide=True),
        Column("USER", lambda job: job.user or "-", wide=True),
        Column("STATE", lambda job: job.state, style=lambda job: out.STATE_STYLE.get(job.state, "")),
        Column("DEVICES", words.devices, right=True, leave=1),
        Column("RANKS", lambda job: str(job.ranks), wide=True, right=True),
        Column("AGE", lambda job: words.age(job, now), right=True, leave=2),
        Column(
            "FRACTION",
            words.delivered,
            right=True,
            leave=3,
            style=lambda job: "red" if words.short_of_target(job) else "",
        ),
        Column("TARGET", lambda job: words.percent(job.target) if job.target else "-", wide=True, right=True),
        Column("PREEMPTED", lambda job: str(job.preemptions), right=True, leave=5),
        Column("LEVEL", lambda job: job.level or "-", wide=True),
        Column("STARTED", lambda job: words.at(job.start), wide=True),
        Column("COMMAND", lambda job: one_line(job.command), wide=True),
        Column("NODES(REASON)", words.nodes_or_reason, least=12),
    ]


def one_line(text: str, width: int = 60) -> str:
    """A command that may be a whole script, as one short line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
