"""The state directory and the files in it: this user's alone, and no link in the place of a file.

A user who can put a file, a link or a directory where a daemon of another user writes can have that user write elsewhere.
So no other user may be able to: not by a directory of theirs on the way, not by one that they may write to, and not by what
they have left there before. Directories like /tmp, with the sticky bit, are no danger on the way.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from ..base.errors import UsageError

_LINKS = 40
"""Links on the way to a file, at most (path_resolution(7))."""
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def make_private(state: Path) -> None:
    """Create a state directory for its owner alone. Raises UsageError when others could tamper with it, and OSError."""
    refuse_foreign(state)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    refuse_foreign(state)


def refuse_foreign(state: Path) -> None:
    """Raise UsageError when others could tamper with what lies, or is to lie, in a directory."""
    if found := tampering(state):
        raise UsageError(*found)


def tampering(state: Path) -> tuple[str, str] | None:
    """How others could tamper with a directory, and what to do about it; None when they cannot."""
    *way, (place, last) = _way(state)
    whole = stat.S_ISDIR(last.st_mode) and _ends_at(state, place)
    on_the_way = way if whole else [*way, (place, last)]
    if why := next((why for one in on_the_way if (why := _unsafe_on_the_way(*one))), None):
        return why
    if not whole:
        return None  # the rest is still to be made
    return _unsafe_itself(place, last) or next(
        (why for entry in _entries(place) if (why := _unsafe_entry(entry))), None
    )


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a regular file of this user's (or root's). Raises UsageError for anything else, and OSError."""
    try:
        handle = os.open(path, flags | _SAFE, mode)
    except OSError as error:
        if path.is_symlink():
            raise UsageError(
                f"{path} is a link; it is not followed", "remove it, or put the file itself there"
            ) from error
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid not in (0, os.geteuid()):
        os.close(handle)
        raise UsageError(f"{path} is no file of its own ({_described(found)})", "see whose it is, and move it away")
    os.set_blocking(handle, True)
    return handle


def read_own(path: Path) -> bytes:
    """A file of this user's. Raises UsageError and OSError (FileNotFoundError)."""
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read()


def refuse_links(*paths: Path) -> None:
    """Raise UsageError when one of these, which a library will open by name, is there and is not a file of this user's."""
    for path in paths:
        try:
            os.close(open_own(path, os.O_RDONLY))
        except FileNotFoundError:
            continue


def name_of(uid: int) -> str:
    """A user's name, or number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _way(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory and link by which a path is resolved, as far as it exists, its end included."""
    rest, at, links = list(reversed(path.absolute().parts[1:])), "/", 0
    yield at, os.lstat(at)
    while rest:
        name = rest.pop()
        if name == "..":
            at = os.path.dirname(at)
            continue
        there = os.path.join(at, name)
        try:
            found = os.lstat(there)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield there, found
        if not stat.S_ISLNK(found.st_mode):
            at = there
            continue
        links += 1
        if links > _LINKS:
            raise UsageError(f"{path} leads through too many links", "name the directory itself")
        target = os.readlink(there)
        at = "/" if target.startswith("/") else at
        rest += reversed([part for part in target.split("/") if part not in ("", ".")])


def _ends_at(state: Path, place: str) -> bool:
    """Whether a way that ended at ``place`` came to its end."""
    try:
        return os.path.samefile(state, place)
    except OSError:
        return False


def _unsafe_on_the_way(place: str, found: os.stat_result) -> tuple[str, str] | None:
    kind = "link" if stat.S_ISLNK(found.st_mode) else "directory"
    if found.st_uid not in (0, os.geteuid()):
        return (
            f"the {kind} {place} belongs to {name_of(found.st_uid)}, who could put another in place of what is behind it",
            "choose a directory of your own with --state or TIDE_STATE",
        )
    if kind == "link" or found.st_mode & stat.S_ISVTX:
        return None
    if found.st_mode & stat.S_IWOTH:
        return (
            f"every user may write to {place}, and replace what is in it",
            f"chmod o-w {place}, or choose another --state",
        )
    if found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid()):
        return (
            f"the group {_group(found.st_gid)} may write to {place}, and replace what is in it",
            f"chmod g-w {place}, or choose another --state",
        )
    return None


def _unsafe_itself(place: str, found: os.stat_result) -> tuple[str, str] | None:
    if found.st_uid != os.geteuid():
        return (
            f"the state directory {place} belongs to {name_of(found.st_uid)}, and this is {name_of(os.geteuid())}",
            f"run tide as {name_of(found.st_uid)}, or choose another directory with --state",
        )
    if found.st_mode & 0o022:
        return (
            f"others may write to the state directory {place} (mode {found.st_mode & 0o7777:o})",
            f"chmod 700 {place}",
        )
    return None


def _entries(place: str) -> list[tuple[str, os.stat_result]]:
    with os.scandir(place) as entries:
        found = []
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # sockets and drafts go while a daemon ends
                found.append((entry.path, entry.stat(follow_symlinks=False)))
        return sorted(found)


def _unsafe_entry(entry: tuple[str, os.stat_result]) -> tuple[str, str] | None:
    path, found = entry
    if found.st_uid in (0, os.geteuid()):
        return None
    return (
        f"{path} belongs to {name_of(found.st_uid)}: others have been able to write to this directory",
        "see what it is and move it away; look at everything else there as well",
    )


def _described(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    return "it has other names" if found.st_nlink > 1 else f"it belongs to {name_of(found.st_uid)}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
