"""``tide drain``."""

from __future__ import annotations

import click

from .. import output as out
from ..session import Session, pass_session


@click.command("drain", short_help="Keep new work off a node.")
@click.argument("node")
@click.option("--why", default="", metavar="TEXT", help="Shown by tide nodes and tide why.")
@pass_session
def command(session: Session, node: str, why: str) -> None:
    """Keep new work off NODE. What runs there runs on; let it take work again with `tide undrain NODE`."""
    reply = session.client().drain(node, why)
    out.echo(f"node {node} takes no new work; tide undrain {node} ends that")
    if reply.warning:
        out.note(f"warning: {reply.warning}")
