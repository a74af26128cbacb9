"""``tide undrain``."""

from __future__ import annotations

import click

from ..session import Session, pass_session


@click.command("undrain", short_help="Let a node take work again.")
@click.argument("node")
@pass_session
def command(session: Session, node: str) -> None:
    """Let NODE take new work again."""
    client = session.client()
    before = next((one.state for one in client.nodes().nodes if one.name == node), "")
    client.undrain(node)
    click.echo(f"node {node} was not drained; it is up" if before == "up" else f"node {node} takes work again")
