"""``tide cancel``."""

from __future__ import annotations

import click

from ..session import Session, pass_session
from .selection import BulkAction, Chosen, act, job_filters


@click.command("cancel", short_help="End jobs.")
@job_filters
@pass_session
def command(session: Session, chosen: Chosen) -> int:
    """End each JOB (an id, an array, its members 12_[3-7], or a unique name), or all jobs that match every filter: SIGTERM, its
    grace, SIGKILL.

    Filters may choose jobs of any user. Before jobs chosen by filters are ended, a question on the terminal says how
    many they are, and of whom; without a terminal --yes is needed.

    \b
    tide cancel 17 18
    tide cancel 12_[3-7]
    tide cancel --user ada --state queued
    tide cancel --all --yes
    """
    client = session.client()
    done = ("is being cancelled", "are being cancelled")
    return act(client, chosen, BulkAction("cancel", client.cancel, done[0], done, {}))
