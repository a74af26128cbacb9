from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unmodified.pool import Pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two hosts under real daemons; their paths are short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="tide-um-") as root:
        made = Pool(Path(root))
        try:
            made.up()
            yield made
        finally:
            made.clean()
