"""``tide suspend``."""

from __future__ import annotations

import click

from ...base.units import agreeing, format_duration
from ...wire.api import ActionReply
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
    return each(jobs, lambda job: client.suspend(job, until), lambda reply: f"{_suspended(reply)}{tail}")


def _suspended(reply: ActionReply) -> str:
    """What becomes of a job, or of each of several, of which some had no devices to release."""
    devices = max(1, len(reply.jobs)) - reply.waiting
    if not reply.waiting:
        return "is being suspended"
    if not devices:
        return "has no devices, and is kept from starting"
    return f"is suspended: {devices} {agreeing(devices, 'releases its', 'release their')} devices, {reply.waiting} had none"
