"""Fixtures of tests that take full images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.site import Site, criu_or_skip


@pytest.fixture
def site(tmp_path: Path):
    made = Site(tmp_path, criu_or_skip())
    yield made
    made.clean()
