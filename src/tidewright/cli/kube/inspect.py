"""``tide kube inspect``: who has how much of which GPU."""

from __future__ import annotations

import sys

import click

from .. import output as out
from .options import CONFIG, CONTEXT


@click.command("inspect", short_help="Who has how much of which GPU.")
@CONFIG
@CONTEXT
@click.option("-d", "--details", is_flag=True, help="A row per pod.")
@click.option("-o", "--output", type=click.Choice(["table", "wide", "json"]), default="table", show_default=True,
              help="wide: isolation, health, memory that fits no pod, heartbeats; with -d memory in use.")  # fmt: skip
@click.argument("node", required=False)
def command(kubeconfig: str, context: str, details: bool, output: str, node: str | None) -> None:
    """Show how the GPUs of the cluster, or of NODE, are shared: the table of kubectl inspect gpushare, whole in a pipe and with
    -o wide. On a terminal that is too narrow for it, its columns follow in several tables."""
    from ...app.kube.cluster import ClusterTarget, inspect_cluster

    form = {"json": "json", "wide": "wide details" if details else "wide"}.get(
        output, "details" if details else "summary"
    )
    width = out.terminal_width() if sys.stdout.isatty() else 0
    text, odd = inspect_cluster(ClusterTarget(kubeconfig, context), node or "", form, width)
    for line in odd:
        click.echo(f"passed over: {line}", err=True)
    click.echo(text, nl=False)
