"""What all tests share: property tests have no deadline, for a busy machine is no defect."""

from __future__ import annotations

import gc

from hypothesis import settings

settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")


def pytest_collection_finish() -> None:
    """The tests and all that they import stay until the end: no collection of garbage need look through them again."""
    gc.freeze()
