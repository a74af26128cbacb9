"""``tide setup``: what else this machine can be given."""

from __future__ import annotations

from pathlib import Path

import click

from .. import output as out
from ..progress import progress


@click.group("setup", short_help="Get what this machine lacks.", no_args_is_help=True)
def command() -> None:
    """Get what this machine lacks, without touching the system."""


@command.command("criu", short_help="CRIU, for full images of jobs.")
@click.option("--prefix", type=click.Path(file_okay=False, path_type=Path), help="Where to unpack it.")
@click.option("--check", is_flag=True, help="Only say whether there is one that works; exit code 1 if not.")
def criu(prefix: Path | None, check: bool) -> int:
    """Get CRIU, with which jobs can be suspended to disk, moved to other nodes and brought back after a failure.

    A CRIU 4.1 or later (4.2 from Linux 6.16 on) of the system's own is used when it works. Otherwise the distribution's
    newer package is unpacked, with all its libraries, into a directory of yours (by default
    ~/.local/share/tidewright/criu, or what TIDEWRIGHT_CRIU names); nothing is installed into the system. Taking images
    needs root all the same.
    """
    from ...app import criu as app

    found = app.find(prefix)
    if found.version:
        click.echo(f"CRIU {found.version} works here: {found.where}")
        return 0
    if check:
        click.echo(found.why)
        return 1
    with progress("looking for packages") as bar:
        where = app.install(prefix, lambda text: bar.update(text=text or None))
    found = app.find(prefix)
    click.echo(f"CRIU is in {where}")
    if found.version:
        click.echo(f"CRIU {found.version} works here; agents started from now on take full images")
        return 0
    out.note(f"note: {found.why}")
    return 0
