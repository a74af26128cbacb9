"""``tide requeue``."""

from __future__ import annotations

import click

from ..session import Session, pass_session
from .selection import BulkAction, Chosen, act, job_filters


@click.command("requeue", short_help="End a job's run and queue it again.")
@job_filters
@click.option("--from-image", is_flag=True, help="It goes on from its latest image, not from its beginning.")
@click.option("-H", "--hold", is_flag=True, help="Keep it from starting until tide release.")
@pass_session
def command(session: Session, chosen: Chosen, from_image: bool, hold: bool) -> int:
    """End the run of each JOB (an id or a unique name), or of all that match every filter, and queue it again.

    As with scontrol requeue it starts from its beginning, whatever images there are of it. It keeps the time of its
    submission, and with it its place in the queue. Running, starting and suspended jobs can be requeued; one that has
    ended has to be submitted again.
    """
    client = session.client()
    held = ", and held; tide release {job} lets it start" if hold else ""
    done = ("is being requeued", "are being requeued")
    return act(
        client,
        chosen,
        BulkAction(
            "requeue", lambda job: client.requeue(job, from_image, hold), done[0] + held, done,
            {"from_image": from_image, "hold": hold},
        ),
    )  # fmt: skip
