"""``tide export``: the journal as lines of JSON."""

from __future__ import annotations

import sys

import click

from .session import Session, pass_session


@click.command("export", short_help="Write the journal out, for tide replay elsewhere.")
@click.option(
    "--with-environment", is_flag=True, help="With the values of jobs' environment variables, secrets among them."
)
@pass_session
def command(session: Session, with_environment: bool) -> None:
    """Write the journal of the running controller to stdout: a header, then one line of JSON per turn.

    `tide replay FILE` reads it, on any machine. The names of jobs' environment variables are in it, their values are
    not, unless --with-environment is given; command lines are as they were submitted.
    """
    for chunk in session.client().journal(with_environment):
        sys.stdout.buffer.write(chunk)
