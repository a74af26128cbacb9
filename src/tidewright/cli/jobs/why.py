"""``tide why``: the engine's own reasons, printed unchanged."""

from __future__ import annotations

import click

from ...base.units import counted
from ...wire.api import WhyView
from .. import output as out
from .. import words
from ..output import Column
from ..session import Session, pass_session
from .following import once_free


@click.command("why", short_help="Why a job is where it is.")
@click.argument("job")
@click.option("--tail", type=click.IntRange(min=0), default=8, show_default=True, help="Last entries of its story.")
@click.option(
    "--changes/--no-changes", default=True, help="Look for changes that would start it (takes up to seconds)."
)
@out.json_option
@pass_session
def command(session: Session, job: str, tail: int, changes: bool, output: str) -> None:
    """Say why JOB (an id or a unique name) is where it is; of an array, the first of its members that wait.

    Prints the binding limit, who holds it, the smallest change of each kind that would start the job, tried with the
    scheduler that runs, and what happened to it so far.
    """
    client = session.client()
    why = once_free(lambda: client.why(job, changes))
    if output == "json":
        out.print_json(why)
        return
    _explain(why, tail)


LAST_LINES = 3
"""Of what the rank that failed wrote; ``tide show`` has more of them."""


def _changes(why: WhyView) -> list[tuple[str, str]]:
    """What would start a waiting job, or that nothing is known to and what to do next."""
    if why.changes:
        texts = [f"{one.text} ({one.type})" if one.type else one.text for one in why.changes]
        return [("  would start it" if at == 0 else "  or", text) for at, text in enumerate(texts)]
    found = why.dead_end.text if why.dead_end is not None else "no single change that was tried"
    return [*([("  would start it", found)] if why.searched else []), ("  try", why.remedy)]


def _ahead(why: WhyView) -> list[tuple[str, str]]:
    """How many jobs are served before a waiting one, why, and how it compares with the first of them."""
    if why.ahead <= 0:
        return []
    reasons = [one.text for one in why.order if one.text not in why.summary]
    count = f"{counted(why.ahead, 'job')} before it"
    first = [("  first", why.first_ahead.text)] if why.first_ahead is not None else []
    return [("  ahead", f"{count}: {', '.join(reasons)}" if reasons else count), *first]


def _explain(why: WhyView, tail: int) -> None:
    said = "" if why.summary in ("", f"it is {why.state}") else f": {why.summary}"
    if why.array:
        waiting = f"{counted(why.waiting, 'member')} {'waits' if why.waiting == 1 else 'wait'}"
        out.echo(f"array {why.array}: {waiting if why.waiting else 'no member waits'}")
    out.echo(f"job {why.job} ({why.name}) is {why.state}{said}")
    limit = f"{why.reason}: needs {why.need}, {why.free} free" if why.need else why.reason
    out.print_facts(
        [
            ("  limit", limit),
            ("  next", why.consequence),
            *_ahead(why),
            *_changes(why),
            *(("  detail", text) for text in why.details),
            *(("  wrote", line) for line in (why.failure.lines[-LAST_LINES:] if why.failure else ())),
        ]
    )
    if why.holders:
        out.echo("\nheld by")
        out.print_table(
            why.holders,
            [
                Column("JOB", lambda holder: str(holder.job), right=True),
                Column("NAME", lambda holder: holder.name, least=10, tail=True),
                Column("TIER", lambda holder: holder.tier, leave=1),
                Column("DEVICES", lambda holder: str(holder.devices), right=True),
            ],
        )
    if why.story and tail:
        out.echo("\nstory")
        out.print_facts(words.story(why.story[-tail:]), empty=True)
