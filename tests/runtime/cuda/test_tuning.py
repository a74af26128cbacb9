"""Choices of the autotuner are made once for both compilations of a model."""

from __future__ import annotations

from typing import Any

import pytest

from tidewright.runtime.cuda.tuning import same_choices


@pytest.fixture
def codecache() -> Any:
    """Imported with the tests, for it takes seconds."""
    return pytest.importorskip("torch._inductor.codecache", reason="PyTorch is not installed")


class Choice:
    def __init__(self, key: str) -> None:
        self.key = key

    def hash_key(self) -> str:
        return self.key


def test_what_was_measured_once_is_not_measured_again(monkeypatch: pytest.MonkeyPatch, codecache: Any) -> None:
    """Another process has written the file meanwhile, without our entries."""
    monkeypatch.setattr(codecache.PersistentCache, "get_local_cache", lambda self: {})
    monkeypatch.setattr(codecache.PersistentCache, "update_local_cache", lambda self, cache: None)
    times = iter(range(1, 100))
    asked: list[list[Choice]] = []

    def measure(choices: list[Choice]) -> dict[Choice, float]:
        asked.append(choices)
        return {choice: float(next(times)) for choice in choices}

    def look_up(keys: str, inputs: str = "1x1", benchmark: Any = measure) -> dict[str, float]:
        choices = [Choice(key) for key in keys]
        found = codecache.PersistentCache().lookup(choices, "mm", inputs, benchmark)
        return {choice.key: time for choice, time in found.items()}

    with same_choices():
        assert look_up("ab", benchmark=None) == {} and not asked
        assert look_up("ab") == look_up("ab") == {"a": 1.0, "b": 2.0}
        assert look_up("b", benchmark=None) == {"b": 2.0}
        assert look_up("ab", "2x2") == {"a": 3.0, "b": 4.0}
        assert look_up("abc") == {"a": 5.0, "b": 6.0, "c": 7.0}, "one that is new: all are measured, side by side"
    assert look_up("ab") == {"a": 8.0, "b": 9.0}, "outside each is as before"
