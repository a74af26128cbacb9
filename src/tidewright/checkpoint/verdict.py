"""What a driver says of a save before it is tried. Standard library only: the benches of a bare checkout use the CUDA driver."""

from __future__ import annotations

from typing import NamedTuple


class DriverVerdict(NamedTuple):
    """Whether a save would be tried, and if not why, in words for the user."""

    ok: bool
    reason: str = ""
