"""Tables in the width of a terminal, whole in a pipe, and the columns that --format names."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.cli import output as out
from tidewright.cli.fit import GAP, Slot, cells, closed, fitted, shorten
from tidewright.cli.jobs import ps
from tidewright.cli.pool import images, nodes, top
from tidewright.cli.runtime import CLIENTS, RUNTIMES
from tidewright.cli.serve import serve

from .stub import NOW, Terminal, running, waiting

NAME = "train-resnet152-imagenet-augmented-large"
_SENTENCE = re.compile(r"job 1|\d of \d|vision: |4 restarts|  |2023-")
"""Lines around tables, which a terminal breaks like any text."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
slots = st.builds(
    Slot, st.integers(1, 60), st.sampled_from([0, 4, 10]), st.integers(0, 3), st.booleans()
)  # fmt: skip


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Stdout is a terminal of 80 columns, without colours."""
    _is_terminal(monkeypatch, True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    return monkeypatch


def _is_terminal(patch: pytest.MonkeyPatch, value: bool) -> None:
    """Of the class: pytest makes another stream for the test itself."""
    patch.setattr(type(sys.stdout), "isatty", lambda stream: value, raising=False)


@given(st.text(), st.integers(0, 30), st.booleans())
def test_a_shortened_text_has_its_beginning_and_fits(text: str, width: int, tail: bool) -> None:
    short = shorten(text, width, tail)
    assert cells(short) <= max(0, width)
    assert short == text or not width or (cells(text) > width and "…" in short)


def test_what_is_shortened_in_the_middle_keeps_its_end() -> None:
    assert shorten("train-resnet152-imagenet-large", 16, tail=True) == "train-resn…large"
    assert shorten("sweep-of-many-things[117]", 12, tail=True) == "sweep-o…117]"
    assert shorten("waits for devices", 9) == "waits fo…"


def test_wide_and_combining_characters_are_counted_as_they_are_shown() -> None:
    assert cells("日本") == 4 and cells("e\u0301") == 1 and cells("é") == 1 and cells("🚀x") == 3
    assert shorten("日本語学習", 6) == "日本…" and cells(shorten("日本語学習", 6)) == 5
    assert shorten("aaaae\u0301", 4, tail=True) == "aa…e\u0301"


@given(st.lists(slots, min_size=1, max_size=9), st.integers(1, 300))
def test_columns_fit(columns: list[Slot], width: int) -> None:
    widths = fitted(columns, width)
    shown = [own for own in widths if own]
    assert sum(shown) + GAP * (len(shown) - 1) <= width
    natural = sum(column.natural + GAP for column in columns) - GAP
    assert (widths == [column.natural for column in columns]) == (natural <= width)


def test_names_are_shortened_before_a_column_is_left_out_and_the_least_important_first() -> None:
    columns = [Slot(4), Slot(40, 10, tail=True), Slot(8, leave=1), Slot(9, leave=2)]
    assert fitted(columns, 67) == [4, 40, 8, 9]
    assert fitted(columns, 50) == [4, 23, 8, 9]
    assert fitted(columns, 36) == [4, 20, 8, 0]
    assert fitted(columns, 20) == [4, 14, 0, 0]
    assert fitted(columns, 12) == [4, 6, 0, 0], "narrower than all of that: the end of a line is cut"


def lines(said: str) -> list[str]:
    return _COLOUR.sub("", said).splitlines()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize(
    "line",
    [
        "ps",
        "nodes",
        "usage",
        "rates",
        "top --once",
        "why later",
        "serve ls",
        "serve ls vision",
        "ps --format name,command",
    ],
)
def test_no_line_of_a_table_is_wider_than_the_terminal(
    tide: Terminal, terminal: pytest.MonkeyPatch, line: str, width: int
) -> None:
    terminal.setenv("COLUMNS", str(width))
    terminal.delenv("NO_COLOR")
    tide.stub.listing = (running(name=NAME, command="x" * 300), waiting(name="later", why="y" * 300, reason=""))
    tables = [text for text in lines(tide(*line.split()).out) if not _SENTENCE.match(text)]
    assert tables and all(cells(text) <= width for text in tables)


def test_facts_are_broken_between_words_on_a_terminal(tide: Terminal, terminal: pytest.MonkeyPatch) -> None:
    tide.stub.listing = (running(name="later", why="waits for " + "devices " * 30 + "x" * 100),)
    said = lines(tide("show", "later").out)
    state = next(at for at, text in enumerate(said) if text.startswith("state"))
    assert said[state + 1].startswith(" " * 12 + "devices") and "x" * 100 in "".join(said), "a path can be copied"
    assert all(cells(text) <= 80 or text.strip() == "x" * 100 for text in said)
    _is_terminal(terminal, False)
    assert any(len(text) > 250 for text in lines(tide("show", "later").out))


def test_ps_in_80_columns_shortens_names_and_leaves_out_preemptions(
    tide: Terminal, terminal: pytest.MonkeyPatch
) -> None:
    tide.stub.listing = (running(name=NAME),)
    head, row = lines(tide("ps").out)
    assert "PREEMPTED" not in head and "FRACTION" in head and re.search(r"train-r\w+…\S*large  premium", row)
    assert NAME in tide("ps", "-o", "wide").out and "COMMAND" in tide("ps", "-o", "wide").out
    _is_terminal(terminal, False)
    assert NAME in tide("ps").out and "PREEMPTED" in tide("ps").out, "in a pipe: whole, however narrow"


def test_names_that_steer_a_terminal_or_run_from_right_to_left(tide: Terminal, terminal: pytest.MonkeyPatch) -> None:
    tide.stub.listing = (running(name="a\x1b[2J\nb\u202e"), waiting(name="שלום"), waiting(name="日本語"))
    first, hebrew, wide = lines(tide("ps").out)[1:]
    assert r"a\x1b[2J\nb" in first and "\u202e" not in first
    assert "שלום\u200e" in hebrew, "the figures behind it stay where they are"
    at = [cells(text[: text.index("premium" if text is first else "basic")]) for text in (first, hebrew, wide)]
    assert len(set(at)) == 1
    assert closed("plain") == "plain"
    _is_terminal(terminal, False)
    assert "\u200e" not in tide("ps").out


def test_format_chooses_columns_in_order(tide: Terminal) -> None:
    assert tide("ps", "--format", "state,ID").out == "STATE    ID\nrunning  17\nqueued   18\n"
    assert tide("ps", "--no-headers", "--format", "command").out == "python train.py\npython train.py\n"
    assert tide("nodes", "--format", "node,host-memory", "--no-headers").out.split()[0] == "n1"
    unknown = tide("ps", "--format", "id,help")
    assert unknown.code == 2 and "no column 'help'; there are id, name, tier, team" in unknown.err
    assert tide("ps", "--format", "id", "-o", "json").code == 2
    assert tide("ps", "--format", "").code == 2
    assert json.loads(tide("ps", "-o", "json").out)["jobs"], "a later command does not see the option"


LISTS: dict[str, list[out.Column[Any]]] = {
    "ps": ps.columns(NOW), "nodes": nodes.COLUMNS, "images": images.IMAGES, "verify": images.FINDINGS, "top": top.JOBS,
    "devices": top.DEVICES, "clients": top.CLIENTS, "runtime top": CLIENTS, "runtime ls": RUNTIMES, "services": serve.SERVICES,
    "replicas": serve.REPLICAS,
}  # fmt: skip


@pytest.mark.parametrize("table", sorted(LISTS))
def test_columns_have_names_of_their_own_and_fit_80_columns(table: str) -> None:
    columns = LISTS[table]
    keys = [column.key for column in columns]
    assert len(set(keys)) == len(keys) and all(re.fullmatch(r"[a-z_]+", key) for key in keys)
    turns = [column.leave for column in columns if column.leave]
    assert len(set(turns)) == len(turns), "the order in which columns are left out is stated"
    usual = [column for column in columns if not column.wide]
    widths = fitted([Slot(max(len(one.title), 14), one.least, one.leave) for one in usual], 80)
    assert all(own for own, one in zip(widths, usual, strict=True) if not one.leave), "what must be seen is"


def test_a_wide_rich_table_is_printed_in_parts(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.table import Table

    terminal.setenv("FORCE_COLOR", "1")
    grid = Table(title="figures", title_justify="left")
    for at in range(12):
        grid.add_column(f"column {at}", justify="right" if at else "left", no_wrap=True)
    grid.add_row("fifo", *(f"{at} figures" for at in range(1, 12)))
    out.print_whole(grid)
    said = lines(capsys.readouterr().out)
    assert all(cells(line) <= 80 for line in said) and not any("…" in line for line in said)
    heads = [line for line in said if "column 0" in line]
    assert len(heads) > 1 and sum("fifo" in line for line in said) == len(heads)
    assert all(sum(f"{at} figures" in line for line in said) for at in range(1, 12)) and "figures" in said[0]
    terminal.setenv("COLUMNS", "300")
    out.print_whole(grid)
    assert sum("column 0" in line for line in lines(capsys.readouterr().out)) == 1
