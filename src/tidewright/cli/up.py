"""``tide up``: a controller and its agent on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..base.errors import UsageError
from ..wire.api import Info, NodeList
from . import output as out
from .progress import progress
from .session import Session, pass_session


@click.command("up", short_help="Start Tidewright on this machine.")
@click.option("--policy", metavar="NAME", help="Who runs: sla, fifo, fifo-backfill, srtf, las, static. Default: sla.")
@click.option(
    "--slots", type=click.IntRange(1, 64), metavar="N", help="CPU slots where there is no GPU. Default: one per core."
)
@click.option("--listen", metavar="HOST:PORT", help="Serve TCP too, for holders of DIR/token.")
@click.option("--foreground", is_flag=True, help="Stay in the foreground, for a service manager.")
@pass_session
def command(session: Session, policy: str | None, slots: int | None, listen: str | None, foreground: bool) -> int:
    """Start the controller and the agent of this machine, and wait until they answer.

    Does nothing when they already run. Jobs of an earlier run are taken over. Settings that are not given here come
    from DIR/config.yaml.
    """
    from ..app.settings import load_settings
    from ..app.start import arguments, controller_pid, start_detached, wait_until_up

    _local_only(session)
    pid = controller_pid(session.state)
    if pid is not None:
        return _already(session, pid, policy, slots, listen, foreground)
    load_settings(session.state)
    argv = arguments(session.state, policy, listen, slots)
    if foreground:
        os.execv(argv[0], argv)
    starting = start_detached(session.state, argv)
    client = session.client()
    with progress("starting") as bar:
        info = wait_until_up(client, session.state, starting, bar.update)
    click.echo(f"tidewright {info.version} is up (pid {info.pid}, policy {info.policy}, state in {info.state_dir})")
    _summary(info, client.nodes(), listen)
    return 0


def _local_only(session: Session) -> None:
    if session.url is not None:
        raise UsageError("tide up starts a controller on this machine", "leave out --url")


def _already(
    session: Session, pid: int, policy: str | None, slots: int | None, listen: str | None, foreground: bool
) -> int:
    """A second ``tide up`` is harmless, unless it asks for something else than what runs."""
    client = session.client()
    info = client.info()
    if foreground or slots or listen or (policy and policy != info.policy):
        raise UsageError(
            f"a controller already runs on {session.state} (pid {pid}, policy {info.policy})",
            "stop it first with tide down (jobs run on), or give another directory with --state",
        )
    click.echo(f"tidewright {info.version} is already up (pid {info.pid}, policy {info.policy})")
    _summary(info, client.nodes(), None)
    return 0


def _summary(info: Info, listing: NodeList, listen: str | None) -> None:
    for node in listing.nodes:
        kind = "CPU slots" if node.kind == "cpu" else f"{node.kind} devices"
        click.echo(f"node {node.name}: {node.devices} {kind}, {node.free} free")
        if node.note:
            click.echo(f"  {node.note}")
    if listing.nodes and all(node.kind == "cpu" for node in listing.nodes):
        click.echo("  -g N takes N slots")
    if info.live_jobs:
        click.echo(f"{info.live_jobs} live job{'s' if info.live_jobs > 1 else ''}; see tide ps")
    if info.agent != "connected":
        from ..app.start import log_tail

        log = Path(info.state_dir) / "agent.log"
        out.note(f"warning: no agent is connected, so nothing can run; the end of {log}:")
        out.note(log_tail(log.parent, 0, log.name, 3))
    for notice in info.notices:
        out.note(f"notice: {notice}")
    if listen:
        click.echo(f"listening on {listen}: tide --url http://{listen} --token-file {info.state_dir}/token ps")
    if not info.live_jobs:
        click.echo("try: tide run -- python -c 'print(\"hello\")'")
