"""Pages and tables that a command writes to files at its end. They are checked before its work, which may take hours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from ..base.errors import UsageError
from . import output as out

JOBS_OUT = "--jobs-out"
REPORT = "--report"


def report_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option ``--report FILE`` of commands that simulate."""
    kind = click.Path(path_type=Path)
    return click.option(REPORT, type=kind, metavar="FILE", help="Write an HTML page with plots too.")(command)


jobs_out_option = click.option(
    JOBS_OUT,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what became of each job to FILE (.csv, or packed: .csv.gz, .csv.zst, .csv.xz).",
)


def check_files(
    report: Path | None = None, jobs_out: Path | None = None, option: str = REPORT, reads: Iterable[object] = ()
) -> None:
    """Raise UsageError for files that could not be written or are among those that ``reads``, the values of options, name, and
    where matplotlib is missing for a page."""
    from ..app.output_file import check_apart, check_output, check_packed, check_plots

    texts = [str(value) for value in reads if value]
    if report is not None:
        check_plots()
        check_output(report, option)
        check_apart(report, option, texts)
    if jobs_out is not None:
        check_packed(jobs_out, JOBS_OUT)
        check_output(jobs_out, JOBS_OUT)
        check_apart(jobs_out, JOBS_OUT, texts)
    if report is not None and jobs_out is not None and os.path.realpath(report) == os.path.realpath(jobs_out):
        raise UsageError(f"{option} and {JOBS_OUT} name one file, {report}", "give two files")


def write_file(path: Path | None, content: Callable[[], bytes], option: str) -> None:
    """Write what ``content`` makes, if there is a path, and say so. Raises UsageError; what was there is still there then."""
    from ..app.output_file import write_output

    if path is not None:
        write_output(path, content(), option)
        out.note(f"wrote {path}")
