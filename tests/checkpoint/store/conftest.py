from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.checkpoint.store import ImageStore, ingest, pack


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs of some eighty pages and frames of eight, so that small images have several."""
    monkeypatch.setattr(pack, "PACK_BYTES", 160 * 1024)
    monkeypatch.setattr(pack, "FRAME_PAGES", 8)
    monkeypatch.setattr(ingest, "SEGMENT", 32 * 4096)
