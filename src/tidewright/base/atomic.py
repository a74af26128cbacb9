"""Files that are there whole or not at all, for every reader and whenever their writer is killed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(
    path: Path,
    content: bytes,
    *,
    draft: Path | None = None,
    mode: int = 0o600,
    durable: bool = False,
    owner: tuple[int, int] | None = None,
) -> None:
    """Replace a file in one step. ``durable``: it also survives a power cut. ``owner``: user and group id that it is given.

    ``draft`` is where it is written first, on the same file system (default ``.NAME.new`` beside it); one that a killed writer
    left is replaced. A link in the place of either is replaced and not followed. Raises OSError; the old file is there then.
    """
    draft = draft or path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            if owner is not None:
                os.fchown(handle, *owner)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(handle)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
