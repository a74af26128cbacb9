"""Printing: tables for people, lines for pipes, JSON for programs. No other file of this room formats a table."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from .fit import GAP, Slot, cells, closed, fitted, pad, shorten, wrapped
from .visible import visible, visible_json

T = TypeVar("T")
FORMATS = ("table", "wide", "json", "name")
_FORMAT = "tidewright.format"
"""Where the value of --format stands in click's context."""
_NARROWEST = 20
"""Cells that a fact's value has at least, however narrow the terminal."""
_UNBOUNDED = 10_000
"""Cells that no table takes."""
_STYLES: dict[str, dict[str, Any]] = {"bold": {"bold": True}, "dim": {"dim": True}}
STATE_STYLE = {
    "running": "green", "starting": "cyan", "resuming": "cyan", "queued": "yellow", "held": "yellow",
    "suspending": "magenta", "suspended": "magenta", "stopping": "magenta", "completed": "dim", "cancelled": "dim",
    "failed": "red", "timeout": "red", "up": "green",
    "ready": "green", "updating": "cyan", "deleting": "magenta", "draining": "yellow", "silent": "yellow", "down": "red",
}  # fmt: skip


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column: ``cell`` makes its text; ``wide`` shows it with -o wide only; ``style`` names a colour for a text.

    On a narrow terminal it may be shortened to ``least`` cells, with ``tail`` in the middle, and columns of a ``leave`` above 0
    are left out, the highest first.
    """

    title: str
    cell: Callable[[T], str]
    wide: bool = False
    right: bool = False
    style: Callable[[T], str] | None = None
    least: int = 0
    tail: bool = False
    leave: int = 0

    @property
    def key(self) -> str:
        """What --format calls it."""
        return self.title.partition("(")[0].lower().replace("/s", "_per_s").replace(" ", "_").replace("-", "_")


ColumnsOf = Callable[[Mapping[str, Any]], Iterable[Column[Any]]]
"""The columns of a list, by the options of its command."""


class _ColumnNames(click.ParamType[str]):
    """Names of columns between commas, which a shell completes."""

    name = "columns"

    def __init__(self, columns: ColumnsOf) -> None:
        self._columns = columns

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        begun, comma, last = incomplete.rpartition(",")
        keys = dict.fromkeys(column.key for column in self._columns(ctx.params))
        left = [key for key in keys if key.startswith(last.lower()) and key not in begun.split(",")]
        return [CompletionItem(begun + comma + key) for key in left]


def output_options(columns: ColumnsOf) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options ``-o`` and ``--no-headers``, passed as ``output`` and ``headers``, and ``--format``, for ``chosen_columns``.
    ``columns``: what --format may name."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option("--no-headers", "headers", flag_value=False, default=True, help="Leave out the table's head."),
            click.option("--format", "columns", type=_ColumnNames(columns), metavar="COLUMN,...", expose_value=False,
                         callback=_keep_format,
                         help="These columns, in this order, of those that -o wide shows; help names them."),
            click.option("-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True,
                         help="How to print; wide: every column, nothing shortened."),
        ):  # fmt: skip
            command = option(command)
        return command

    return add


def _keep_format(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta[_FORMAT] = value


def chosen_columns(columns: Sequence[Column[T]], output: str) -> list[Column[T]]:
    """Those that --format names, else those of ``output``. Raises click.BadParameter for others, with the ones that there are."""
    text = click.get_current_context().meta.get(_FORMAT)
    if text is None:
        return [column for column in columns if output == "wide" or not column.wide]
    if output in ("json", "name"):
        raise click.BadParameter(f"is of tables, not of -o {output}; leave one of them out", param_hint="'--format'")
    known = {column.key: column for column in columns}
    wanted = [word.strip().lower().replace("-", "_") for word in text.split(",")]
    unknown = [word for word in wanted if word not in known]
    if unknown:
        raise click.BadParameter(f"no column {unknown[0]!r}; there are {', '.join(known)}", param_hint="'--format'")
    return [replace(known[word], leave=0) for word in wanted]


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
    shown = chosen_columns(columns, output)
    if output == "json":
        print_json(reply)
    elif output == "name":
        click.echo("".join(f"{name(row)}\n" for row in rows), nl=False)
    else:
        print_table(rows, shown, headers, whole=output == "wide")


def print_table(rows: Sequence[T], columns: Sequence[Column[T]], headers: bool = True, whole: bool = False) -> None:
    """Coloured and fitted to the terminal where there is one, plain in a pipe; ``whole``, and in a pipe, nothing is shortened."""
    click.echo(table_text(rows, columns, headers, whole), nl=False, color=colourful())


def table_text(rows: Sequence[T], columns: Sequence[Column[T]], headers: bool = True, whole: bool = False) -> str:
    """The lines of a table for stdout, as ``print_table`` says."""
    width = None if whole or not sys.stdout.isatty() else terminal_width()
    return _laid_out(rows, columns, headers, width, colourful())


def colourful() -> bool:
    """Whether stdout is a terminal that wants colours (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def plain_table(rows: Sequence[T], columns: Sequence[Column[T]], headers: bool = True) -> str:
    """Columns aligned by spaces, two between, nothing shortened."""
    return _laid_out(rows, columns, headers, None, False)


def _laid_out(rows: Sequence[T], columns: Sequence[Column[T]], headers: bool, width: int | None, colours: bool) -> str:
    """Every line in at most ``width`` cells, if there is a width."""
    texts = [[visible(column.cell(row)) for column in columns] for row in rows]
    natural = [
        max([cells(column.title) * headers, *(cells(line[at]) for line in texts)]) for at, column in enumerate(columns)
    ]
    widths = natural
    if width is not None:
        slots = [
            Slot(own, column.least, column.leave, column.tail) for own, column in zip(natural, columns, strict=True)
        ]
        widths = fitted(slots, width)
    found = ""
    if headers:
        styles = ["bold" if colours else ""] * len(columns)
        found = _line([column.title for column in columns], columns, widths, styles)
    for row, line in zip(rows, texts, strict=True):
        styles = [column.style(row) if colours and column.style else "" for column in columns]
        if width is not None:
            short = zip(line, widths, columns, strict=True)
            line = [closed(shorten(text, own, column.tail)) for text, own, column in short]
        found += _line(line, columns, widths, styles)
    return found


def _line(texts: Sequence[str], columns: Sequence[Column[Any]], widths: Sequence[int], styles: Sequence[str]) -> str:
    found, last = [], max((at for at, width in enumerate(widths) if width), default=0)
    for at, (text, column, width) in enumerate(zip(texts, columns, widths, strict=True)):
        if width:
            cell = pad(shorten(text, width), width, column.right)
            found.append(_styled(cell.rstrip() if at == last else cell, styles[at]))
    return (" " * GAP).join(found).rstrip() + "\n"


def _styled(text: str, style: str) -> str:
    return click.style(text, **_STYLES.get(style, {"fg": style})) if style and text else text


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
    """A rich table; on a terminal that is too narrow, its columns in several tables one below the other, and in a pipe as wide
    as it is: no figure is cut."""
    from rich.measure import Measurement

    console = rich_console()
    if not console.is_terminal:
        console.width = max(
            console.width, Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).maximum
        )
    for part in _parts(table, console):
        console.print(part)


def _parts(table: Any, console: Any) -> list[Any]:
    """``table``, or its columns in several that fit; each begins with the names of the rows (the columns on the left of it)."""
    widths = [_column_width(table, at, console) for at in range(len(table.columns))]
    if sum(widths) + 1 <= console.width:
        return [table]
    names = next((at for at, column in enumerate(table.columns) if at and column.justify != "left"), 1)
    parts: list[list[int]] = [[]]
    for at in range(names, len(widths)):
        if parts[-1] and sum(widths[:names]) + sum(widths[one] for one in (*parts[-1], at)) + 1 > console.width:
            parts.append([])
        parts[-1].append(at)
    return [_with_columns(table, (*range(names), *part), title=not at) for at, part in enumerate(parts)]


def _column_width(table: Any, at: int, console: Any) -> int:
    """Cells of a column with the border on its left, where it may wrap at its narrowest."""
    from rich.measure import Measurement

    alone = _with_columns(table, (at,), title=False)
    found = Measurement.get(console, console.options.update(max_width=_UNBOUNDED), alone)
    return int(found.maximum if table.columns[at].no_wrap else found.minimum) - 1


def _with_columns(table: Any, columns: Sequence[int], title: bool) -> Any:
    part = copy(table)
    part.columns = [replace(table.columns[old], _index=new) for new, old in enumerate(columns)]
    part.title = table.title if title else None
    return part


def terminal_width() -> int:
    """Columns of the terminal (COLUMNS, else what it says); 80 where neither is known."""
    return shutil.get_terminal_size((80, 24)).columns


def print_facts(facts: Sequence[tuple[str, str]], empty: bool = False) -> None:
    """Aligned ``name  value`` lines, broken between words on a terminal; facts without a value only with ``empty``."""
    given = [(visible(name), visible(value, lines=True)) for name, value in facts if value or empty]
    width = max((cells(name) for name, _ in given), default=0)
    room = max(terminal_width() - width - GAP, _NARROWEST) if sys.stdout.isatty() else _UNBOUNDED
    for name, value in given:
        lines = [part for line in value.splitlines() for part in wrapped(line, room)] or [""]
        for at, line in enumerate(lines):
            click.echo(f"{pad(name if not at else '', width, right=False)}{' ' * GAP}{line}".rstrip())


def echo(text: str) -> None:
    """Lines for a person, with text of others in them."""
    click.echo(visible(text, lines=True))


def note(text: str) -> None:
    """A remark for a person; on stderr, so that it never lands in a pipe."""
    click.echo(visible(text, lines=True), err=True)
