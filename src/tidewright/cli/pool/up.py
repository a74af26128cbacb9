"""``tide up``: a controller and its agents on this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import click

from ...base.errors import UsageError
from ...base.units import counted
from ...wire.api import Info, NodeList
from .. import output as out
from ..progress import progress
from ..session import Session, pass_session
from ..types import DURATION, IMAGE_QUOTA, LOG_LIMIT


def _absolute(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return os.path.abspath(value) if value and value != "none" else value


@click.command("up", short_help="Start Tidewright on this machine.")
@click.option(
    "--policy",
    metavar="NAME",
    help="Who runs: sla, fifo, fifo-backfill, fjf, sjf, smallest, srsf, srtf, las, static, gavel-fifo. Default: sla.",
)
@click.option(
    "--slots", type=click.IntRange(1, 64), metavar="N", help="CPU slots where there is no GPU. Default: one per core."
)
@click.option("--listen", metavar="HOST:PORT", help="Serve TCP too, for holders of DIR/token (see docs/trust.md).")
@click.option(
    "--tls-cert", callback=_absolute, metavar="FILE", help="Certificate chain for --listen; without, loopback only."
)
@click.option("--tls-key", callback=_absolute, metavar="FILE", help="Its key, readable by its owner only.")
@click.option("--jobs-as", metavar="USER", help="Run jobs as this account; root must name one to --listen.")
@click.option(
    "--hosts", "number", type=click.IntRange(1, 16), metavar="N",
    help="Keep N agents, each a node of its own with its share of the cores; --slots is then for each.",
)  # fmt: skip
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME[=SLOTS[:CORES]]",
    help="The same one by one: east=2:0-1; repeatable.",
)
@click.option(
    "--agent-socket", "sockets", multiple=True, metavar="PATH",
    help="Use an agent that runs already, by its socket; repeatable. None is started here then.",
)  # fmt: skip
@click.option("--images", metavar="URL", help="Copy job images there too (file, s3, …), not from node to node.")
@click.option(
    "--image-quota",
    type=IMAGE_QUOTA,
    metavar="SIZE",
    help="Keep at most so much of job images on each node; 0: no limit.",
)
@click.option(
    "--log-limit", type=LOG_LIMIT, metavar="SIZE",
    help="Keep at most so much of each rank's log, its beginning and its end; 0: all. [1GiB]",
)  # fmt: skip
@click.option("--node-timeout", type=DURATION, metavar="TIME", help="A node of several away for longer is down. [30s]")
@click.option(
    "--reset", is_flag=True, help="Forget the options of earlier starts: DIR/config.yaml and the defaults count."
)
@click.option("--foreground", is_flag=True, help="Stay in the foreground, for a service manager.")
@pass_session
def command(session: Session, /, foreground: bool, **given: Any) -> int:
    """Start the controller and the agents of this machine, and wait until they answer.

    Does nothing when they already run. Jobs of an earlier run are taken over. Options are remembered: what is not given here
    is as in the last start that gave it, else as in DIR/config.yaml. An option given now wins, is remembered in its turn, and
    restarts the agent when that is what it concerns; jobs run on. --listen none, --images none and --hosts 1 end what was
    given before, --reset forgets everything.
    """
    from ...app import remembered
    from ...app.access import check_options
    from ...app.hosts import chosen
    from ...app.settings import load_settings
    from ...app.start import AlreadyHeld, arguments, controller_pid, start_detached, wait_until_up

    _local_only(session)
    wanted = _options(given)
    pid = controller_pid(session.state)
    if pid is not None:
        return _already(session, pid, wanted, foreground)
    settings, before = load_settings(session.state), {} if given["reset"] else remembered.recall(session.state)
    chosen(given["hosts"], given["number"] or 0, given["sockets"], given["slots"] or settings.slots)
    now = {name: str(value) for name, value in wanted.items()}
    listen, tls = check_options(settings, remembered.merged(before, now))
    if not listen and any(now.get(name, "none") != "none" for name in ("tls_cert", "tls_key")):
        raise UsageError("--tls-cert and --tls-key are for --listen, which is not given", "add --listen HOST:PORT")
    argv = arguments(session.state, **wanted)
    if foreground:
        os.execv(argv[0], argv)
    starting = start_detached(session.state, argv)
    client = session.client()
    with progress("starting") as bar:
        try:
            info = wait_until_up(client, session.state, starting, bar.update)
        except AlreadyHeld as another:
            return _already(session, another.pid, wanted, foreground)
    out.echo(f"tidewright {info.version} is up (pid {info.pid}, policy {info.policy}, state in {info.state_dir})")
    _options_in_force(before, now)
    _summary(info, client.nodes(), f"http{'s' * tls}://{_reached(listen)}" if listen else "")
    return 0


def _reached(listen: str) -> str:
    """HOST:PORT that clients ask: for all addresses (0.0.0.0, [::]) this machine's name, which a certificate can carry."""
    host, _, port = listen.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "::", "[::]", "") else listen


def _options_in_force(before: dict[str, str], wanted: dict[str, str]) -> None:
    """Say which options come from earlier starts, and which of those are changed now."""
    from ...app import remembered

    for text in remembered.changes(before, wanted):
        out.echo(f"changed: {text}")
    if texts := remembered.inherited(before, wanted):
        out.echo(f"as in earlier starts: {', '.join(texts)} (tide up --reset forgets them)")


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, by the daemon's option names."""
    timeout = given["node_timeout"]
    asked = {
        "policy": given["policy"], "listen": given["listen"], "tls_cert": given["tls_cert"],
        "tls_key": given["tls_key"], "jobs_as": given["jobs_as"], "slots": given["slots"], "hosts": given["number"],
        "host": given["hosts"], "agent_socket": [str(Path(path).absolute()) for path in given["sockets"]],
        "images": given["images"],
        **{name: None if given[name] is None else str(given[name]) for name in ("image_quota", "log_limit")},
        "node_timeout": f"{timeout}us" if timeout is not None else None, "reset": given["reset"],
    }  # fmt: skip
    return {name: value for name, value in asked.items() if value}


def _local_only(session: Session) -> None:
    if session.url is not None:
        raise UsageError("tide up starts a controller on this machine", "leave out --url")


def _already(session: Session, pid: int, wanted: dict[str, Any], foreground: bool) -> int:
    """A second ``tide up`` is harmless, unless it asks for something else than what runs."""
    from ...app import remembered
    from ...app.start import answer_of

    client = session.client()
    info = answer_of(client, session.state, pid)
    kept = remembered.recall(session.state)
    other = {name for name in wanted if name != "policy" and kept.get(name) != str(wanted[name])}
    if foreground or other or wanted.get("policy", info.policy) != info.policy:
        raise UsageError(
            f"a controller already runs on {session.state} (pid {pid}, policy {info.policy})",
            "stop it first with tide down (jobs run on), or give another directory with --state",
        )
    out.echo(f"tidewright {info.version} is already up (pid {info.pid}, policy {info.policy})")
    _summary(info, client.nodes(), None)
    return 0


def _left_running(state: Path) -> None:
    """Name what jobs of a removed directory have left: their devices are not free, though they are said to be."""
    from ...app.health.removed import check_removed

    for found in check_removed(state):
        out.note(f"warning: {found.text}\n  {found.next}")


def _summary(info: Info, listing: NodeList, url: str | None) -> None:
    for node in listing.nodes:
        kind = "CPU slot" if node.kind == "cpu" else f"{node.kind} device"
        out.echo(f"node {node.name}: {counted(node.devices, kind)}, {node.free} free")
        if node.note:
            out.echo(f"  {node.note}")
    if listing.nodes and all(node.kind == "cpu" for node in listing.nodes):
        out.echo("  -g N takes N slots")
    if info.live_jobs:
        out.echo(f"{counted(info.live_jobs, 'live job')}; see tide ps")
    if info.agent != "connected":
        from ...app.start import log_tail

        out.note(f"warning: {info.agent}; what is not connected runs nothing")
        for log in sorted({Path(info.state_dir) / "agent.log", *Path(info.state_dir).glob("hosts/*/agent.log")}):
            if log.exists():
                out.note(f"the end of {log}:\n{log_tail(log.parent, 0, log.name, 3)}")
    for notice in info.notices:
        out.note(f"notice: {notice}")
    _left_running(Path(info.state_dir))
    if url:
        out.echo(f"listening: tide --url {url} --token-file {info.state_dir}/token ps")
    if not info.live_jobs:
        out.echo("try: tide run -- python -c 'print(\"hello\")'")
