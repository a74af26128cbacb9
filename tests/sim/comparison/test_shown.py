"""A comparison as a table, JSON, Markdown and a page: order, intervals, accounts, names of others."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from rich.console import Console

from tests.sim.comparison.made import LOAD_2, cell, comparison
from tidewright.sim.comparison import page as page_module
from tidewright.sim.comparison.accounts import account, remarks
from tidewright.sim.comparison.cells import Cell, CellFailure, Comparison
from tidewright.sim.comparison.figures import FIGURES
from tidewright.sim.comparison.markdown import markdown_table
from tidewright.sim.comparison.page import comparison_page
from tidewright.sim.comparison.table import as_data, comparison_tables

HOSTILE = '<script>alert("x")</script>&$x$'


def two_loads(second: str = "las") -> Comparison:
    return comparison(
        *(cell(policy, f"seed {at}", settings=settings, jct_mean_s=float(100 + 7 * at), fragmentation=0.1, preemptions=3)
          for settings in (LOAD_2, (("trace", "made"), ("load", "1"))) for policy in ("sla", second) for at in (1, 2))
    )  # fmt: skip


def text_of(found: Comparison, wide: bool = True, columns: int = 0) -> str:
    console = Console(width=columns or 400, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(*comparison_tables(found, wide, columns))
    return console.export_text()


def test_rows_stand_in_the_order_asked_for() -> None:
    rows = re.findall(r"│ (\d)\s+│ (\w+)", text_of(two_loads()))
    assert rows == [("2", "sla"), ("2", "las"), ("1", "sla"), ("1", "las")]


def test_every_figure_is_in_the_wide_table_and_in_json() -> None:
    found = two_loads()
    head = text_of(found).splitlines()[2]
    (first, *_) = as_data(found)["groups"]
    assert all(figure.title in head for figure in FIGURES)
    assert set(first["policies"][0]["figures"]) == {figure.key for figure in FIGURES}
    assert first["policies"][0]["figures"]["jct_mean_s"]["half_width"] == pytest.approx(44.472, rel=1e-3)


def test_a_narrow_terminal_gets_two_tables_with_every_figure() -> None:
    text = text_of(two_loads(), wide=False, columns=100)
    assert (
        "…" not in text
        and text.count("policy") == 2
        and "100.0%" in text_of(comparison(cell("sla", kept=1.0)), columns=80)
    )


def test_one_replicate_has_no_interval() -> None:
    found = comparison(cell("sla"), cell("las"))
    assert "±" not in text_of(found)
    assert "±" in text_of(two_loads())


def test_every_job_is_accounted_for() -> None:
    cells = [
        cell("sla", f"seed {at}", jobs=100, completed=90, failed=1, refused=2, unfinished=7, refusals={"NeverFits": 2})
        for at in (1, 2)
    ]  # fmt: skip
    found = account(cells)
    assert (found.jobs, found.completed + found.failed + found.refused + found.unfinished) == (200, 200)
    assert remarks(comparison(*cells)) == [
        "sla: 14 unfinished at the horizon, 4 refused (NeverFits: 4), 2 failed, stopped or cancelled of 200 jobs are in no mean"
    ]
    assert "180 of 200" in text_of(comparison(*cells))


def test_a_policy_without_a_completed_job_is_shown_by_dashes() -> None:
    found = comparison(cell("none", completed=0))
    row = next(line for line in text_of(found, wide=False).splitlines() if "none" in line)
    assert row.count("–") >= 6
    data = json.loads(msgspec.json.encode(as_data(found)))
    assert data["groups"][0]["policies"][0]["figures"]["jct_mean_s"]["mean"] is None


def test_markdown_is_the_same_on_every_machine() -> None:
    found = two_loads()
    text = "\n".join(markdown_table(found.groups, ["load"]))
    assert text.count("| `las` |") == 2 and "planning" not in text
    slower = [msgspec.structs.replace(c, planning_s=99.0) for g in found.groups for p in g.policies.values() for c in p]
    assert "\n".join(markdown_table(comparison(*slower).groups, ["load"])) == text


def test_the_page_loads_nothing_and_has_every_plot() -> None:
    page = comparison_page(two_loads())
    assert (
        page.count("<svg") == 8 + 2
    )  # eight figures by load, and the distribution of completion times at each of two loads
    assert "http" not in page and "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert not re.search(r"url\((?!#|'#|\"#)", page)
    assert "Does any policy beat another in everything?" in page
    assert "Share of completed jobs by JCT" in page


@pytest.mark.full
def test_the_page_is_the_same_every_time() -> None:
    assert comparison_page(two_loads()) == comparison_page(two_loads())


def test_names_of_others_are_escaped_in_the_page() -> None:
    hostile = (("trace", HOSTILE), ("load", "1"))
    failure = CellFailure(
        cell=Cell(settings=hostile, policy=HOSTILE, replicate=HOSTILE), cause=HOSTILE, command=HOSTILE
    )
    found = comparison(
        cell(HOSTILE, settings=hostile), cell("sla", settings=(("trace", "b" + HOSTILE), ("load", "1"))),
        failures=(failure,), remarks=(HOSTILE,),
    )  # fmt: skip
    found = msgspec.structs.replace(found, command=HOSTILE)
    page = comparison_page(found)
    assert "<script" not in page
    assert "&lt;script&gt;" in page and page.count("$x$") > 5


def test_names_of_others_are_no_markup_of_the_terminal() -> None:
    name = "a[/b] [red]c"
    assert text_of(comparison(cell(name, settings=(("trace", name), ("load", "1"))))).count(name) == 2


def test_many_groups_leave_out_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        page_module, "by_load", lambda *_: ""
    )  # thirteen loads of each of eight figures are drawn for long
    cells = [cell("sla", settings=(("trace", "made"), ("load", f"{at}"))) for at in range(1, 14)]
    page = comparison_page(comparison(*cells))
    assert "distribution" not in page and "Share of completed jobs by JCT" not in page
