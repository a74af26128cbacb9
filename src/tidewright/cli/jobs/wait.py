"""``tide wait``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ...base.errors import Unreachable, UsageError
from ..session import Session, pass_session
from ..types import DURATION
from .each_job import failed
from .following import wait_for


@click.command("wait", short_help="Wait until jobs have ended.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--timeout", type=DURATION, metavar="TIME", help="Give up after this long, with exit code 124.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say how they ended.")
@pass_session
def command(session: Session, jobs: tuple[str, ...], timeout: int | None, quiet: bool) -> int:
    """Wait until every JOB (an id, an array, its members 12_[3-7], or a unique name) has ended; return the worst exit code of
    theirs.

    A JOB that does not exist is said at once; the others are waited for, and the exit code is 1 at least.
    """
    found, code = _known(session, list(dict.fromkeys(jobs)))
    return max(code, wait_for(session, found, None if timeout is None else timeout / 1e6, quiet))


def _known(session: Session, refs: Sequence[str]) -> tuple[list[str], int]:
    """Those of the references that mean something, and the exit code that the others are worth."""
    client, found, code = session.client(), [], 0
    for ref in refs:
        try:
            client.job(ref)
            found.append(ref)
        except Unreachable:
            raise
        except UsageError as error:
            code = failed(ref, error, len(refs))
    return found, code
