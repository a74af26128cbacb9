"""How many examples a property test tries."""

from __future__ import annotations

from hypothesis import settings


def examples(full: int) -> int:
    """``full`` of them in ``make test-full``, two of five in ``make test``: the profiles are those of tests/conftest.py."""
    return max(1, full * settings.default.max_examples // 100) if settings.default is not None else full
