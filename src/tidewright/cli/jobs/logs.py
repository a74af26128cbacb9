"""``tide logs``: a rank's output as it was written, byte for byte, or that of all ranks as lines that say whose they are."""

from __future__ import annotations

import re
import sys

import click
from click.core import ParameterSource

from ...base.errors import UsageError
from ...wire.calls.job_refs import Ref
from .. import output as out
from ..session import Session, pass_session

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")
_PREFIX = re.compile(rb"^\[rank (\d+)\]", re.MULTILINE)


@click.command("logs", short_help="Print or follow a job's output.")
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("-r", "--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Whose output.")
@click.option("--all-ranks", is_flag=True, help="Every rank's, as lines that begin with [rank N].")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this attempt only. Default: of all.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Start N lines before the end.")
@pass_session
@click.pass_context
def command(
    ctx: click.Context, session: Session, job: str, follow: bool, rank: int, all_ranks: bool, attempt: int | None,
    tail: int | None,
) -> None:  # fmt: skip
    """Print the output (stdout and stderr) of one rank of JOB (an id, a member of an array 12_3, or a unique name),
    over all its attempts; of ended jobs too.

    Of a job with several ranks, --all-ranks prints one after the other, with -f line by line as they come (of a progress bar its
    last form). One rank's output is printed as it was written, byte for byte.
    """
    given = ctx.get_parameter_source("rank") is not ParameterSource.DEFAULT
    if given and all_ranks:
        raise UsageError("--rank and --all-ranks exclude each other", "leave one of them out")
    if not given and not all_ranks:
        say_others(session, job)
    copy_log(session, job, None if all_ranks else rank, follow, tail, attempt or 0)


def say_others(session: Session, job: Ref) -> None:
    """On stderr that only rank 0 of a job's ranks is printed, where it has more."""
    found = session.client().lookup(job)
    if found.job.ranks > 1 and found.array is None:
        out.note(f"rank 0 of {found.job.ranks}; --all-ranks shows all of them, --rank N one")


def copy_log(
    session: Session, job: Ref, rank: int | None = 0, follow: bool = False, tail: int | None = None, attempt: int = 0
) -> None:
    """A rank's output to stdout; of all ranks (``rank`` None) with coloured prefixes on a terminal."""
    sink = sys.stdout.buffer
    coloured = rank is None and out.colourful()
    for chunk in session.client().logs(job, rank=rank, follow=follow, tail=tail, attempt=attempt):
        sink.write(_PREFIX.sub(_coloured, chunk) if coloured else chunk)
        sink.flush()


def _coloured(prefix: re.Match[bytes]) -> bytes:
    colour = _COLOURS[int(prefix[1]) % len(_COLOURS)]
    return click.style(prefix[0].decode(), fg=colour).encode()
