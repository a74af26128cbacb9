from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import controllers_forked

from .stub import Terminal


@pytest.fixture
def tide(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys, tmp_path)


@pytest.fixture(autouse=True)
def _controllers_are_forked() -> Iterator[None]:
    """test_up_down also starts them as a user does."""
    with controllers_forked():
        yield
