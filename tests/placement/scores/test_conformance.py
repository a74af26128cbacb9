"""Every placement score keeps the contract of docs/placement.md; the kit finds what breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sizes import examples
from tidewright.base.errors import UsageError
from tidewright.placement.scores.best_fit import BestFit
from tidewright.placement.scores.columns import NodeColumns, ShareRequest
from tidewright.placement.scores.fgd import FragmentationDescent
from tidewright.placement.scores.registry import make_score, placements
from tidewright.testing.placements import REQUESTS, check_score


@pytest.mark.parametrize("name", sorted(placements.names()))
def test_built_in_scores_keep_the_contract(name: str) -> None:
    check_score(lambda: make_score(name, REQUESTS), rounds=examples(8))


def test_settings_are_those_of_the_factory() -> None:
    check_score(FragmentationDescent, rounds=2, workload=REQUESTS, cover=0.5)
    wide, narrow = (make_score(f"fgd:cover={cover}", REQUESTS * 3) for cover in (1.0, 0.2))
    assert len(wide.typical.share) > len(narrow.typical.share)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="no setting 'size=3'"):
        make_score("fgd:size=3")
    with pytest.raises(UsageError, match="no setting 'workload"):
        make_score("fgd:workload=x")
    with pytest.raises(UsageError, match="did you mean 'best-fit'"):
        make_score("best-fitt")


def test_the_score_in_the_docs_keeps_it() -> None:
    text = (Path(__file__).parents[3] / "docs" / "placement.md").read_text()
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    check_score(names["WorstFit"], rounds=4, cpu_weight=0.1)


def test_a_package_adds_a_score_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip would install it: a module, and what its pyproject.toml says."""
    text = (Path(__file__).parents[3] / "docs" / "placement.md").read_text()
    (tmp_path / "mypackage.py").write_text(text.split("```python\n")[1].split("```")[0])
    registered = tmp_path / "mypackage-1.dist-info"
    registered.mkdir()
    (registered / "METADATA").write_text("Name: mypackage\nVersion: 1\n")
    (registered / "entry_points.txt").write_text("[tidewright.placements]\nworst-fit = mypackage:WorstFit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "worst-fit" in placements.names()
    assert make_score("worst-fit:cpu_weight=0.1").cpu_weight == 0.1  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="no setting 'gpu=1'"):
        make_score("worst-fit:gpu=1")


def test_a_plug_in_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halfdone.py").write_text("raise OSError('no licence')\n")
    registered = tmp_path / "halfdone-1.dist-info"
    registered.mkdir()
    (registered / "METADATA").write_text("Name: halfdone\nVersion: 1\n")
    (registered / "entry_points.txt").write_text("[tidewright.placements]\nhalf = halfdone:Half\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="'half' cannot be loaded from halfdone:Half: OSError: no licence") as caught:
        make_score("half")
    assert caught.value.remedy == "repair or uninstall the package halfdone"


@pytest.mark.parametrize(
    "text", ["best-fit:cpu=0", "best-fit:units=-1", "dot-product:cpu=0", "gpu-clustering:units=0", "fgd:cover=0",
             "fgd:cover=1.5", "fgd:cover=nan"],
)  # fmt: skip
def test_settings_out_of_bounds_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"setting \w+: Expected"):
        make_score(text, REQUESTS)


class Broken(BestFit):
    """One way to break the contract each."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Any:
        self.calls += 1
        found = super().score(nodes, request, draw).astype(np.float64)
        if self.how == "counts its calls":
            return found + self.calls
        if self.how == "ranks":
            return np.argsort(np.argsort(found, kind="stable")).astype(np.float64)
        if self.how == "not a number":
            return found * np.nan
        if self.how == "writes":
            nodes.cpu[:] = 0
        return found

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        found = super().pick(nodes, request, draw)
        return {"too few": found[1:], "no room": tuple(range(request.devices))}.get(self.how, found)


@pytest.mark.parametrize("how", ["counts its calls", "ranks", "not a number", "writes", "too few", "no room"])
def test_the_kit_finds_what_breaks_it(how: str) -> None:
    with pytest.raises(AssertionError):
        check_score(Broken, rounds=4, how=how)
