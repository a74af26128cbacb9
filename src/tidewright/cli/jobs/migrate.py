"""``tide migrate``."""

from __future__ import annotations

import click

from ...wire.api import JobView
from .. import output as out
from .. import words
from ..session import Session, pass_session
from ..types import DURATION
from .wait_for_move import until


@click.command("migrate", short_help="Bring a job to other nodes.")
@click.argument("job")
@click.option("--to", "nodes", multiple=True, metavar="NODE", help="Where to; repeatable. Default: anywhere else.")
@click.option("--wait", is_flag=True, help="Wait until it runs there.")
@click.option("--timeout", type=DURATION, metavar="TIME", help="Give up waiting after this long, with exit code 124.")
@pass_session
def command(session: Session, job: str, nodes: tuple[str, ...], wait: bool, timeout: int | None) -> int:
    """Bring a running JOB (an id or a unique name) to other nodes; it goes on at the very step where it was.

    Refused, with nothing done, when all of it runs on the nodes named already.

    \b
    tide migrate 17                    anywhere but where it is
    tide migrate 17 --to host-2        there
    tide migrate 17 --to a --to b      its ranks on these two
    """
    client = session.client()
    before = client.job(job)
    reply = client.migrate(job, nodes)
    there = f"to {' and '.join(nodes)}" if nodes else "to other nodes"
    out.echo(f"job {reply.job} is being moved {there}")
    if reply.warning:
        out.note(f"warning: {reply.warning}")
    if not wait:
        return 0
    old = {place.node for place in before.where}

    def arrived(view: JobView) -> bool:
        now = {place.node for place in view.where}
        return now <= set(nodes) if nodes else now != old

    found = until(client, reply.job, before, arrived, None if timeout is None else timeout / 1e6)
    if found is None:
        return 124
    out.echo(f"job {reply.job} runs on {words.places(found.where)}")
    return 0
