"""The page that ``make leaderboard`` writes, of made results, and the bars that ``bench/promises.py`` prints."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.sim.comparison.made import cell, comparison
from tidewright.sim.comparison.cells import ComparisonGroup, Settings

ROOT = Path(__file__).parents[3]


def loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(load: str, tiers: str = "3", estimates: str = "exact") -> Settings:
    return (("trace", "philly:10000"), ("load", load), ("tiers", tiers), ("estimates", estimates), ("costs", "1s"))


def real(**sla: float) -> tuple[ComparisonGroup, ...]:
    loads = ("as the trace has it", "0.8", "2")
    cells = [
        cell(policy, settings=settings(load, tiers), kept=sla.get("kept", 0.9) if policy == "sla" else 0.8)
        for tiers in ("1", "3") for load in loads for policy in ("sla", "srsf")
    ]  # fmt: skip
    return comparison(*cells).groups


def made(kept: float) -> tuple[ComparisonGroup, ...]:
    cells = [
        cell(policy, f"seed {seed}", settings=(("trace", f"made {load}"),), kept=kept if policy == "sla" else 0.5)
        for load in (0.8, 1.0, 1.2) for policy in ("sla", "fifo") for seed in (1, 2, 3)
    ]  # fmt: skip
    return comparison(*cells).groups


def test_the_page_has_every_table_and_the_verdict() -> None:
    tool = loaded("tools/leaderboard.py")
    page = tool.page(real(), made(0.9), False)
    assert "`sla` meets the bar in 6 of 6 cells" in page
    assert "### Three tiers, exact run times, images of 1 s" in page and "### One tier, exact run times" in page
    assert len(re.findall(r"^\|(?: [^|`]+ \|)? `sla` \|", page, re.MULTILINE)) == 6 + 3 and "### Load 1.2" in page
    svg = tool.plot(tool.sections(real())[tool.PLOTTED], "kept_by_work")
    assert svg.startswith("<?xml") and "srsf" in svg


def test_the_check_fails_where_sla_is_behind() -> None:
    tool = loaded("tools/leaderboard.py")
    assert tool.behind(real(), made(0.9)) == []
    assert tool.behind(real(kept=0.7), made(0.9)) == ["kept, count 10.0% below srsf", "kept, work 10.0% below srsf"]
    assert tool.behind(real(), made(0.5)) == ["fifo at load 0.8", "fifo at load 1", "fifo at load 1.2"]


def test_bench_prints_the_bar_above_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    bench = loaded("bench/promises.py")
    (group,) = comparison(
        *(cell(name, settings=settings("1.5"), kept=kept) for name, kept in (("sla", 0.7), ("las", 0.8)))
    ).groups
    bench.show(group)
    head, bar, sla, las = capsys.readouterr().out.strip().splitlines()
    assert head.startswith("three · 1.5 · exact · 1s: kept, count 10.0% below las")
    assert "count  79.0 %" in bar and "1.00/h" in bar
    assert "count  70.0 %" in sla and "count  80.0 %" in las
