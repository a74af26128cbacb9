"""Adding an image to the store: read its files, leave out zero pages and pages the store has, pack the rest, keep the recipe.

Where pages are new, but the same content lies in the store shifted by less than a page, they are cut there (shifted_dedup.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.errors import UsageError
from .index import NO_HASHES, Runs, first_of_each
from .keys import PAGE, Hashes, TenantKey
from .manifest import FileEntry, Recipe, Shift
from .pack import PackWriter
from .shifted_dedup import NO_ANCHORS, AnchorHashes, ShiftedRange, ShiftSearch, anchor_hashes, words_of

SEGMENT = 4 * 2**20
"""Bytes read and hashed at a time; they stay in the processor's cache for the second look."""
_ONE = np.zeros(1, np.intp)


class Pieces(NamedTuple):
    """What a segment is cut into, zeros left out: where each begins and ends, and what it is."""

    starts: NDArray[np.intp]
    ends: NDArray[np.intp]
    hashes: Hashes

    def some(self, which: slice | NDArray[Any]) -> Pieces:
        """Those at some positions, or for which a flag is set."""
        return Pieces(self.starts[which], self.ends[which], self.hashes[which])


class ImageIngest:
    """One image as it is added. ``known`` are the pages that the store has, ``seen`` anchor hashes of the image's other ranks."""

    def __init__(self, key: TenantKey, known: Runs, writer: PackWriter, seen: AnchorHashes) -> None:
        self._key, self._known, self._writer = key, known, writer
        self._search = ShiftSearch(key, self._has, seen)
        self._anchor_hashes: list[AnchorHashes] = [NO_ANCHORS]
        self._fresh = Runs()
        self._buffer = bytearray(SEGMENT)
        self.raw_bytes = self.new_bytes = 0
        self.files: list[FileEntry] = []
        self.recipes: list[Recipe] = []
        self.directories: list[tuple[str, int]] = []

    @property
    def anchor_hashes(self) -> AnchorHashes:
        """Those of the files added so far."""
        return np.concatenate(self._anchor_hashes)

    def run(self, source: Path) -> None:
        """Add everything below ``source``. Raises UsageError for what is neither file nor directory."""
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
        offsets, hashes = [np.empty(0, np.intp)], [NO_HASHES]
        shifts: list[Shift] = []
        for segment in self._segments(path):
            hasher.update(segment)
            pieces, shifted_ranges = self._cut(segment)
            offsets.append(pieces.starts + size)
            hashes.append(pieces.hashes)
            shifts += [(one.first + size // PAGE, one.end + size // PAGE, one.shift) for one in shifted_ranges]
            size += len(segment)
        recipe = Recipe(np.concatenate(offsets), np.vstack(hashes))
        self.raw_bytes += size
        self.recipes.append(recipe)
        self.files.append(
            FileEntry(
                path=name, size=size, mode=mode, hash=hasher.hexdigest(), pages=len(recipe.offsets),
                shifts=tuple(shifts),
            )
        )  # fmt: skip

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

    def _cut(self, segment: memoryview) -> tuple[Pieces, list[ShiftedRange]]:
        """Cut a segment, and hand what is new to the writer."""
        at = used_pages(segment)
        hashes = self._key.pages(segment, at)
        new = ~self._has(hashes)
        pieces = Pieces(at * PAGE, np.minimum((at + 1) * PAGE, len(segment)), hashes)
        shifted_ranges = self._search.shifted_ranges(segment, at[new])
        if shifted_ranges:
            pieces = self._recut(segment, pieces, shifted_ranges)
            new = ~self._has(pieces.hashes)
        whole = (pieces.starts % PAGE == 0) & (pieces.ends - pieces.starts == PAGE)
        self._anchor_hashes.append(anchor_hashes(segment, pieces.starts[whole] // PAGE))
        self._keep(segment, pieces, np.flatnonzero(new))
        return pieces, shifted_ranges

    def _recut(self, segment: memoryview, pieces: Pieces, shifted_ranges: list[ShiftedRange]) -> Pieces:
        """The pieces of a segment, those of shifted ranges in the place of pages."""
        parts, at = [], 0
        for one in shifted_ranges:
            low, high = np.searchsorted(pieces.starts, [one.first * PAGE, one.end * PAGE]).tolist()
            parts += [pieces.some(slice(at, low)), self._pieces(segment, one)]
            at = high
        starts, ends, hashes = zip(*parts, pieces.some(slice(at, None)), strict=True)
        return Pieces(np.concatenate(starts), np.concatenate(ends), np.vstack(hashes))

    def _pieces(self, segment: memoryview, shifted_range: ShiftedRange) -> Pieces:
        """A short piece, whole pages, and a short piece."""
        first, end, shift, hashes = shifted_range
        cuts = np.concatenate(([first * PAGE], np.arange(first, end) * PAGE + shift, [end * PAGE]))
        head, tail = (segment[a:b] for a, b in (cuts[:2].tolist(), cuts[-2:].tolist()))
        used = np.concatenate(([any(head)], ~self._search.is_zero(hashes), [any(tail)]))
        hashes = np.vstack((self._key.pages(head, _ONE), hashes, self._key.pages(tail, _ONE)))
        return Pieces(cuts[:-1], cuts[1:], hashes).some(used)

    def _has(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which pages the store has, or will have when this image is in."""
        return self._known.knows(hashes) | self._fresh.knows(hashes)

    def _keep(self, segment: memoryview, pieces: Pieces, candidates: NDArray[np.intp]) -> None:
        """Hand pieces that are new, once each, to the writer."""
        new = pieces.some(candidates[first_of_each(pieces.hashes[candidates])])
        if not len(new.starts):
            return
        self._fresh = self._fresh.plus(new.hashes)
        lengths = (new.ends - new.starts).astype(np.uint16)
        self.new_bytes += int(lengths.sum(dtype=np.int64))
        self._writer.add((segment[a:b] for a, b in _joined(new)), lengths, new.hashes)


def used_pages(segment: memoryview) -> NDArray[np.intp]:
    """Numbers of the pages that are not all zero."""
    whole = len(segment) // PAGE
    used = np.flatnonzero(words_of(segment).any(axis=1))
    return np.append(used, whole) if any(segment[whole * PAGE :]) else used


def _joined(pieces: Pieces) -> Iterator[tuple[int, int]]:
    """Byte ranges of neighbouring pieces."""
    breaks = np.flatnonzero(pieces.starts[1:] != pieces.ends[:-1])
    starts, ends = pieces.starts[np.append(0, breaks + 1)], pieces.ends[np.append(breaks, -1)]
    yield from zip(starts.tolist(), ends.tolist(), strict=True)
