from __future__ import annotations

from collections.abc import Iterator

import pytest

from .gang import PYTHON
from .warm import Warm


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """What ranks are forked from."""
    found = Warm(**PYTHON)
    yield found
    found.close()
