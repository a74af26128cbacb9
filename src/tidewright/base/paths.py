"""Looking through directories that others change meanwhile."""

from __future__ import annotations

import glob
from pathlib import Path


def matching(root: Path, pattern: str) -> list[Path]:
    """Paths below ``root`` that match a pattern as of glob(7), sorted. What vanishes meanwhile is left out.

    ``Path.glob`` raises FileNotFoundError when a directory is removed between its name and its content (Python 3.11).
    A hidden name is matched by a pattern that begins with a dot.
    """
    return [root / name for name in sorted(glob.glob(pattern, root_dir=root))]


def make_below(root: Path, path: Path) -> None:
    """Make a directory below ``root``, for its owner only, with its parents up to there: where ``root`` is gone, nothing is made.
    Raises OSError."""
    for one in reversed([path, *path.parents]):
        if root in one.parents:
            one.mkdir(mode=0o700, exist_ok=True)


def inode(path: Path) -> tuple[int, int]:
    """Device and inode of what is at a path, to tell it from what comes there later; zeros where there is nothing."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def modified_ns(path: Path) -> int:
    """When a file was modified, in nanoseconds since 1970; 0 when it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
