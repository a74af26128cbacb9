"""``tide cancel``."""

from __future__ import annotations

import click

from ..session import Session, pass_session
from .each_job import each


@click.command("cancel", short_help="End jobs.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@pass_session
def command(session: Session, jobs: tuple[str, ...]) -> int:
    """End each JOB (an id, an array, its members 12_[3-7], or a unique name), whatever it is doing:
    SIGTERM, its grace, SIGKILL."""
    client = session.client()
    return each(jobs, client.cancel, "is being cancelled")
