"""Bringing an image back: every frame is checked before it is used and every file after it is written.

A file's hash covers each of its pages, in place; when it does not fit, the pages are looked at one by one for the report.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard

from ...base.paths import make_below
from ...base.units import counted
from ..files.space import require
from .disk import full, spoiled
from .index import ABSENT, NO_HASHES, Values
from .keys import PAGE, Hashes
from .manifest import FileEntry, ImageManifest, Recipe, piece_offsets
from .pack import PackIndex
from .tenant_store import PackView, TenantStore

THREADS = min(4, os.cpu_count() or 1)
_BATCH = 8
"""Frames per piece of work handed to a thread."""
_BLOCK = 8 * 2**20


class Damage(Exception):
    """Pages that could not be read while files were written. ``frames`` are (pack, frame) seen to be damaged."""

    def __init__(self, problem: str, lost: Hashes = NO_HASHES, frames: Iterable[tuple[str, int]] = ()) -> None:
        super().__init__(problem)
        self.problem, self.lost, self.frames = problem, lost, tuple(frames)


class FileTarget(NamedTuple):
    """Pages wanted, by where they are stored: place in the store, file and offset to write to."""

    places: Values
    files: np.ndarray
    offsets: np.ndarray


class FrameReader:
    """Frames of one pack, checked. Raises Damage."""

    def __init__(self, tenant_store: TenantStore, pack: PackIndex) -> None:
        self._pack, self._key = pack, tenant_store.key
        try:
            self._file = os.open(tenant_store.pack_path(pack.id), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if not spoiled(error):
                raise
            what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            frames = [(pack.id, at) for at in range(len(pack.frames))]
            raise Damage(f"pack {pack.id} {what}", pack.hashes, frames) from None

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def packed(self, frame: int) -> bytes:
        """A frame as it lies there."""
        row = self._pack.frames[frame]
        try:
            data = os.pread(self._file, int(row["size"]), int(row["offset"]))
        except OSError as error:
            raise self._damage(frame, f"cannot be read ({error.strerror})") from None
        if len(data) < int(row["size"]):
            raise self._damage(frame, "is cut off")
        if self._key.frame(data) != bytes(row["digest"]):
            raise self._damage(frame, "has changed bytes")
        return data

    def pages(self, frame: int) -> tuple[bytes, np.ndarray]:
        """A frame's content, and where in it each page begins (one more entry: its end)."""
        row = self._pack.frames[frame]
        first, count = int(row["first"]), int(row["count"])
        starts = np.concatenate(([0], np.cumsum(self._pack.lengths[first : first + count], dtype=np.int64)))
        try:
            data = zstandard.ZstdDecompressor().decompress(self.packed(frame), max_output_size=int(row["raw"]))
        except zstandard.ZstdError as error:
            raise self._damage(frame, f"cannot be unpacked ({error})") from error
        if len(data) != starts[-1]:
            raise self._damage(frame, "unpacks to another size")
        return data, starts

    def _damage(self, frame: int, what: str) -> Damage:
        where = f"pack {self._pack.id} {what} at byte {int(self._pack.frames[frame]['offset'])}"
        return Damage(where, self._pack.pages_of([frame]), [(self._pack.id, frame)])


class ImageWriter:
    """Writes one image below ``root``, which exists and is empty."""

    def __init__(self, tenant_store: TenantStore, view: PackView, manifest: ImageManifest, root: Path) -> None:
        self._tenant_store, self._view, self._manifest, self._root = tenant_store, view, manifest, root

    def write(self) -> None:
        """All files and directories. Raises Damage, and StoreFull when the disk is."""
        target = self._locate()
        pages = sum(entry.pages for entry in self._manifest.header.files)
        require(self._root, pages * PAGE, str(self._manifest.header.name))
        files = self._create()
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(lambda work: self._frames(files, *work), self._work(target)))
                list(pool.map(self._check, range(len(files)), files))
            for file, entry in zip(files, self._manifest.header.files, strict=True):
                os.fchmod(file, entry.mode)
        except OSError as error:
            raise full(error, files[0]) from error
        finally:
            for file in files:
                os.close(file)
        for name, mode in reversed(self._manifest.header.directories):
            (self._root / name).chmod(mode)

    def _locate(self) -> FileTarget:
        recipes = self._manifest.recipes
        hashes = self._manifest.hashes
        places = self._view.runs.find(hashes)
        owner = np.repeat(np.arange(len(recipes)), [len(one.offsets) for one in recipes])
        missing = places == ABSENT
        if missing.any():
            lost = hashes[missing]
            entry = self._manifest.header.files[int(owner[missing][0])]
            raise Damage(
                f"{entry.path}: {counted(len(lost), 'page')} missing from the store{self._bad_packs(lost)}",
                lost,
            )
        offsets = np.concatenate([np.empty(0, np.intp), *(one.offsets for one in recipes)])
        order = np.argsort(places, kind="stable")
        return FileTarget(places[order], owner[order], offsets[order])

    def _bad_packs(self, lost: Hashes) -> str:
        wanted = {tuple(row) for row in lost.tolist()}
        guilty = [
            pack.id
            for pack in self._view.packs
            if pack.id in self._view.bad and wanted & {tuple(row) for row in self._view.lost_in(pack).tolist()}
        ]
        guilty += self._view.broken
        return f" (damaged before: pack {', '.join(guilty)})" if guilty else ""

    def _create(self) -> list[int]:
        for name, _ in self._manifest.header.directories:
            make_below(self._root, self._root / name)
        files: list[int] = []
        for entry in self._manifest.header.files:
            path = self._root / entry.path
            files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            os.truncate(files[-1], entry.size)  # what is not written stays a hole, which reads as zeros
        return files

    def _work(self, target: FileTarget) -> Iterator[tuple[PackIndex, list[tuple[int, np.ndarray]], FileTarget]]:
        """Pieces of work: a pack and some of its frames, each with the rows of ``target`` that it serves."""
        numbers, ordinals = self._view.split(target.places)
        for number in np.unique(numbers).tolist():
            pack = self._view.packs[number]
            low, high = np.searchsorted(numbers, [number, number + 1]).tolist()
            frames = pack.frame_of(ordinals[low:high])
            used, starts = np.unique(frames, return_index=True)
            ends = np.append(starts[1:], high - low)
            rows = [(int(f), np.arange(low + a, low + b)) for f, a, b in zip(used, starts, ends, strict=True)]
            for at in range(0, len(rows), _BATCH):
                yield pack, rows[at : at + _BATCH], target

    def _frames(
        self, files: list[int], pack: PackIndex, rows: list[tuple[int, np.ndarray]], target: FileTarget
    ) -> None:
        with FrameReader(self._tenant_store, pack) as reader:
            for frame, at in rows:
                try:
                    data, starts = reader.pages(frame)
                except Damage as error:
                    name = self._manifest.header.files[int(target.files[at[0]])].path
                    raise Damage(f"{name}: {error.problem}", error.lost, error.frames) from None
                within = self._view.split(target.places[at])[1] - int(pack.frames[frame]["first"])
                _scatter(files, data, starts, within, target.files[at], target.offsets[at])

    def _check(self, at: int, file: int) -> None:
        """Compare a written file with its hash."""
        entry, hasher = self._manifest.header.files[at], self._tenant_store.key.file(THREADS)
        buffer, offset = bytearray(min(_BLOCK, entry.size or 1)), 0
        while got := os.preadv(file, [buffer], offset):
            hasher.update(memoryview(buffer)[:got])
            offset += got
        if hasher.hexdigest() != entry.hash or offset != entry.size:
            pages = self._wrong_pages(file, entry, self._manifest.recipes[at])
            raise Damage(f"{entry.path}: its content is not what was saved (pages {pages})")

    def _wrong_pages(self, file: int, entry: FileEntry, recipe: Recipe) -> str:
        wrong: list[int] = []
        wanted = dict(zip(recipe.offsets.tolist(), recipe.hashes.tolist(), strict=True))
        starts = piece_offsets(entry).tolist()
        for start, end in pairwise([*starts, entry.size]):
            data = os.pread(file, end - start, start)
            found = self._tenant_store.key.pages(memoryview(data), np.array([0]))[0].tolist() if any(data) else None
            if found != wanted.get(start) and start // PAGE not in wrong[-1:]:
                wrong.append(start // PAGE)
        return ", ".join(map(str, wrong[:8])) + (", …" if len(wrong) > 8 else "") or "none, so the hash itself is wrong"


def _scatter(
    files: list[int], data: bytes, starts: np.ndarray, within: np.ndarray, owner: np.ndarray, offsets: np.ndarray
) -> None:
    """Write pages of one frame to where they belong, neighbours that stay neighbours in one go."""
    separate = np.diff(offsets) != (starts[within + 1] - starts[within])[:-1]
    breaks = np.flatnonzero((np.diff(within) != 1) | separate | (np.diff(owner) != 0)) + 1
    view = memoryview(data)
    for low, high in zip([0, *breaks.tolist()], [*breaks.tolist(), len(within)], strict=True):
        piece = view[int(starts[within[low]]) : int(starts[within[high - 1] + 1])]
        _write_all(files[int(owner[low])], piece, int(offsets[low]))


def _write_all(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def materialise(tenant_store: TenantStore, view: PackView, manifest: ImageManifest, into: Path) -> None:
    """Write an image to ``into``, which appears whole or not at all. Raises Damage and StoreFull.

    Not flushed: after a power cut the copy is made again, and a restore checks the image's own manifest first.
    """
    draft = into.with_name(f".{into.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    try:
        ImageWriter(tenant_store, view, manifest, draft).write()
        draft.rename(into)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
