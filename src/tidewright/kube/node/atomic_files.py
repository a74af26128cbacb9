"""Files in directories that other programs read by pattern: written atomically, through temporary files that match no pattern."""

from __future__ import annotations

import os
from pathlib import Path

from ...base.atomic import write_atomically


def write_whole(path: Path, text: str, part: str, *, mode: int = 0o755, lasting: bool = False) -> None:
    """By a draft beside ``path`` whose name begins with ``part``, which its readers pass over. ``mode``: of the folder, where
    it has to be made; ``lasting``: also when the node loses power. The file itself has mode 0600. Raises OSError."""
    path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
    write_atomically(path, text.encode(), draft=path.with_name(f"{part}{path.name}.{os.getpid()}"), durable=lasting)


def remove_drafts(folder: Path, part: str) -> None:
    """What a writer that was killed left half written. Raises OSError."""
    for draft in folder.glob(f"{part}*"):
        draft.unlink(missing_ok=True)
