from __future__ import annotations

from pathlib import Path

import pytest

from .stub import Terminal


@pytest.fixture
def tide(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys, tmp_path)
