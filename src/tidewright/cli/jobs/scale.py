"""``tide scale``."""

from __future__ import annotations

import click

from ...base.errors import UsageError
from ...base.units import counted
from .. import output as out
from .. import words
from ..session import Session, pass_session
from ..types import DURATION
from .wait_for_move import until


@click.command("scale", short_help="Run a job on fewer or more devices.")
@click.argument("job")
@click.argument("devices", metavar="[DEVICES]", required=False)
@click.option("--reset", is_flag=True, help="Back to the devices that it was submitted with.")
@click.option("--wait", is_flag=True, help="Wait until it runs on so many.")
@click.option("--timeout", type=DURATION, metavar="TIME", help="Give up waiting after this long, with exit code 124.")
@pass_session
def command(session: Session, job: str, devices: str | None, reset: bool, wait: bool, timeout: int | None) -> int:
    """Have a running JOB (an id or a unique name) run on DEVICES devices until the next tide scale.

    Its world size stays: on fewer devices its ranks share them by time slices, on the same data, with the same result.
    """
    wanted = _wanted(devices, reset)
    client = session.client()
    before = client.job(job)
    reply = client.scale(job, wanted)
    goal = wanted or before.devices
    out.echo(f"job {reply.job} is to run on {counted(goal, 'device')}")
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


def _wanted(devices: str | None, reset: bool) -> int:
    """The number asked for; 0 with ``--reset``. Raises UsageError for none of them, and for both."""
    if reset and devices is None:
        return 0
    if reset or devices is None or not devices.isdecimal() or len(devices) > 6 or not int(devices):
        found = "a number and --reset" if reset else f"{devices!r}" if devices is not None else "nothing"
        raise UsageError(f"not a number of devices: {found}", "write it like tide scale 17 2, or tide scale 17 --reset")
    return int(devices)


def _enough(held: int, wanted: int, least: int) -> bool:
    """With a number given, that number; without, whatever the policy gives it again."""
    return held == wanted if wanted else held >= least
