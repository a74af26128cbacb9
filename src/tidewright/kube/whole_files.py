"""Files that are there whole or not at all, whoever reads meanwhile and whenever their writer is killed."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str, part: str, *, mode: int = 0o755, lasting: bool = False) -> None:
    """By a draft beside ``path`` whose name begins with ``part``, which its readers pass over. ``mode``: of the folder, where
    it has to be made; ``lasting``: also when the node loses power. The file itself has mode 0600. Raises OSError."""
    path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=part, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def remove_drafts(folder: Path, part: str) -> None:
    """What a writer that was killed left half written. Raises OSError."""
    for draft in folder.glob(f"{part}*"):
        draft.unlink(missing_ok=True)
