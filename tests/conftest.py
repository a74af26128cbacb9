"""What all tests share: property tests have no deadline, for a busy machine is no defect; ring 3 loads only what it needs."""

from __future__ import annotations

import functools
import gc
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile("quick")  # --hypothesis-profile full, as of make test-full, is read after this

MARK = "mark.processes"


@functools.cache
def _says_so(path: Path) -> bool:
    return MARK in path.read_text()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without tests of real processes take seconds to import, in each worker of a run that selects only such tests."""
    only_processes = str(config.option.markexpr).startswith("processes")
    if only_processes and collection_path.match("test_*.py") and not _says_so(collection_path):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file that does not name the mark of its tests would never be run by ring 3."""
    silent = {item.path for item in items if item.get_closest_marker("processes") and not _says_so(item.path)}
    if silent:
        raise pytest.UsageError(f"{', '.join(map(str, sorted(silent)))}: has tests of ring 3, and must say {MARK!r}")


def pytest_collection_finish() -> None:
    """The tests and all that they import stay until the end: no collection of garbage need look through them again."""
    gc.freeze()
