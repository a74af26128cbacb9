"""How many examples a property test tries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings


def examples(full: int) -> int:
    """``full`` of them in ``make test-full``, a quarter of them in ``make test``: the profiles are those of tests/conftest.py."""
    return max(1, full * settings.default.max_examples // 100) if settings.default is not None else full


def seeds(full: int) -> list[Any]:
    """``range(full)`` to parametrize a test by: a quarter in ``make test``, all in ``make test-full``."""
    few = max(1, full // 4)
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(few, full))]


def matrix(cases: Iterable[tuple[tuple[Any, ...], bool]]) -> list[Any]:
    """Cases of several parameters: those with True in ``make test``, all in ``make test-full``."""
    return [pytest.param(*values, marks=() if quick else pytest.mark.full) for values, quick in cases]


@contextlib.contextmanager
def unshrunk() -> Iterator[None]:
    """In here the first example that fails is raised as it is: where a failure is wanted, the smallest is not looked for."""
    usual = settings.get_current_profile_name()
    settings.register_profile("unshrunk", settings.get_profile(usual), phases=(Phase.explicit, Phase.generate))
    settings.load_profile("unshrunk")
    try:
        yield
    finally:
        settings.load_profile(usual)
