"""Taking an image in: read its files, leave out zero pages and pages the store has, pack the rest, keep the recipe."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...base.errors import UsageError
from .index import NO_HASHES, Runs, first_of_each
from .keys import PAGE, TenantKey
from .manifest import FileEntry, Recipe
from .pack import PackWriter, lengths_of

SEGMENT = 4 * 2**20
"""Bytes read and hashed at a time; they stay in the processor's cache for the second look."""
_WORDS = PAGE // 8


class Intake:
    """One image on its way in. ``known`` are the pages that the store has."""

    def __init__(self, key: TenantKey, known: Runs, writer: PackWriter) -> None:
        self._key, self._known, self._writer = key, known, writer
        self._fresh = Runs()
        self._buffer = bytearray(SEGMENT)
        self.raw_bytes = self.new_bytes = 0
        self.files: list[FileEntry] = []
        self.recipes: list[Recipe] = []
        self.directories: list[tuple[str, int]] = []

    def take(self, source: Path) -> None:
        """Everything below ``source``. Raises UsageError for what is neither file nor directory."""
        for path in sorted(source.rglob("*")):
            facts = path.lstat()
            name = path.relative_to(source).as_posix()
            if stat.S_ISDIR(facts.st_mode):
                self.directories.append((name, stat.S_IMODE(facts.st_mode)))
            elif stat.S_ISREG(facts.st_mode):
                self._file(path, name, stat.S_IMODE(facts.st_mode))
            else:
                raise UsageError(f"{path} is neither a file nor a directory", "an image holds nothing else")

    def _file(self, path: Path, name: str, mode: int) -> None:
        hasher, size = self._key.file(), 0
        numbers, hashes = [np.empty(0, np.intp)], [NO_HASHES]
        for segment in self._segments(path):
            hasher.update(segment)
            at = used_pages(segment)
            found = self._key.pages(segment, at)
            self._keep(segment, at, found)
            numbers.append(at + size // PAGE)
            hashes.append(found)
            size += len(segment)
        recipe = Recipe(np.concatenate(numbers), np.vstack(hashes))
        self.raw_bytes += size
        self.recipes.append(recipe)
        self.files.append(
            FileEntry(path=name, size=size, mode=mode, hash=hasher.hexdigest(), pages=len(recipe.numbers))
        )

    def _segments(self, path: Path) -> Iterator[memoryview]:
        """The file in pieces, each a whole number of pages but the last. Read, not mapped: it may shrink meanwhile."""
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while True:
                size = 0
                while size < SEGMENT and (got := file.readinto(memoryview(self._buffer)[size:])):
                    size += got
                if size:
                    yield memoryview(self._buffer)[:size]
                if size < SEGMENT:
                    return

    def _keep(self, segment: memoryview, at: np.ndarray, hashes: np.ndarray) -> None:
        """Hand the pages that are new, once each, to the writer."""
        candidates = np.flatnonzero(~(self._known.knows(hashes) | self._fresh.knows(hashes)))
        new = candidates[first_of_each(hashes[candidates])]
        if not len(new):
            return
        self._fresh = self._fresh.plus(hashes[new])
        lengths = lengths_of(len(segment))[at[new]]
        self.new_bytes += int(lengths.sum(dtype=np.int64))
        self._writer.add((segment[a:b] for a, b in _stretches(at[new], len(segment))), lengths, hashes[new])


def used_pages(segment: memoryview) -> np.ndarray:
    """Numbers of the pages that are not all zero."""
    whole = len(segment) // PAGE
    words = np.frombuffer(segment[: whole * PAGE], np.uint64).reshape(-1, _WORDS)
    used = np.flatnonzero(words.any(axis=1))
    return np.append(used, whole) if any(segment[whole * PAGE :]) else used


def _stretches(pages: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Byte ranges of neighbouring pages."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    for first, last in zip(
        pages[np.concatenate(([0], breaks))].tolist(), pages[np.concatenate((breaks, [len(pages)])) - 1].tolist(),
        strict=True,
    ):  # fmt: skip
        yield first * PAGE, min((last + 1) * PAGE, size)
