"""``tide submit``: jobs from a file, from stdin, or a command wrapped as a batch script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...base.errors import UsageError
from .. import output as out
from ..session import Session, pass_session
from .following import SubmittedJob, finish, say_left_out, submission_options
from .following import submit as send
from .submit_options import misplaced, override_options, overrides


@click.command("submit", short_help="Submit jobs from a file.", context_settings={"allow_interspersed_args": False})
@override_options
@click.option("--wrap", metavar="COMMAND", help="Submit this command line as a batch script, instead of a FILE.")
@submission_options
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), required=False)
@click.argument("arguments", nargs=-1)
@pass_session
def command(session: Session, /, **given: Any) -> int:
    """Submit the jobs of FILE: a YAML spec, or a script with #SBATCH lines (ARGUMENTS are then the script's). FILE - is stdin.

    Options stand before FILE, as in sbatch, and win over what it says: those of `tide run`, and sbatch's own spellings. Variables
    SBATCH_* are not read.

    Every mistake in the file is reported at once, with its line, and nothing is submitted. Options of sbatch that
    are not honoured are named in warnings. Both are described in docs/jobs.md and docs/slurm.md.

    \b
    tide submit sweep.yaml
    tide submit -g 4 --sla premium --time 2h --name big train.sbatch --epochs 3
    tide submit -N 2 --gres=gpu:4 -a 0-99%4 -d afterok:prep train.sbatch
    tide submit -g 2 --wrap 'python train.py | tee log'
    make-spec | tide submit -
    """
    from ...app.jobspec.load import load, wrapped
    from ...app.jobspec.submission import check_program, folder_to_be_made, submitter

    more = overrides(given)
    file, arguments, line = given["file"], given["arguments"], given["wrap"]
    if line is not None and file is not None:
        raise UsageError("--wrap submits a command line, and there is a file too", f"leave out {file}, or --wrap")
    if line is not None and not line.strip():
        raise UsageError("--wrap has no command", "write it like --wrap 'python train.py | tee log'")
    if line is None and file is None:
        raise UsageError("no file to submit", "name one, - for stdin, or give a command line with --wrap")
    loaded = wrapped(line, submitter(), more) if line is not None else load(file, submitter(), arguments, more)
    if odd := misplaced(arguments):
        out.note(f"note: {' '.join(odd)} after {file} goes to the script; options of tide submit stand before the file")
    say_left_out()
    for warning in loaded.warnings:
        out.note(f"warning: {warning}")
    if session.url is None:
        seen = set()
        for spec in loaded.specs:
            if (spec.command, spec.workdir) not in seen:
                seen.add((spec.command, spec.workdir))
                check_program(spec)
                if missing := folder_to_be_made(spec):
                    out.note(f"warning: {missing} does not exist; it is made when the job starts, for its output")
    jobs: list[SubmittedJob] = []
    at = 0
    for size, after in zip(loaded.groups, loaded.after, strict=True):
        jobs += send(session, loaded.specs[at : at + size], given["dry_run"], given["parsable"], after, given["hold"])
        at += size
    return finish(session, jobs, given["follow"], given["wait"], quiet=given["parsable"])
