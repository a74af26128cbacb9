"""Images made of numbers: each page is zero, or random by its seed, so that equal seeds are equal pages."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidewright.checkpoint.store import ImageName

PAGE = 4096


def page(seed: int) -> bytes:
    """Page 0 is zeros; the others differ, half random and half compressible."""
    if not seed:
        return bytes(PAGE)
    return random.Random(seed).randbytes(PAGE // 2) + seed.to_bytes(8, "little") * (PAGE // 16)


def content(seeds: Sequence[int], tail: int = 0) -> bytes:
    """Pages, and ``tail`` bytes more."""
    return b"".join(map(page, seeds)) + (b"tail" * tail)[:tail]


def write(root: Path, files: Mapping[str, bytes]) -> Path:
    """A directory with these files."""
    root.mkdir(parents=True)
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def image(root: Path, seeds: Sequence[int]) -> Path:
    """A directory like a rank's image: pages, and a few small files."""
    small = {"inventory.img": b"inventory", "files/log.txt": b"step\n" * 40, "empty": b""}
    return write(root, {"pages-1.img": content(seeds), **small})


def read(root: Path) -> dict[str, bytes]:
    """All files below ``root``."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def name(serial: int = 1, rank: int = 0, job: int = 7, tenant: str = "team") -> ImageName:
    return ImageName(tenant, job, serial, rank)
