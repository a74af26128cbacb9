"""``tide colocate`` as it is typed, and files of rates that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidewright.app.one_pool.question import read_curve
from tidewright.base.errors import UsageError
from tidewright.base.units import SECOND
from tidewright.cli.shell import tide

ASKED = [
    "colocate",
    "-t",
    "synthetic:jobs=60,load=3",
    "-c",
    "2x4",
    "--load-time",
    "3s",
    "--start-time",
    "10s",
    "--scale-down-delay",
    "20s",
]


def day(folder: Path, *rows: str) -> Path:
    path = folder / "day.csv"
    path.write_text("\n".join(("second,rate", *rows)))
    return path


def test_a_day_of_ones_own_as_json_and_as_a_table(tmp_path: Path) -> None:
    rates = str(day(tmp_path, *(f"{30 * at},{rate}" for at, rate in enumerate((1, 2, 5, 1)))))
    said = CliRunner().invoke(tide, [*ASKED, "--rates", rates, "-o", "json"], catch_exceptions=False)
    found = json.loads(said.stdout)
    assert (found["devices"], found["peak_replicas"], found["day_s"]) == (8, 3, 120.0)
    assert found["split"]["attainment"]["requests"] >= found["pool"]["attainment"]["requests"]
    assert {name: line[-1][1] for name, line in found["lines"].items()} == pytest.approx(
        {"wanted": 120 / 3600, "ready": 120 / 3600, "held": 120 / 3600}
    )
    said = CliRunner().invoke(tide, [*ASKED, "--rates", rates], catch_exceptions=False)
    assert "split for the peak" in said.output and "replicas were wanted" in said.output


@pytest.mark.parametrize(
    "rows", [(), ("0,1",), ("0,1", "10,2", "15,3"), ("10,1", "0,1"), ("0,x", "10,1"), ("0", "10"), ("0,0", "10,0")]
)
def test_a_file_without_a_curve_is_refused(tmp_path: Path, rows: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        read_curve(day(tmp_path, *rows))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (("0,1", "10,2,9"), "day.csv:3: 3 cells, but the header names 2 columns"),
        (("0,1", "10"), "day.csv:3: 1 cell, but the header names 2 columns"),
        (("0,x", "10,1"), "day.csv:2: could not convert"),
        (("0,1", '"10,2', "20,3"), "day.csv:3: a quote opens here"),
    ],
)
def test_mistakes_in_a_curve_are_named_by_their_lines(tmp_path: Path, rows: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_curve(day(tmp_path, *rows))


def test_a_curve_has_the_steps_of_its_file(tmp_path: Path) -> None:
    found = read_curve(day(tmp_path, "60,1.5", "120,3", "180,0"))
    assert (found.rates, found.bin_us) == ((1.5, 3.0, 0.0), 60 * SECOND)


def test_what_does_not_fit_a_service_is_refused() -> None:
    for given, message in ((["-p", "sla,fifo"], "2 policies"), (["--served", "none"], "no packaged profile")):
        with pytest.raises(Exception, match=message):
            CliRunner().invoke(tide, [*ASKED, *given], catch_exceptions=False)
