"""``tide checkpoint``."""

from __future__ import annotations

import click

from ..session import Session, pass_session
from .each_job import each


@click.command("checkpoint", short_help="Take an image of a job now.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@pass_session
def command(session: Session, jobs: tuple[str, ...]) -> int:
    """Take an image of each running JOB (an id, an array, its members 12_[3-7], or a unique name) now; it runs on.

    Should its node fail, it goes on from there. Images are also taken by themselves, see --checkpoint-every of
    `tide run`; `tide show` lists them.
    """
    client = session.client()
    return each(jobs, client.checkpoint, "is being imaged; tide show {job} lists its images")
