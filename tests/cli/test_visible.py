"""What others wrote cannot steer the terminal of those who read it."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tidewright.cli import output as out
from tidewright.cli.output import Column
from tidewright.cli.visible import visible, visible_json

_EVIL = "\x1b[2J\x9b1m\r\x07\u202e\u2028\n\t\x7f"


def _steers(text: str) -> bool:
    return any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in text)


@given(st.text())
def test_nothing_that_steers_is_left_and_nothing_else_is_changed(text: str) -> None:
    shown = visible(text)
    assert not _steers(shown) and (shown == text or _steers(text))
    assert visible(shown) == shown
    assert not _steers(visible(text, lines=True).replace("\n", "").replace("\t", ""))


@given(st.dictionaries(st.text(), st.text()))
def test_json_means_the_same(value: dict[str, str]) -> None:
    for ascii in (False, True):
        shown = visible_json(json.dumps(value, ensure_ascii=ascii, indent=2))
        assert json.loads(shown) == value and not _steers(shown.replace("\n", ""))


def test_tables_facts_remarks_and_json_are_escaped(capsys) -> None:  # type: ignore[no-untyped-def]
    columns = [Column[str]("A", lambda row: row), Column[str]("B", lambda row: row)]
    table = out.plain_table([_EVIL], columns)
    assert not _steers(table.replace("\n", "")) and table.count("\n") == 2 and r"\x1b[2J" in table
    assert out.table_text([_EVIL], columns) == table, "no terminal: the same"
    out.print_facts([("name", _EVIL)])
    out.note(_EVIL)
    out.echo(_EVIL)
    out.print_json({"name": _EVIL})
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert text and not _steers(text.replace("\n", "").replace("\t", ""))
