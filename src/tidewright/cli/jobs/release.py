"""``tide release``."""

from __future__ import annotations

import click

from ..session import Session, pass_session
from .selection import BulkAction, Chosen, act, job_filters


@click.command("release", short_help="Let held jobs start.")
@job_filters
@pass_session
def command(session: Session, chosen: Chosen) -> int:
    """End the hold of each JOB (an id or a unique name), or of all that match every filter.

    It starts when the policy gives it devices. A suspension by `tide suspend` is ended as well, as by `tide resume`.
    """
    client = session.client()
    done = ("may start", "may start")
    return act(client, chosen, BulkAction("release", client.release, done[0], done, {}))
