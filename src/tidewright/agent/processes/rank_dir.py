"""Contents of rank directories: files that are stored with their images, and complaints of their wrappers."""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Iterable
from pathlib import Path

from ...base.errors import WorldError
from ...model.job import Level
from .attempt import Attempt
from .rank_files import listed_inside, read_inside

BOX_LIMIT = 2**20
"""Largest file of a rank directory that is stored with an image; control pages are 4 KiB."""


def complaints(attempt: Attempt) -> tuple[int, str]:
    """The level that is left after what wrappers of the attempt's ranks said they cannot do, and why; (-1, "") if all."""
    said = [line for rank_dir in attempt.rank_dirs().values() for line in read_complaints(rank_dir)]
    return min(said, default=(-1, ""))


def gather(rank_dir: Path) -> Iterable[tuple[str, bytes]]:
    """The files of a rank directory that belong to the rank: its control pages, and its progress."""
    for name in [*(f"ctl/{name}" for name in listed_inside(rank_dir, "ctl")), "said.jsonl", "step"]:
        with contextlib.suppress(OSError):
            content = read_inside(rank_dir, name, BOX_LIMIT + 1)
            if len(content) <= BOX_LIMIT:
                yield name, content


def pack(content: bytes) -> str:
    """Bytes as JSON can hold them. Control pages are zeros for the most part."""
    return base64.b64encode(zlib.compress(content, 1)).decode()


def unpack(text: str) -> bytes:
    """The bytes again. Raises WorldError for what is none."""
    try:
        return zlib.decompress(base64.b64decode(text), bufsize=BOX_LIMIT)
    except (ValueError, zlib.error) as error:
        raise WorldError(f"the rank directory in the image is damaged: {error}") from error


def read_complaints(rank_dir: Path) -> list[tuple[int, str]]:
    """(level, why) for each complaint of a wrapper; a line that is none is skipped, as it is the rank's to write."""
    found = []
    with contextlib.suppress(OSError):
        for line in read_inside(rank_dir, "said.jsonl", BOX_LIMIT).splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                each = json.loads(line)
                found.append((int(Level[str(each["level"]).upper()]), str(each["why"])))
    return found
