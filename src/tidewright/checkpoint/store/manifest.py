"""Manifests: what an image is made of, file by file and page by page. One that has its name is an image; no other is.

``TWIMAGE1``, length of the header, header as JSON, then for each file a bitmap of its pieces that are not zero and
their hashes, then a seal over all of it. Pieces are pages, but where a file is cut at a shift (``piece_offsets``).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...base.errors import WorldError
from .disk import spoiled
from .index import NO_HASHES
from .keys import HASH_BYTES, PAGE, SEAL_BYTES, Hashes, TenantKey
from .names import ImageName

_MAGIC = b"TWIMAGE1"
_HEAD = struct.Struct("<8sI")
_MOST_HEADER = 64 * 2**20


class BadManifest(WorldError):
    """A manifest is not as it was written."""


Shift = tuple[int, int, int]
"""Of pages from the first to before the second, cuts lie so many bytes later: a short piece, whole pages, a short one."""


class FileEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file. ``pages`` counts pieces that are not all zero; ``hash`` is keyed BLAKE3 of its content."""

    path: str
    size: int
    mode: int
    hash: str
    pages: int = 0
    shifts: tuple[Shift, ...] = ()


class Header(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything but the page hashes."""

    name: ImageName
    key: str
    made_us: int
    raw_bytes: int
    new_bytes: int
    """Bytes of pages that the store did not have."""
    stored_bytes: int
    """What they take on disk, indexes and this manifest included."""
    files: tuple[FileEntry, ...] = ()
    directories: tuple[tuple[str, int], ...] = ()
    """(path, mode) of every directory below the image's."""
    meta: dict[str, Any] = {}


class Recipe(Struct, frozen=True):
    """Where a file's pieces that are not zero begin, and what they are."""

    offsets: NDArray[np.intp]
    hashes: Hashes


class ImageManifest(Struct, frozen=True):
    """``recipes`` in the order of ``header.files``."""

    header: Header
    recipes: tuple[Recipe, ...]

    @property
    def hashes(self) -> Hashes:
        """Hashes of all pages of all files."""
        return np.vstack([NO_HASHES, *(recipe.hashes for recipe in self.recipes)])

    def encode(self, key: TenantKey) -> list[bytes]:
        """The file's content, seal included."""
        header = msgspec.json.encode(self.header)
        parts = [_HEAD.pack(_MAGIC, len(header)), header]
        for file, recipe in zip(self.header.files, self.recipes, strict=True):
            offsets = piece_offsets(file)
            bits = np.zeros(len(offsets), dtype=bool)
            bits[np.searchsorted(offsets, recipe.offsets)] = True
            parts += [np.packbits(bits).tobytes(), recipe.hashes.tobytes()]
        return [*parts, key.seal(*parts)]


def page_count(size: int) -> int:
    """Pages in a file of so many bytes."""
    return -(-size // PAGE)


def piece_offsets(file: FileEntry) -> NDArray[np.intp]:
    """Where each piece of a file begins, zero or not."""
    grid, parts, at = np.arange(page_count(file.size)) * PAGE, [], 0
    for first, end, shift in file.shifts:
        parts += [grid[at : first + 1], grid[first:end] + shift]
        at = end
    return np.concatenate([*parts, grid[at:]])


def read_header(path: Path) -> Header:
    """The header alone, not checked against the seal. Raises BadManifest and FileNotFoundError."""
    with _readable(), path.open("rb") as file:
        start = file.read(_HEAD.size)
        return _header(start, file.read(_length(start)))


def load(path: Path) -> bytes:
    """A manifest's content. Raises BadManifest when it cannot be read, and FileNotFoundError."""
    with _readable():
        return path.read_bytes()


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """A manifest that is there and cannot be read is a damaged one."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if not spoiled(error):
            raise
        raise BadManifest(f"its manifest cannot be read: {error.strerror}") from error


def key_of(data: bytes) -> str:
    """Id of the key that a manifest was made with. Raises BadManifest."""
    length = _length(data[: _HEAD.size])
    return _header(data, data[_HEAD.size : _HEAD.size + length]).key


def _length(start: bytes) -> int:
    if len(start) < _HEAD.size or start[:8] != _MAGIC:
        raise BadManifest("its manifest is not one, or is cut off")
    length: int = _HEAD.unpack_from(start)[1]
    if length > _MOST_HEADER:
        raise BadManifest("its manifest claims an absurd size")
    return length


def _header(start: bytes, text: bytes) -> Header:
    try:
        return msgspec.json.decode(text, type=Header)
    except msgspec.MsgspecError:
        raise BadManifest("the header of its manifest cannot be read") from None


def decode(data: bytes, key: TenantKey) -> ImageManifest:
    """A manifest from its file's content. Raises BadManifest."""
    length = _length(data[: _HEAD.size])
    if len(data) < SEAL_BYTES or key.seal(memoryview(data)[:-SEAL_BYTES]) != data[-SEAL_BYTES:]:
        raise BadManifest("the content of its manifest is not what was written")
    header = _header(data, data[_HEAD.size : _HEAD.size + length])
    _check_paths([*(file.path for file in header.files), *(path for path, _ in header.directories)])
    body = memoryview(data)[_HEAD.size + length : -SEAL_BYTES]
    return ImageManifest(header, tuple(_recipes(header.files, body)))


def _recipes(files: Iterable[FileEntry], body: memoryview) -> Iterator[Recipe]:
    at = 0
    for file in files:
        _check_cuts(file)
        total = page_count(file.size) + len(file.shifts)
        middle = at + -(-total // 8)
        end = middle + file.pages * HASH_BYTES
        if not at <= middle <= end <= len(body):
            raise BadManifest("its manifest is too short for its files")
        bits = np.unpackbits(np.frombuffer(body[at:middle], np.uint8), count=total)
        used = np.flatnonzero(bits)
        if len(used) != file.pages:
            raise BadManifest("its manifest does not add up")
        yield Recipe(piece_offsets(file)[used], np.frombuffer(body[middle:end], "<u8").reshape(-1, 2))
        at = end
    if at != len(body):
        raise BadManifest("its manifest does not add up")


def _check_cuts(file: FileEntry) -> None:
    at = 0
    if file.size < 0:
        raise BadManifest(f"its manifest claims an absurd size of {file.path!r}")
    for first, end, shift in file.shifts:
        if not (at <= first <= end - 2 and end * PAGE <= file.size and 0 < shift < PAGE):
            raise BadManifest(f"its manifest cuts {file.path!r} where it cannot be cut")
        at = end


def _check_paths(paths: Iterable[str]) -> None:
    for text in paths:
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise BadManifest(f"its manifest names {text!r}, which is not below the image")
