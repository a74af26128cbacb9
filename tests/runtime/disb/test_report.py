"""Tables and the page: complete, self-contained, and marked as a model's."""

from __future__ import annotations

import re
import sys
from functools import cache

import msgspec
import pytest
from rich.console import Console

from tests.runtime.disb.test_result import metered
from tidewright.base.errors import UsageError
from tidewright.runtime.disb import plots, report
from tidewright.runtime.disb.meter import preemption_figures
from tidewright.runtime.disb.result import DisbMatrix


@cache
def matrix() -> DisbMatrix:
    gate = msgspec.structs.replace(metered("gate", 6), preemption=preemption_figures([10_000, 50_000], [9_000], 0.0))
    other = msgspec.structs.replace(metered("gate", 7), workload="B<x>")
    return DisbMatrix("d", (metered("RT-only", 5), gate, other), (("clock", "1,980 MHz"),))


def text(found: object) -> str:
    console = Console(width=250, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(found)
    return console.export_text()


def test_the_table_has_every_run_and_says_what_it_is() -> None:
    found = text(report.table(matrix()))
    assert found.count("gate") == 2 and "RT-only" in found and "+20.0%" in found
    assert report.MODEL_NOTE in found
    assert all(name in found for name in report.NARROW)


def test_every_column_can_be_shown() -> None:
    names = tuple(name for name, _, _ in report.COLUMNS)
    assert len(set(names)) == len(names) and set(report.NARROW) <= set(names)
    assert "9 µs" in text(report.table(matrix(), names))


def test_the_page_is_self_contained() -> None:
    pytest.importorskip("matplotlib")
    page = report.html(matrix(), {"gate": "ours & <new>"})
    assert page.count("<svg") == 4 and report.MODEL_NOTE in page
    assert not re.search(r'(src|href)="(?!#)', page) and "http" not in page
    assert "ours &amp; &lt;new&gt;" in page and "B&lt;x&gt;" in page and "B<x>" not in page


def test_equal_results_are_equal_plots() -> None:
    pytest.importorskip("matplotlib")
    assert plots.draw("trade_off", matrix()) == plots.draw("trade_off", matrix())
    assert plots.draw_png("trade_off", matrix()).startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError) as caught:
        report.html(matrix())
    assert "tidewright[report]" in caught.value.remedy


def test_times_have_units() -> None:
    assert [report.microseconds(us) for us in (0, 12.4, 4_820, 250_000)] == ["–", "12 µs", "4.82 ms", "250 ms"]
