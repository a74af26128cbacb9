"""``tide hold``."""

from __future__ import annotations

import click

from ..session import Session, pass_session
from .selection import BulkAction, Chosen, act, job_filters


@click.command("hold", short_help="Keep waiting jobs from starting.")
@job_filters
@pass_session
def command(session: Session, chosen: Chosen) -> int:
    """Keep each waiting JOB (an id or a unique name), or all that match every filter, from starting until `tide release`.

    It keeps its place in the queue. A job that was preempted is kept from coming back. One that has devices is not
    touched: `tide suspend` has it release them. To submit a job that is held from the beginning: `tide run --hold`.
    """
    client = session.client()
    all_done = ("is held; tide release lets it start", "are held; tide release lets them start")
    return act(
        client, chosen, BulkAction("hold", client.hold, "is held; tide release {job} lets it start", all_done, {})
    )
