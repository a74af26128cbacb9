"""``tide version``."""

from __future__ import annotations

import click

from ..base.errors import TideError
from .session import Session, pass_session


@click.command("version", short_help="Print versions.")
@pass_session
def command(session: Session) -> None:
    """Print the version of the command, and of the controller when one answers."""
    from .. import __version__

    click.echo(f"tide {__version__}")
    try:
        click.echo(f"controller {session.client().info().version}")
    except TideError:
        click.echo("controller: none answers")
