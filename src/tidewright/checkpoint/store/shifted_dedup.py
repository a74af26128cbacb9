"""Content that two ranks have, but one of them shifted by less than a page: no page of it is equal to another.

While an image's ranks are added, what their pages begin with is remembered, as weak hashes: anchor hashes. Of pages that
the store does not have, a few are searched for anchor hashes wherever a tensor may begin. One that is found proposes a shift,
and pages cut at that shift decide: the store has them or not. Nothing depends on anchor hashes but the room an image takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .index import NO_HASHES
from .keys import PAGE, Hashes, TenantKey

AnchorHashes = NDArray[np.uint64]
NO_ANCHORS: AnchorHashes = np.empty(0, np.uint64)
STEP = 64
"""Bytes between places where an anchor hash may lie: PyTorch aligns its tensors to as many."""
EVERY = 32
"""Of so many pages that the store does not have, one is searched."""
LEAST = 8
"""Pages in a row that must match; fewer are hardly worth the two short pieces around them."""
MOST_MISSES = 32
"""A segment's search ends when more pages were hashed in vain: content made up to mislead must not make it slow."""
_BLOCK = 64
_JOBS = 8
_MOST = 2**18
"""Anchor hashes kept for a job: 2 MiB, which a cache can hold, and enough for 4 GiB; of more, every second one, or third."""
_WORDS = PAGE // 8
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
"""Odd, and otherwise arbitrary."""
_CHOSEN = np.uint64(2**62)
"""Of weak hashes, those below are anchor hashes: with a quarter of them a search takes half the time."""


class ShiftedRange(NamedTuple):
    """Pages ``first`` to before ``end`` of a segment are cut ``shift`` bytes later; ``hashes`` are those of whole pages."""

    first: int
    end: int
    shift: int
    hashes: Hashes


class RecentAnchors:
    """Anchor hashes of the images added last, one for each of a few jobs."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, AnchorHashes]] = {}
        self._guard = threading.Lock()

    def get(self, job: int, serial: int) -> AnchorHashes:
        """Those of an image's ranks so far, in order."""
        with self._guard:
            return self._get(job, serial)

    def _get(self, job: int, serial: int) -> AnchorHashes:
        known, anchor_hashes = self._kept.get(job, (serial, NO_ANCHORS))
        return anchor_hashes if known == serial else NO_ANCHORS

    def add(self, job: int, serial: int, more: AnchorHashes) -> None:
        """Another rank of an image is in."""
        with self._guard:
            found = np.sort(np.concatenate((self._get(job, serial), more)))
            found = found[np.diff(found, prepend=~found[:1]) != 0]
            self._kept.pop(job, None)
            self._kept[job] = serial, found[:: -(-len(found) // _MOST) or 1]
            while len(self._kept) > _JOBS:
                del self._kept[next(iter(self._kept))]


def anchor_hashes(segment: memoryview, pages: NDArray[np.intp]) -> AnchorHashes:
    """Those of whole pages. What begins with one or two words over and over is none: it would be found everywhere."""
    windows = words_of(segment)[pages, : len(_FACTORS)]
    weak = _weak(windows[windows[:, 0] != windows[:, 2]])
    return weak[weak < _CHOSEN]


def words_of(segment: memoryview) -> NDArray[np.uint64]:
    """The whole pages of a segment, as a row of words each."""
    return np.frombuffer(segment[: len(segment) // PAGE * PAGE], np.uint64).reshape(-1, _WORDS)


def _weak(windows: NDArray[np.uint64]) -> AnchorHashes:
    weak: AnchorHashes = windows @ _FACTORS
    return weak


class ShiftSearch:
    """Looks for shifted ranges. ``has`` says which pages the store has."""

    def __init__(self, key: TenantKey, has: Callable[[Hashes], NDArray[np.bool_]], known: AnchorHashes) -> None:
        self._key, self._has, self._known = key, has, known
        self._last = 0
        self._zero = key.pages(memoryview(bytes(PAGE)), np.zeros(1, np.intp))

    def shifted_ranges(self, segment: memoryview, missing: NDArray[np.intp]) -> list[ShiftedRange]:
        """Shifted ranges within pages that the store does not have, in order."""
        if not len(self._known) or len(missing) <= LEAST:
            return []
        free = np.zeros(len(segment) // PAGE + 1, bool)
        free[missing] = True
        free[-1] = False  # the last page may be short
        fits = free[:-1] & free[1:]
        found: list[ShiftedRange] = []
        vain = 0
        for page, hit in self._hits(segment, missing[missing < len(fits)]):
            shift = hit or self._last
            if not shift or not fits[page]:
                continue
            shifted_range, hashed = self._reach(segment[shift:], page, shift, fits)
            self._last = shift if shifted_range is not None else 0
            if shifted_range is not None:
                fits[max(shifted_range.first - 1, 0) : shifted_range.end] = False
                found.append(shifted_range)
            elif (vain := vain + hashed) > MOST_MISSES:
                break
        return found

    def _hits(self, segment: memoryview, missing: NDArray[np.intp]) -> list[tuple[int, int]]:
        """Pages searched, and shifts at which there is an anchor hash, in order. The shift 0 means: as it was before."""
        searched = missing[min(EVERY, len(missing)) // 2 :: EVERY]
        windows = words_of(segment)[searched].reshape(len(searched), PAGE // STEP, STEP // 8)[:, 1:, : len(_FACTORS)]
        weak = _weak(windows).ravel()
        chosen = np.flatnonzero(weak < _CHOSEN)
        weak = weak[chosen]
        at = np.minimum(np.searchsorted(self._known, weak), len(self._known) - 1)
        rows, steps = np.divmod(chosen[self._known[at] == weak], PAGE // STEP - 1)
        pages, found = np.append(searched, searched[rows]), np.append(0 * searched, (steps + 1) * STEP)
        return sorted(zip(pages.tolist(), found.tolist(), strict=True))

    def _reach(
        self, shifted: memoryview, page: int, shift: int, fits: NDArray[np.bool_]
    ) -> tuple[ShiftedRange | None, int]:
        """The shifted range around a page, if it is long enough; and how many pages were hashed to see."""
        ahead, some = self._matching(shifted, page + np.arange(_leading(fits[page:])))
        if not len(ahead):
            return None, some
        behind, more = self._matching(shifted, page - 1 - np.arange(_leading(fits[:page][::-1])))
        hashes = np.vstack((behind[::-1], ahead))
        first = page - len(behind)
        shifted_range = ShiftedRange(first, first + len(hashes) + 1, shift, hashes) if len(hashes) >= LEAST else None
        return shifted_range, some + more

    def _matching(self, shifted: memoryview, pages: NDArray[np.intp]) -> tuple[Hashes, int]:
        """Hashes of pages up to the first that the store does not have and that is not zero; how many were made."""
        parts, size, at = [NO_HASHES], 1, 0
        while at < len(pages):
            hashes = self._key.pages(shifted, pages[at : at + size])
            good = _leading(self._has(hashes) | self.is_zero(hashes))
            parts.append(hashes[:good])
            at += len(hashes)
            if good < len(hashes):
                break
            size = min(2 * size, _BLOCK)
        return np.vstack(parts), at

    def is_zero(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which are hashes of a whole page of zeros."""
        zero: NDArray[np.bool_] = (hashes == self._zero).all(axis=1)
        return zero


def _leading(flags: NDArray[np.bool_]) -> int:
    """How many are set before the first that is not."""
    return int(np.argmin(np.append(flags, False)))
