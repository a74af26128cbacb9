"""What takes the room of a state directory, by kind of file, and how much is left."""

from __future__ import annotations

import contextlib
import heapq
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ...base.units import format_bytes
from ...live.controller.disk_space import NAMED, RESERVE, free_bytes
from .finding import BAD, NOTE, OK, Finding, Step

LARGE_FILE = 2**30
"""Files of the state directory from this size on are named, however much is free."""
LOW_DISK = 256 * 2**20
"""Bytes free below which the journal is in danger."""
LOW_SHARE = 0.05
"""Part of a disk free below which it is worth a look; ext4 keeps as much for the superuser (mke2fs(8), -m)."""
LOW_FILES = 1000
"""Inodes free below which files cannot be made soon."""
BAR = 30
STEP = 1000
"""Files between two signs of progress."""
KINDS = ("journal", "images", "logs", "notifications", "ranks", "reserve", "others")
_PREFIXES = ((RESERVE, "reserve"), ("journal", "journal"), ("notify", "notifications"))


def check_disk(state: Path, step: Step) -> Finding:
    """Bytes by kind, and what is free; the largest files where that is little."""
    kinds, large = _used(state, step)
    free, whole = free_bytes(state), _whole(state)
    low = free < LOW_DISK or free < LOW_SHARE * whole
    parts = [f"{kind} {format_bytes(kinds[kind])}" for kind in KINDS if kinds[kind]]
    lines = [f"{format_bytes(free)} free; {', '.join(parts) or 'nothing'}"]
    if low:
        lines.append(f"{_bar(free, whole)} of {format_bytes(whole)}")
    lines += [f"{path} takes {format_bytes(size)}" for size, path in large if size and (size >= LARGE_FILE or low)]
    files = os.statvfs(state)
    few = files.f_files > 0 and files.f_favail < LOW_FILES
    if few:
        lines.append(f"only {files.f_favail} more files can be made")
    level = BAD if free <= LOW_DISK or few else NOTE if low else OK
    advice = "free some space: tide images gc, old logs in logs/, or files of others on that disk" if low or few else ""
    return Finding("disk", level, "\n".join(lines), advice)


def _used(state: Path, step: Step) -> tuple[Counter[str], list[tuple[int, Path]]]:
    kinds: Counter[str] = Counter()
    large: list[tuple[int, Path]] = []
    for number, (size, path) in enumerate(_sizes(state)):
        kinds[kind_of(path.relative_to(state).parts)] += size
        if path.name != RESERVE:
            if len(large) < NAMED:
                heapq.heappush(large, (size, path))
            elif size > large[0][0]:
                heapq.heapreplace(large, (size, path))
        if number % STEP == 0:
            step(f"measuring files ({number})")
    return kinds, sorted(large, reverse=True)


def kind_of(parts: tuple[str, ...]) -> str:
    """The kind of a file, by its path below the state directory."""
    if parts[0] == "hosts" and len(parts) > 2:
        parts = parts[2:]
    if len(parts) > 1 and parts[0] in ("images", "logs", "ranks"):
        return parts[0]
    if parts[0].endswith(".log"):
        return "logs"
    return next((kind for prefix, kind in _PREFIXES if parts[0].startswith(prefix)), "others")


def _sizes(folder: Path) -> Iterator[tuple[int, Path]]:
    waiting = [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        yield entry.stat(follow_symlinks=False).st_blocks * 512, Path(entry.path)


def _whole(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_frsize * found.f_blocks


def _bar(free: int, whole: int) -> str:
    used = 1 - free / max(1, whole)
    filled = round(used * BAR)
    return f"[{'#' * filled}{'.' * (BAR - filled)}] {used:.0%} used"
