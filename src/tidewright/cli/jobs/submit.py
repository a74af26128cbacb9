"""``tide submit``: jobs from a file."""

from __future__ import annotations

from pathlib import Path

import click

from .. import output as out
from ..session import Session, pass_session
from .following import finish, submission_options
from .following import submit as send


@click.command("submit", short_help="Submit jobs from a file.", context_settings={"allow_interspersed_args": False})
@submission_options
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1)
@pass_session
def command(
    session: Session,
    file: Path,
    arguments: tuple[str, ...],
    wait: bool,
    follow: bool,
    dry_run: bool,
    parsable: bool,
    hold: bool,
) -> int:
    """Submit the jobs of FILE: a YAML spec, or a script with #SBATCH lines (ARGUMENTS are then the script's).

    Every mistake in the file is reported at once, with its line, and nothing is submitted. Options of sbatch that
    are not honoured are named in warnings. Both are described in docs/jobs.md.
    """
    from ...app.jobspec.load import load
    from ...app.jobspec.submission import check_program, submitter

    loaded = load(file, submitter(), arguments)
    for warning in loaded.warnings:
        out.note(f"warning: {warning}")
    if session.url is None:
        seen = set()
        for spec in loaded.specs:
            if (spec.command, spec.workdir) not in seen:
                seen.add((spec.command, spec.workdir))
                check_program(spec)
    ids: list[int] = []
    at = 0
    for size in loaded.groups:
        ids += send(session, loaded.specs[at : at + size], dry_run, parsable, hold)
        at += size
    return finish(session, ids, follow, wait, quiet=parsable)
