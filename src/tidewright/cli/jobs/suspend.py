"""``tide suspend``."""

from __future__ import annotations

import click

from ...base.units import format_duration
from ..session import Session, pass_session
from ..types import DURATION
from .each_job import each


@click.command("suspend", short_help="Take a job's devices away for a while.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--for", "duration", type=DURATION, metavar="TIME", help="Resume by itself after this long, e.g. 30m.")
@pass_session
def command(session: Session, jobs: tuple[str, ...], duration: int | None) -> int:
    """Make each JOB (an id, an array, its members 12_[3-7], or a unique name) release its devices,
    keeping its work, until `tide resume`.

    A job that cannot be suspended at the moment runs on until it can; `tide show` says why.
    """
    client = session.client()
    until = client.info().now + duration if duration else 0
    tail = "; tide resume {job} ends it"
    if duration:
        tail = f" for {format_duration(duration)}{tail} earlier"
    return each(jobs, lambda job: client.suspend(job, until), f"is being suspended{tail}")
