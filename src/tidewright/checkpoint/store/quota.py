"""What images take, and the most that a store may take: bytes are counted as they are written, and what is beyond is refused."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ...base.units import format_bytes
from .errors import StoreFull
from .names import ImageName

Room = Callable[[int], None]
"""Counts bytes about to be written, and raises StoreFull when there is no room for them."""
_OLDEST = 3
"""How many images a refusal names."""


class PutReport(Struct, frozen=True, kw_only=True):
    """``raw_bytes`` were read, ``new_bytes`` of them are pages not seen before, which take ``stored_bytes`` on disk."""

    raw_bytes: int
    new_bytes: int
    stored_bytes: int
    took_us: int


class ImageEntry(Struct, frozen=True, kw_only=True):
    """An image in the store. Sizes as in PutReport, counted when it was put; ``damage`` when it cannot be read."""

    name: ImageName
    made_us: int = 0
    raw_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    damage: str = ""


def room(quota_bytes: int, name: ImageName, held: Callable[[], int], listed: Callable[[], list[ImageEntry]]) -> Room:
    """Room for one image in a store that may take ``quota_bytes``; ``held`` are the bytes there, ``listed`` its images."""
    before, written = held(), 0

    def count(size: int) -> None:
        nonlocal written
        written += size
        if before + written > quota_bytes:
            raise StoreFull(_refusal(quota_bytes, name, before, listed()))

    return count


def _refusal(quota_bytes: int, name: ImageName, held: int, entries: list[ImageEntry]) -> str:
    oldest = sorted(entries, key=lambda entry: entry.made_us)[:_OLDEST]
    named = ", ".join(f"{one.name} ({format_bytes(one.stored_bytes)})" for one in oldest)
    what = f"; the oldest images are {named}" if named else ""
    return (
        f"{name} does not fit: the image store may hold {format_bytes(quota_bytes)} and holds {format_bytes(held)}"
        f"{what}. Nothing was dropped: end jobs whose images are not needed, collect garbage (tide images gc), or"
        " allow more"
    )
