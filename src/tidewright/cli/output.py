"""Printing: tables for people, lines for pipes, JSON for programs. No other file of this room formats a table."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click
import msgspec

from .visible import visible, visible_json

T = TypeVar("T")
FORMATS = ("table", "wide", "json", "name")
_LAST = 14
"""Fewest characters of a table's last column; a narrower terminal wraps the lines."""
_WIDEST = 10_000
STATE_STYLE = {
    "running": "green", "starting": "cyan", "resuming": "cyan", "queued": "yellow", "held": "yellow",
    "suspending": "magenta", "suspended": "magenta", "stopping": "magenta", "completed": "dim", "cancelled": "dim",
    "failed": "red", "timeout": "red", "up": "green",
    "ready": "green", "updating": "cyan", "deleting": "magenta", "draining": "yellow", "silent": "yellow", "down": "red",
}  # fmt: skip


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column: ``cell`` makes its text; ``wide`` shows it with -o wide only; ``style`` names a colour for a text."""

    title: str
    cell: Callable[[T], str]
    wide: bool = False
    right: bool = False
    style: Callable[[T], str] | None = None


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options ``-o`` and ``--no-headers``, passed as ``output`` and ``headers``."""
    command = click.option(
        "--no-headers", "headers", flag_value=False, default=True, help="Leave out the table's head."
    )(command)
    return click.option(
        "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print."
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option ``-o table|json`` of commands that print no list."""
    return click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
    )(command)


def print_json(reply: Any) -> None:
    """A message as indented JSON; it carries ``schema``."""
    click.echo(visible_json(msgspec.json.format(msgspec.json.encode(reply), indent=2).decode()))


def print_rows(
    rows: Sequence[T], columns: Sequence[Column[T]], output: str, headers: bool, name: Callable[[T], str], reply: Any
) -> None:
    """Rows in the format asked for; ``name`` is what ``-o name`` prints of each, ``reply`` what ``-o json`` does."""
    if output == "json":
        print_json(reply)
    elif output == "name":
        click.echo("".join(f"{name(row)}\n" for row in rows), nl=False)
    else:
        print_table(rows, [column for column in columns if output == "wide" or not column.wide], headers)


def print_table(rows: Sequence[T], columns: Sequence[Column[T]], headers: bool = True) -> None:
    """Coloured and cut to the terminal when there is one, whole and plain in a pipe."""
    if colourful():
        table = rich_table(rows, columns, headers)
        rich_console(at_least=table.width or 0).print(table, soft_wrap=True)
    else:
        click.echo(plain_table(rows, columns, headers), nl=False)


def colourful() -> bool:
    """Whether stdout is a terminal that wants colours (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def plain_table(rows: Sequence[T], columns: Sequence[Column[T]], headers: bool = True) -> str:
    """Columns aligned by spaces, two between, nothing cut."""
    lines = [[column.title for column in columns]] if headers else []
    lines += [[visible(column.cell(row)) for column in columns] for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    text = []
    for line in lines:
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        text.append("  ".join(cells).rstrip() + "\n")
    return "".join(text)


def rich_console(stderr: bool = False, at_least: int = 0) -> Any:
    """A rich console as wide as the terminal, or ``at_least`` so wide. Text is printed as it is: names may hold ``:a:`` and
    ``[x]``."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich calls this while it handles the error, and would exit with 1

    width = max(at_least, terminal_width())
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def print_whole(table: Any) -> None:
    """A rich table, as wide as it is where that is no terminal: nothing is cut in a pipe."""
    from rich.measure import Measurement

    console = rich_console()
    if not console.is_terminal:
        console.width = max(
            console.width, Measurement.get(console, console.options.update(max_width=1000), table).maximum
        )
    console.print(table)


def terminal_width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def rich_table(rows: Sequence[T], columns: Sequence[Column[T]], headers: bool = True) -> Any:
    """The same table for a terminal: when that is narrow, only the last column is cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=headers, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    left = terminal_width()
    for column in columns[:-1]:
        width = max([len(column.title) * headers, *(len(visible(column.cell(row))) for row in rows)])
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, min_width=width)
        left -= width + 2
    last = max(left, _LAST)
    table.add_column(columns[-1].title, no_wrap=True, overflow="ellipsis", max_width=last)
    for row in rows:
        table.add_row(
            *(Text(visible(column.cell(row)), style=column.style(row) if column.style else "") for column in columns)
        )
    table.width = min(terminal_width() - left + last, _WIDEST) if left < _LAST else None
    return table


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Aligned ``name  value`` lines; facts without a value are left out."""
    given = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        first, *rest = value.splitlines() or [""]
        echo(f"{name:<{width}}  {first}")
        for line in rest:
            echo(f"{'':<{width}}  {line}")


def echo(text: str) -> None:
    """Lines for a person, with text of others in them."""
    click.echo(visible(text, lines=True))


def note(text: str) -> None:
    """A remark for a person; on stderr, so that it never lands in a pipe."""
    click.echo(visible(text, lines=True), err=True)
