"""Autotuning that chooses once: a model is compiled without gates and with them, and must add in the same order both times.

Inductor keeps the times it measured in one file for all processes. Two that write it at once lose entries; what is missing is
measured again, and another choice may win, whose sums differ in the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def same_choices() -> Iterator[None]:
    """Within this, the times of an operation's choices are measured, or read from the file, once."""
    from torch._inductor.codecache import PersistentCache

    look_up = PersistentCache.lookup
    measured: dict[tuple[str, str], dict[str, float]] = {}

    def remembered(self: Any, choices: list[Any], op: str, inputs: str, *rest: Any, **more: Any) -> dict[Any, float]:
        known = measured.get((op, inputs), {})
        keys = [choice.hash_key() for choice in choices]
        if all(key in known for key in keys):
            return {choice: known[key] for choice, key in zip(choices, keys, strict=True)}
        found: dict[Any, float] = look_up(self, choices, op, inputs, *rest, **more)
        if all(choice in found for choice in choices):
            measured.setdefault((op, inputs), {}).update(zip(keys, (found[choice] for choice in choices), strict=True))
        return found

    with mock.patch.object(PersistentCache, "lookup", remembered):
        yield
