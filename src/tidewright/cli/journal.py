"""``tide journal``: the journal as lines of JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from ..base.errors import UsageError
from . import output as out
from .session import Session, pass_session


@click.group("journal", short_help="Write the journal out, for tide replay elsewhere.", no_args_is_help=True)
def command() -> None:
    """The journal of the running controller: all that happened and what was decided, from the first job on."""


@command.command("export", short_help="Write the journal out, for tide replay elsewhere.")
@click.option(
    "--redact", is_flag=True, help="With pseudonyms for names, commands, paths, hosts and all other words of users."
)
@click.option(
    "--with-environment", is_flag=True, help="With the values of jobs' environment variables, secrets among them."
)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@pass_session
def export(session: Session, redact: bool, with_environment: bool, file: Path | None) -> None:
    """Write the journal to FILE, or to stdout: a header, then one line of JSON per turn.

    `tide replay FILE` reads it, on any machine. The names of jobs' environment variables are in it, their values are
    not, unless --with-environment is given; command lines are as they were submitted.

    With --redact it can be given to others: users, teams, names of jobs, services and workloads, commands, paths and hosts are
    replaced by pseudonyms, drawn by a key that is kept nowhere; environments and output are left out. Equal words get equal
    pseudonyms; sizes, times, tiers and kinds of devices stay, and `tide replay` of it gives the same result.
    """
    if redact and with_environment:
        raise UsageError("--redact and --with-environment exclude each other", "leave one of them out")
    with _sink(file) as sink:
        for chunk in session.client().journal(with_environment, redact):
            sink.write(chunk)
    if file is not None and str(file) != "-":
        out.note(f"wrote {file}")


@contextmanager
def _sink(file: Path | None) -> Iterator[BinaryIO]:
    """Stdout, or a file that only its owner may read and that is there when it is whole."""
    if file is None or str(file) == "-":
        yield sys.stdout.buffer
        return
    if not file.name:
        raise UsageError(f"{str(file)!r} names no file", "name a file, or leave it out for stdout")
    if file.exists() and not file.is_file():
        yield from _opened(file)  # a pipe, or a device such as /dev/stdout
        return
    file = file.resolve()  # a link is written through, not replaced
    part = file.with_name(f".{file.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as sink:
            yield sink
        part.replace(file)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", "name a file in a directory of yours") from None
    finally:
        part.unlink(missing_ok=True)


def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        sink = file.open("wb")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", "name another file") from None
    with sink:
        yield sink


def _former() -> click.Command:
    """``tide export``, as it was called before."""

    def callback(session: Session, redact: bool, with_environment: bool, file: Path | None) -> None:
        out.note("tide export is now called tide journal export")
        click.get_current_context().invoke(export, redact=redact, with_environment=with_environment, file=file)

    return click.Command("export", params=export.params, callback=pass_session(callback), help=export.help, hidden=True)


former = _former()
