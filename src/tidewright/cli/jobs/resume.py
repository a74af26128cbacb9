"""``tide resume``."""

from __future__ import annotations

import click

from ..session import Session, pass_session
from .each_job import each


@click.command("resume", short_help="Let a suspended job run again.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@pass_session
def command(session: Session, jobs: tuple[str, ...]) -> int:
    """End the suspension of each JOB (an id, an array, its members 12_[3-7], or a unique name); it
    runs when the policy gives it devices."""
    client = session.client()
    return each(jobs, client.resume, "may run again")
