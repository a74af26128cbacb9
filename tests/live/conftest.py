from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .fakes import FakeFabric
from .harness import Running


@pytest.fixture
def running(tmp_path: Path) -> Callable[..., Running]:
    """``with running() as server:`` a controller on a fresh (or the same) state directory."""

    def start(fabric: FakeFabric | None = None, **more: object) -> Running:
        return Running(tmp_path / "state", fabric or FakeFabric(), **more)  # type: ignore[arg-type]

    return start
