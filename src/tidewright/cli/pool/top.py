"""``tide top``: the pool at a glance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from ...base.units import counted, format_bytes
from ...wire.api import DeviceLoad, JobLoad, TopView
from .. import output as out
from .. import words
from ..output import Column
from ..runtime import CLIENTS as OF_ONE_RUNTIME
from ..session import Session, pass_session

T = TypeVar("T")
JOBS: list[Column[JobLoad]] = [
    Column("JOB", lambda job: str(job.job), right=True),
    Column("NAME", lambda job: job.name, least=10, tail=True),
    Column("TIER", lambda job: job.tier, leave=3),
    Column("STATE", lambda job: job.state, style=lambda job: out.STATE_STYLE.get(job.state, "")),
    Column("DEVICES", lambda job: str(job.devices), right=True),
    Column("CPU", lambda job: f"{job.cpu_percent:.0f}%", right=True),
    Column("MEMORY", lambda job: format_bytes(job.memory) if job.memory else "-", right=True, leave=2),
    Column("STEPS", lambda job: str(job.steps) if job.steps >= 0 else "-", right=True, leave=4),
    Column("FRACTION", lambda job: words.percent(job.fraction), right=True, leave=1),
]
DEVICES: list[Column[DeviceLoad]] = [
    Column("NODE", lambda load: load.node, least=10, tail=True),
    Column("DEVICE", lambda load: str(load.device), right=True),
    Column("BUSY", lambda load: meter(load.utilisation)),
    Column("MEMORY", lambda load: format_bytes(load.memory_used) if load.memory_used >= 0 else "-", right=True),
    Column("JOBS", lambda load: ",".join(map(str, load.jobs)) or "-", least=8),
]
_OF_ONE = {column.title: column for column in OF_ONE_RUNTIME}
CLIENTS: list[Column[dict[str, Any]]] = [
    Column("RUNTIME", lambda row: row["runtime"], least=8, tail=True),
    *(_OF_ONE[title] for title in ("CLIENT", "CLASS", "WAITING", "DONE")),
    Column("PREEMPTIONS/S", lambda row: f"{row['preemptions_per_s']:.1f}", right=True, leave=1),
    _OF_ONE["MODELS"],
]


@click.command("top", short_help="Watch devices and jobs live.")
@click.option("--once", is_flag=True, help="Print once and return; the default in a pipe.")
@out.json_option
@pass_session
def command(session: Session, once: bool, output: str) -> None:
    """Show devices, what they do and for whom, every two seconds until Ctrl-C: jobs, and the clients of device runtimes."""
    client, clients = session.client(), _clients_of(session)
    if output == "json":
        out.print_json({**msgspec.to_builtins(client.top()), "clients": clients()})
    elif once or not out.colourful():
        view, found = client.top(), clients()
        out.echo(summary(view))
        if held := words.calibration(view.calibration):
            out.echo(held)
        out.echo("")
        out.print_table(view.loads, DEVICES)
        if view.jobs:
            out.echo("")
            out.print_table(view.jobs, JOBS)
        if found:
            out.echo("")
            out.print_table(found, CLIENTS)
    else:
        from ..watching import repeat

        repeat(lambda: _live(client.top(), clients()))


def _clients_of(session: Session) -> Callable[[], list[dict[str, Any]]]:
    """How to look at the clients of device runtimes: of those on this machine, for no others are asked."""
    if session.url is not None or not (session.state / "runtimes").is_dir():
        return list
    from ...app.runtime import ClientWatch

    return ClientWatch(session.state).look


def summary(view: TopView) -> str:
    """One line on the whole pool."""
    share = words.percent(view.held / view.devices) if view.devices else "0%"
    return (
        f"{view.held} of {counted(view.devices, 'device')} held ({share}); jobs: {view.running} running, {view.queued} waiting, "
        f"{view.suspended} suspended, {view.ended} ended"
    )


def meter(percent: float, width: int = 10) -> str:
    """``####······  42%``; "-" when it cannot be measured."""
    if percent < 0:
        return "-"
    full = round(min(100.0, percent) / 100 * width)
    return f"{'#' * full}{'·' * (width - full)} {percent:3.0f}%"


def _live(view: TopView, clients: list[dict[str, Any]]) -> Any:
    from rich.console import Group
    from rich.text import Text

    def table(rows: Sequence[T], columns: Sequence[Column[T]]) -> Text:
        return Text.from_ansi(out.table_text(rows, columns))

    runtimes = [Text(""), table(clients, CLIENTS)] if clients else []
    held = [Text(words.calibration(view.calibration))] if view.calibration else []
    return Group(
        Text(f"{words.at(view.now)}  {summary(view)}"), *held, Text(""), table(view.loads, DEVICES), Text(""),
        table(view.jobs, JOBS), *runtimes, Text("\nCtrl-C ends", style="dim"),
    )  # fmt: skip
