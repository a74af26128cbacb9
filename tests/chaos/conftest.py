from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: SIGKILL, unlike a power cut, spares what was written but not synced."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="tidewright-", dir=shared))
    yield made
    shutil.rmtree(made)
