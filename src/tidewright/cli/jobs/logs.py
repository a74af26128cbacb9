"""``tide logs``: a rank's output as it was written, byte for byte."""

from __future__ import annotations

import sys

import click

from ...wire.job_refs import Ref
from ..session import Session, pass_session


@click.command("logs", short_help="Print or follow a job's output.")
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("-r", "--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Whose output.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Start N lines before the end.")
@pass_session
def command(session: Session, job: str, follow: bool, rank: int, tail: int | None) -> None:
    """Print the output (stdout and stderr) of one rank of JOB (an id, a member of an array 12_3, or a unique name), over all its
    attempts."""
    copy_log(session, job, rank, follow, tail)


def copy_log(session: Session, job: Ref, rank: int = 0, follow: bool = False, tail: int | None = None) -> None:
    """A rank's output to stdout."""
    sink = sys.stdout.buffer
    for chunk in session.client().logs(job, rank=rank, follow=follow, tail=tail):
        sink.write(chunk)
        sink.flush()
