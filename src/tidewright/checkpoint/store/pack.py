"""Packs: many pages in one file that never changes, as zstd frames, and an index beside it that says which and where.

A pack counts once its index has its name; the index is sealed with the tenant's key and knows a digest of each frame.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from ...base.errors import WorldError
from .disk import Disk, draft_name, write_whole
from .index import NO_HASHES
from .keys import HASH_BYTES, SEAL_BYTES, Hashes, TenantKey
from .names import INDEX, PACK

LEVEL = -5
"""zstd. The whole of taking an image in is a sixth quicker than with level -1, which saves a fifth of what is kept of a
torch process's first image, and a fortieth of weights and optimizer state; level 1 saves another 6 % (docs/why/store.md)."""
FRAME_PAGES = 64
"""256 KiB: larger frames gained under 1 %, smaller ones lost 2-4 % (docs/why/store.md)."""
PACK_BYTES = 32 * 2**20
"""What a remote store moves as one object."""
_MAGIC = b"TWINDEX1"
_HEAD = struct.Struct("<8s8sQQQ")
FRAME = np.dtype(
    [("offset", "<u8"), ("size", "<u4"), ("raw", "<u4"), ("first", "<u4"), ("count", "<u4"), ("digest", "V16")]
)


class BadIndex(WorldError):
    """An index is not as it was written."""


class PackIndex(NamedTuple):
    """``hashes`` and ``lengths`` of the pages in the order they lie in the pack, ``frames`` as FRAME."""

    id: str
    hashes: Hashes
    lengths: NDArray[np.uint16]
    frames: NDArray[np.void]

    @property
    def pack_bytes(self) -> int:
        """Size of the pack's file."""
        return int(self.frames["size"].sum())

    @property
    def stored_bytes(self) -> int:
        """Size of pack and index."""
        return self.pack_bytes + _HEAD.size + len(self.hashes) * (HASH_BYTES + 2) + self.frames.nbytes + SEAL_BYTES

    def frame_of(self, ordinals: NDArray[np.int64]) -> NDArray[np.intp]:
        """Which frame holds each page."""
        return np.searchsorted(self.frames["first"], ordinals, side="right") - 1

    def pages_of(self, frames: Iterable[int]) -> Hashes:
        """Hashes of all pages in some frames."""
        rows = [self.frames[frame] for frame in frames]
        parts = [self.hashes[int(row["first"]) : int(row["first"]) + int(row["count"])] for row in rows]
        return np.vstack(parts) if parts else NO_HASHES

    def encode(self, key: TenantKey) -> list[bytes]:
        """The file's content, seal included."""
        head = _HEAD.pack(_MAGIC, key.id.encode(), len(self.hashes), len(self.frames), self.pack_bytes)
        parts = [head, self.hashes.tobytes(), self.lengths.tobytes(), self.frames.tobytes()]
        return [*parts, key.seal(*parts)]


def decode(id_: str, data: bytes, key: TenantKey) -> PackIndex:
    """An index from its file's content. Raises BadIndex."""
    if len(data) < _HEAD.size + SEAL_BYTES or data[:8] != _MAGIC:
        raise BadIndex("not an index, or cut off")
    _, key_id, pages, frames, _ = _HEAD.unpack_from(data)
    if key_id.decode(errors="replace") != key.id:
        raise BadIndex(f"made with another key than {key.id}")
    body = memoryview(data)[:-SEAL_BYTES]
    ends = np.cumsum([_HEAD.size, pages * HASH_BYTES, pages * 2, frames * FRAME.itemsize]).tolist()
    if ends[-1] != len(body) or key.seal(body) != data[-SEAL_BYTES:]:
        raise BadIndex("its content is not what was written")
    return PackIndex(
        id_,
        np.frombuffer(body[ends[0] : ends[1]], "<u8").reshape(-1, 2),
        np.frombuffer(body[ends[1] : ends[2]], "<u2"),
        np.frombuffer(body[ends[2] : ends[3]], FRAME),
    )


class PackWriter:
    """Takes pages and fills packs with them. ``room(bytes)`` is asked before each write and raises when there is none."""

    def __init__(
        self, disk: Disk, drafts: Path, packs: Path, key: TenantKey, room: Callable[[int], None] = lambda size: None
    ) -> None:
        self._disk, self._drafts, self._packs, self._key, self._room = disk, drafts, packs, key, room
        self._compress = zstandard.ZstdCompressor(level=LEVEL).compress
        self._done: list[tuple[Path, PackIndex]] = []
        self._file = -1
        self._begin()

    def _begin(self) -> None:
        self._pending, self._waiting = bytearray(), np.empty(0, np.uint16)
        self._hashes: list[Hashes] = []
        self._lengths: list[NDArray[np.uint16]] = []
        self._frames: list[tuple[int, int, int, int, int, bytes]] = []
        self._offset = self._pages = 0

    def add(self, pieces: Iterable[bytes | memoryview], lengths: NDArray[np.uint16], hashes: Hashes) -> None:
        """Pages one after the other in pieces of any size, their lengths and hashes."""
        self._waiting = np.concatenate((self._waiting, lengths))
        self._hashes.append(hashes)
        self._lengths.append(lengths)
        for piece in pieces:
            self._cut(memoryview(piece))
        if self._offset >= PACK_BYTES:
            self._end_pack()

    def _cut(self, piece: memoryview) -> None:
        """Frames, from the piece itself where one lies within it; what is too little for one is kept."""
        while piece:
            pages = self._waiting[:FRAME_PAGES]
            if len(pages) < FRAME_PAGES:
                self._pending += piece
                return
            raw = int(pages.sum())
            missing = raw - len(self._pending)
            if not self._pending and len(piece) >= raw:
                self._flush(piece[:raw], FRAME_PAGES)
            else:
                self._pending += piece[:missing]
                if len(self._pending) == raw:
                    self._flush(self._pending, FRAME_PAGES)
                    self._pending = bytearray()
            piece = piece[missing:]

    def _flush(self, piece: memoryview | bytearray, count: int) -> None:
        self._frame(piece, count)
        self._waiting = self._waiting[count:]

    def _frame(self, piece: memoryview | bytearray, count: int) -> None:
        if self._file < 0:
            self._draft = draft_name(self._drafts)
            self._file = self._disk.create(self._draft)
        packed = self._compress(piece)
        self._room(len(packed) + FRAME.itemsize + count * (HASH_BYTES + 2))
        self._disk.write(self._file, packed)
        self._frames.append((self._offset, len(packed), len(piece), self._pages, count, self._key.frame(packed)))
        self._offset += len(packed)
        self._pages += count

    def _end_pack(self) -> None:
        if len(self._waiting):
            self._flush(self._pending, len(self._waiting))
        if self._file < 0:
            return
        self._disk.sync(self._file)
        os.close(self._file)
        self._file = -1
        self._done.append((self._draft, self._index()))
        self._begin()

    def _index(self) -> PackIndex:
        frames = np.array(self._frames, dtype=FRAME)
        return PackIndex(new_id(self._key), np.vstack(self._hashes), np.concatenate(self._lengths), frames)

    def publish(self) -> list[PackIndex]:
        """Give all packs their names, first their pages and then their indexes; durable when this returns."""
        self._end_pack()
        published = []
        while self._done:
            draft, index = self._done[0]
            publish_pack(self._disk, self._drafts, self._packs, draft, index.id, index.encode(self._key))
            published.append(self._done.pop(0)[1])
        return published

    def abort(self) -> None:
        """Leave nothing behind of what was not published."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._disk.remove(self._draft)
        for draft, _ in self._done:
            self._disk.remove(draft)
        self._done = []


def publish_pack(disk: Disk, drafts: Path, packs: Path, draft: Path, id_: str, index: Iterable[bytes]) -> None:
    """Name a flushed draft of pages, then its index. A pack without an index is garbage, which gc removes."""
    disk.rename(draft, packs / f"{id_}{PACK}")
    write_whole(disk, drafts, packs / f"{id_}{INDEX}", index)  # flushes the directory's names, too


def new_id(key: TenantKey) -> str:
    """A unique name for a pack."""
    return f"{key.id}-{secrets.token_hex(8)}"
