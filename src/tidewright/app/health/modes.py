"""Modes and owners: of the state directory, of the directories in it, and of the files that are its owner's alone."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...base.units import counted
from ...wire.state_files import tampering
from ..settings import NAME as CONFIG
from .finding import BAD, OK, Finding

NAMED = 5
"""Files named in a text."""
_FOLDERS = frozenset({"images", "ranks", "logs", "slots", "meetings", "hosts"})


def roots(state: Path) -> list[Path]:
    """The state directory, and those of its hosts."""
    with contextlib.suppress(OSError):
        return [state, *sorted(path for path in (state / "hosts").iterdir() if path.is_dir() and not path.is_symlink())]
    return [state]


def exposure(state: Path) -> Finding | None:
    """How others could tamper with what lies here; None when they cannot. Nothing else may be believed before."""
    why = tampering(state)
    if why is None:
        return None
    found = state.lstat()
    by_mode = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and bool(found.st_mode & 0o022)
    return Finding(
        "state", BAD, why[0], f"{why[1]}; nothing else is looked at before",
        partial(_close, [(state, 0o700)]) if by_mode else None,
    )  # fmt: skip


def check_modes(state: Path) -> Finding:
    """Whether the directory and the files in it are closed to others."""
    if not os.access(state, os.W_OK | os.X_OK):
        return Finding("state", BAD, f"{state} cannot be written", "see that its file system is not mounted read-only")
    wide = [(path, mode & 0o700) for path, mode in _entries(state) if mode & 0o077]
    if not wide:
        return Finding("state", OK, str(state))
    names = ", ".join(f"{path} (mode {path.lstat().st_mode & 0o777:o})" for path, _ in wide[:NAMED])
    more = f" and {len(wide) - NAMED} more" if len(wide) > NAMED else ""
    return Finding(
        "state", BAD, f"open to others: {names}{more}",
        f"chmod go= {wide[0][0]}{' …' if len(wide) > 1 else ''}, or tide doctor --repair", partial(_close, wide),
    )  # fmt: skip


def _entries(state: Path) -> Iterator[tuple[Path, int]]:
    """Directories and files that are made with mode 0700 and 0600. Not those of ranks: they belong to the account of jobs."""
    for root in roots(state):
        yield root, root.stat().st_mode & 0o777
        for path in sorted(root.iterdir()):
            with contextlib.suppress(OSError):
                mode = path.lstat().st_mode
                if path.name != CONFIG and (stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and path.name in _FOLDERS)):
                    yield path, mode & 0o777


def _close(wide: list[tuple[Path, int]]) -> str:
    for path, mode in wide:
        file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.chmod(f"/proc/self/fd/{file}", mode)  # of what was opened: a link put in its place is not followed
        finally:
            os.close(file)
    return f"closed {counted(len(wide), 'path')} to others; look at what else lies there, others may have read it"
