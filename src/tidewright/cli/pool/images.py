"""``tide images``: the stored images of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...base.errors import UsageError
from ...base.units import counted, format_bytes
from .. import output as out
from .. import words
from ..output import Column
from ..progress import progress
from ..session import Session, pass_session

if TYPE_CHECKING:
    from ...app.images import FoundRow, ImageRow

IMAGES: list[Column[ImageRow]] = [
    Column("JOB", lambda row: str(row.job), right=True),
    Column("SERIAL", lambda row: str(row.serial), right=True),
    Column("RANK", lambda row: str(row.rank), right=True),
    Column("NODE", lambda row: row.node or "-", least=8, tail=True),
    Column("TENANT", lambda row: row.tenant or "-", wide=True),
    Column("SIZE", lambda row: format_bytes(row.size), right=True),
    Column("NEW", lambda row: format_bytes(row.new), right=True, leave=2),
    Column("STORED", lambda row: format_bytes(row.stored), right=True, leave=3),
    Column("MADE", lambda row: words.at(row.made), leave=1),
    Column("NOTE", lambda row: row.damage, least=12),
]
FINDINGS: list[Column[FoundRow]] = [
    Column("WHAT", lambda row: row.what),
    Column("NODE", lambda row: row.node or "-", least=8, tail=True),
    Column("LOST", lambda row: ",".join(row.images) or "-", least=8),
    Column("PATH", lambda row: row.path, wide=True),
    Column("PROBLEM", lambda row: row.problem, least=14),
]


@click.group("images", short_help="List, check and clean up stored images.", no_args_is_help=True)
@pass_session
def command(session: Session) -> None:
    """List, check and clean up the images of jobs that are stored on this machine.

    All of it may be done while agents run. An image goes when its job has ended or has newer ones.
    """
    if session.url is not None:
        raise UsageError("tide images looks at a state directory of this machine", "leave out --url")


@command.command("ls", short_help="List stored images.")
@click.argument("job", type=int, required=False)
@out.output_options(lambda given: IMAGES)
@pass_session
def ls(session: Session, job: int | None, output: str, headers: bool) -> None:
    """List the images in the stores, or those of JOB (an id).

    SIZE is what a rank's image was, NEW the part of it that no image before had, STORED what that takes on disk.
    """
    from ...app.images import listed

    found = listed(session.state, job)
    out.print_rows(found.images, IMAGES, output, headers, lambda row: f"{row.job}.{row.serial}.{row.rank}", found)
    if output in ("table", "wide") and headers:
        out.note(f"{counted(len(found.images), 'image')}; the stores take {format_bytes(found.stored)}")


@command.command("gc", short_help="Free what no image needs.")
@out.json_option
@pass_session
def gc(session: Session, output: str) -> None:
    """Remove pages that no image needs any more, and what killed processes left. Agents do it by themselves."""
    from ...app.images import collect

    with progress("cleaning up"):
        freed = collect(session.state)
    if output == "json":
        out.print_json(freed)
        return
    out.echo(
        f"freed {format_bytes(max(0, freed.freed))} ({counted(freed.packs, 'pack')}, "
        f"{counted(freed.leftovers, 'leftover')})"
    )
    for note in freed.notes:
        out.note(f"note: {note}")


@command.command("verify", short_help="Check every byte of the stores.")
@click.argument("job", type=int, required=False)
@out.output_options(lambda given: FINDINGS)
@pass_session
def verify(session: Session, job: int | None, output: str, headers: bool) -> int:
    """Read everything in the stores, or all that the images of JOB (an id) need, and compare it with its hashes.

    LOST are images, as JOB.SERIAL.RANK, that cannot be restored from here. The exit code is 1 when there are any.
    Damaged pages are stored anew with the next image that has them.
    """
    from ...app.images import verify as check

    with progress("reading the stores"):
        found = check(session.state, job)
    lost = {image for row in found.findings for image in row.images}
    if found.findings or output in ("json", "name"):
        out.print_rows(found.findings, FINDINGS, output, headers, lambda row: row.path, found)
    if output in ("table", "wide"):
        verdict = f"{len(lost)} of them damaged" if lost else "all sound"
        out.note(f"{counted(found.images, 'image')}, {verdict}" if found.images else "no images")
    return int(bool(lost))
