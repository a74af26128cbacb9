"""What can go wrong with a stored image; all of it the world's fault, and all of it says which image is meant."""

from __future__ import annotations

from ...base.errors import WorldError
from ..files.space import FileSystemFull


class ImageMissing(WorldError):
    """There is no such image here (or there)."""


class ImageDamaged(WorldError):
    """An image cannot be restored as it was saved. ``problem`` says which file and what is wrong with it."""

    def __init__(self, image: str, problem: str) -> None:
        super().__init__(f"{image} is damaged: {problem}")
        self.problem = problem


class StoreFull(FileSystemFull):
    """The quota or the disk leaves no space for an image. No other image was dropped to free space."""
