"""``tide wait``."""

from __future__ import annotations

import click

from ..session import Session, pass_session
from ..shell import INTERRUPTED
from ..types import DURATION
from .following import wait_for


@click.command("wait", short_help="Wait until jobs have ended.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--timeout", type=DURATION, metavar="TIME", help="Give up after this long, with exit code 124.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say how they ended.")
@pass_session
def command(session: Session, jobs: tuple[str, ...], timeout: int | None, quiet: bool) -> int:
    """Wait until every JOB (an id or a unique name) has ended; return the worst exit code of theirs."""
    try:
        return wait_for(session, jobs, None if timeout is None else timeout / 1e6, quiet)
    except KeyboardInterrupt:
        return INTERRUPTED
