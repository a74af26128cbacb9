"""Seeded random streams. Each purpose draws from its own stream, so adding a draw in one place changes no other."""

from __future__ import annotations

import hashlib
import random


def stream_seed(seed: int, *names: str | int) -> int:
    """A 64-bit seed for the stream ``names`` of ``seed``; equal on every machine and under every PYTHONHASHSEED."""
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def stream(seed: int, *names: str | int) -> random.Random:
    """A ``random.Random`` for one purpose, e.g. ``stream(7, "faults", "node-3")``."""
    return random.Random(stream_seed(seed, *names))
