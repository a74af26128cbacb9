"""``tide drain``."""

from __future__ import annotations

import time

import click

from ...base.errors import Conflict, NotFound
from ...wire.api import NodeView
from .. import output as out
from .. import words
from ..jobs.following import over_restarts
from ..progress import progress
from ..session import Session, pass_session
from ..types import DURATION

POLL_S = 0.2
TIME_IS_UP = 124


@click.command("drain", short_help="Keep new work off a node.")
@click.argument("node")
@click.option("--move", is_flag=True, help="Have jobs leave it that can go on elsewhere with all their work.")
@click.option("--wait", is_flag=True, help="Return when no job is left on it.")
@click.option(
    "--timeout", type=DURATION, metavar="TIME", help="With --wait: give up after this long, with exit code 124."
)
@click.option("--reason", "--why", "why", default="", metavar="TEXT", help="Shown by tide nodes and tide why.")
@pass_session
def command(session: Session, node: str, move: bool, wait: bool, timeout: int | None, why: str) -> int:
    """Keep new work off NODE. What runs there runs on; let it take work again with `tide undrain NODE`.

    With --move, jobs there are suspended into images and go on elsewhere as soon as there is room, at the step where they are.
    Jobs that can only be frozen in the memory of the node, or would start again from the beginning, are named and run on: wait
    for them, or end them with `tide cancel`. A job submitted with --level requeue starts again elsewhere.

    With --wait, the command returns when no job is on the node any more, running or suspended, and every image of a job that
    waits has a copy elsewhere: the node can be switched off then. It outlasts a restart of the controller; a command that is
    interrupted leaves the node drained.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is of --wait; give both")
    client = session.client()
    reply = client.drain(node, why, move)
    out.echo(f"node {node} takes no new work; tide undrain {node} ends that")
    if reply.warning:
        out.note(f"warning: {reply.warning}")
    return _wait(session, node, None if timeout is None else timeout / 1e6) if wait else 0


def _wait(session: Session, name: str, timeout: float | None) -> int:
    client, deadline = session.client(), None if timeout is None else time.monotonic() + timeout
    with progress(f"node {name}") as bar:
        while True:
            node = next((one for one in over_restarts(client.nodes, deadline).nodes if one.name == name), None)
            if node is None:
                raise NotFound(f"node {name} is gone", "list nodes with tide nodes")
            if node.state != "draining":
                raise Conflict(
                    f"node {name} is not drained any more: {node.state}", f"drain it again: tide drain {name}"
                )
            if not (node.jobs or node.suspended):
                break
            if deadline is not None and time.monotonic() > deadline:
                out.note(f"node {name} is not empty yet: {left(node)}")
                return TIME_IS_UP
            bar.update(text=f"node {name}: {left(node)}")
            time.sleep(POLL_S)
    out.echo(f"node {name} is empty")
    return 0


def left(node: NodeView) -> str:
    """The jobs that are still on a node, in words."""
    parts = [("running", node.jobs), ("suspended", node.suspended)]
    said = "; ".join(f"{what}: {words.ranges(tuple(sorted(jobs)))}" for what, jobs in parts if jobs)
    frozen = f" (those frozen in its memory wait for tide undrain {node.name}, or tide cancel)"
    return said + (frozen if node.suspended else "")
