"""``tide scale``."""

from __future__ import annotations

import click

from ...base.errors import UsageError
from .. import output as out
from .. import words
from ..session import Session, pass_session
from ..types import DURATION
from .wait_for_move import until


@click.command("scale", short_help="Run a job on fewer or more devices.")
@click.argument("job")
@click.argument("devices", metavar="DEVICES")
@click.option("--wait", is_flag=True, help="Wait until it runs on so many.")
@click.option("--timeout", type=DURATION, metavar="TIME", help="Give up waiting after this long, with exit code 124.")
@pass_session
def command(session: Session, job: str, devices: str, wait: bool, timeout: int | None) -> int:
    """Have a running JOB (an id or a unique name) run on DEVICES devices until told otherwise; 0: as it was submitted.

    Its world size stays: on fewer devices its ranks take turns, on the same data, with the same result.
    """
    if not devices.isdecimal() or len(devices) > 6:
        raise UsageError(f"not a number of devices: {devices!r}", "write it like tide scale 17 2 (0: as submitted)")
    client = session.client()
    before = client.job(job)
    wanted = int(devices)
    reply = client.scale(job, wanted)
    goal = wanted or before.devices
    out.echo(f"job {reply.job} is to run on {goal} device{'s' if goal > 1 else ''}")
    if reply.warning:
        out.note(f"warning: {reply.warning}")
    if not wait:
        return 0
    found = until(
        client, reply.job, before, lambda view: _enough(view.held, wanted, before.min_devices or before.devices),
        None if timeout is None else timeout / 1e6,
    )  # fmt: skip
    if found is None:
        return 124
    out.echo(f"job {reply.job} runs on {words.places(found.where)}")
    return 0


def _enough(held: int, wanted: int, least: int) -> bool:
    """With a number given, that number; without, whatever the policy gives it again."""
    return held == wanted if wanted else held >= least
