"""An image's manifest: size and BLAKE3 of every file, written last and checked before anything is restored.

CRIU itself restores flipped pages without a word, and never ends on a pages file that was cut short.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import Struct

from ..base.atomic import write_atomically
from ..base.errors import WorldError

NAME = "manifest.json"
PIECE = 1 << 20
"""Bytes read and hashed at a time: they stay in the processor's cache. A fifth quicker than to map a file and walk it."""
SERIAL_LIMIT = 1 << 30
"""Larger files are hashed by several threads, which takes more of the processors, but less long where some are idle."""


class DamagedImage(WorldError):
    """An image is not what its manifest says; it cannot be restored, ever."""


class FileManifest(Struct, frozen=True):
    """``files``: name relative to the image, to size and hash (hex)."""

    files: dict[str, tuple[int, str]]
    version: int = 1

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())


def digest(path: Path) -> tuple[int, str]:
    """Size and BLAKE3 of a file. Raises OSError."""
    size = path.stat().st_size
    if size > SERIAL_LIMIT:
        whole = blake3(max_threads=blake3.AUTO)
        whole.update_mmap(path)
        return size, whole.hexdigest()
    hasher, piece, size = blake3(), memoryview(bytearray(min(PIECE, size + 1))), 0
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(piece):
            hasher.update(piece[:got])
            size += got
    return size, hasher.hexdigest()


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / NAME)


def write_manifest(directory: Path) -> FileManifest:
    """Describe what is in ``directory``. Raises OSError."""
    manifest = FileManifest({str(path.relative_to(directory)): digest(path) for path in _files(directory)})
    write_atomically(directory / NAME, msgspec.json.encode(manifest), draft=directory / f".{NAME}")
    return manifest


def read_manifest(directory: Path) -> FileManifest:
    """The manifest of an image. Raises DamagedImage."""
    try:
        return msgspec.json.decode((directory / NAME).read_bytes(), type=FileManifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise DamagedImage(f"image {directory}: no usable manifest: {error}") from error


def manifest_digest(directory: Path) -> str:
    """Hash of the manifest, by which an image that has come from elsewhere is known to be the one that was meant."""
    try:
        return sha256((directory / NAME).read_bytes()).hexdigest()
    except OSError as error:
        raise DamagedImage(f"image {directory}: no usable manifest: {error}") from error


def unlisted(directory: Path) -> list[str]:
    """Files that the manifest does not know, and so says nothing of."""
    known = read_manifest(directory).files
    return [name for path in _files(directory) if (name := str(path.relative_to(directory))) not in known]


def verify(directory: Path) -> FileManifest:
    """Compare everything with the manifest. Raises DamagedImage naming each file that is not as it was."""
    manifest = read_manifest(directory)
    wrong = [why for name, wanted in manifest.files.items() if (why := _wrong(directory, name, wanted))]
    if wrong:
        raise DamagedImage(f"image {directory} is damaged: {'; '.join(wrong)}")
    return manifest


def _wrong(directory: Path, name: str, wanted: tuple[int, str]) -> str:
    path = Path(os.path.normpath(directory / name))
    if directory not in path.parents:
        return f"{name} is no name of a file in it"
    try:
        if (size := path.stat().st_size) != wanted[0]:
            return f"{name} has {size} bytes in place of {wanted[0]}"
        return "" if digest(path) == tuple(wanted) else f"{name} has other content than when it was taken"
    except OSError as error:
        return f"{name}: {error.strerror}"


def read_meta(directory: Path) -> dict[str, Any]:
    """An image's ``meta.json``. Raises DamagedImage."""
    try:
        found: dict[str, Any] = msgspec.json.decode((directory / "meta.json").read_bytes())
        return found
    except (OSError, msgspec.MsgspecError) as error:
        raise DamagedImage(f"image {directory}: no usable meta.json: {error}") from error
