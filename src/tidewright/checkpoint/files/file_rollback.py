"""Files as they were when an image was taken: what has grown is cut back, what is absent is written again.

Runs inside a rank's namespaces just before its restore, or (``dry``) anywhere to learn what stands in the way. The very
file that the rank had open gets the content it had then. Another file in its place is never overwritten: unless it
begins as the rank's did, it is a difference, and the restore is refused with all of them. A file that others wrote to as
well is only looked for. Standard library only, loaded by path.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import IO, Any

INSIDE = "/run/tidewright/"
OUTPUT = "/run/tidewright/out"
OURS = (INSIDE, "/dev/shm/")
"""Below these, content is a rank's own memory and is put back whatever is there."""
GONE = " (deleted)"
"""What the kernel adds to the name of a file that has lost it."""
NOTICE = b"[tidewright: "
"""Begins the line that the agent puts into a log where it has removed others (agent/log_cap)."""
BLOCK = 4096
CHUNK = LOG_READ = 1 << 20

HARMLESS = "RLIMIT_NOFILE"
"""CRIU wants more open files than it may have, says so as an error, and needs none of them."""

Entry = dict[str, Any]


def open_copy(path: str) -> IO[bytes]:
    """Open a file of the image. Where ranks run as another account, theirs are reached as it, and these as root (init.py)."""
    return open(path, "rb")


class Damaged(Exception):
    """An image is not what its manifest says."""


def read_meta(images: str) -> dict[str, Any]:
    """An image's meta.json, once every file has the size that the manifest says. Raises Damaged.

    Sizes first: CRIU loops without end on a truncated pages file. The agent checked the hashes before it ordered the
    restore.
    """
    try:
        with open(os.path.join(images, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        for name, (size, _) in manifest["files"].items():
            found = os.stat(os.path.join(images, name)).st_size
            if found != size:
                raise Damaged(f"{name} has {found} bytes, its manifest says {size}")
        with open(os.path.join(images, "meta.json"), encoding="utf-8") as file:
            meta: dict[str, Any] = json.load(file)
        if not isinstance(meta["pid"], int):
            raise ValueError("no pid")
        return meta
    except FileNotFoundError as error:
        raise Damaged(f"{os.path.basename(str(error.filename))} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(str(error)) from error


def roll_back(meta: dict[str, Any], images: str, *, dry: bool = False) -> list[str]:
    """Make files and directories what the image expects. Differences that forbid a restore, in words; empty: done.

    Nothing is changed when there is any. ``dry``: nothing is changed at all, and what only the rank sees is left out.
    """
    entries = [entry for entry in meta["files"] if not (dry and entry["path"].startswith(INSIDE))]
    found = [difference for entry in entries if (difference := differs(entry, images))]
    if dry or found:
        return found
    for entry in meta["dirs"]:
        make_directory(entry)
    for entry in entries:
        if entry["writes"] and not entry.get("shared"):
            write_again(entry, images)
        elif entry["copy"] and not os.path.lexists(entry["path"]):
            write_again(
                entry, images
            )  # only read by the rank, as the flag of its time slice: what is there is the agent's
    for entry in meta["box"]:
        if not os.path.lexists(entry["path"]):
            write_again(entry, images)
    return []


def differs(entry: Entry, images: str) -> str:
    """Why a file forbids a restore; empty when it does not."""
    path, size = entry["path"], entry["size"]
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return "" if entry["copy"] else f"{path} is missing{_why_no_copy(entry)}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not stat.S_ISREG(now.st_mode):
        return f"{path} is not a regular file any more"
    if entry.get("shared"):
        return ""
    if path.startswith(OURS) and entry["writes"] and entry["copy"] and path != OUTPUT:
        return ""
    if not entry["writes"]:
        return "" if now.st_size == size else f"{path} has {now.st_size} bytes, had {size}"
    if not entry["copy"]:
        if path == OUTPUT:
            return ""  # what was printed stays where it was; here the log begins with a hole
        if now.st_size < size or not _same_file(entry, now):
            return f"{path} is not the file it was, and was too large to keep a copy of"
        return ""
    if _same_file(entry, now) or begins_alike(path, entry, images):
        return ""
    return f"{path} has other content than when the image was taken"


def _why_no_copy(entry: Entry) -> str:
    if entry.get("shared"):
        return ", and was not the rank's alone to make again"
    return ", and was too large to keep a copy of" if entry["writes"] else ""


def _same_file(entry: Entry, now: os.stat_result) -> bool:
    return bool([now.st_dev, now.st_ino] == entry["identity"])


def _untouched(entry: Entry, now: os.stat_result) -> bool:
    """For a mapped file the time says nothing: the kernel notes writes to memory when it pleases."""
    same_time = [now.st_size, now.st_mtime_ns] == [entry["size"], entry["mtime"]]
    return _same_file(entry, now) and same_time and not entry["mapped"]


def begins_alike(path: str, entry: Entry, images: str) -> bool:
    """Whether a file begins as the copy does, or is the beginning of it."""
    with open(path, "rb") as ours, open_copy(os.path.join(images, entry["copy"])) as copy:
        while piece := copy.read(CHUNK):
            have = ours.read(CHUNK)
            if not piece.startswith(have[: len(piece)]) and not (path == OUTPUT and _but_for_removed(piece, have)):
                return False
            if len(have) < len(piece):
                return True
    return True


def _but_for_removed(piece: bytes, have: bytes) -> bool:
    """Whether two pieces of a log are the same where neither had lines removed: those blocks are zeros or hold the notice."""
    for at in range(0, min(len(piece), len(have)), BLOCK):
        size = min(BLOCK, len(piece) - at, len(have) - at)
        one, other = piece[at : at + size], have[at : at + size]
        if one != other and not any(NOTICE in block or not block.strip(b"\0") for block in (one, other)):
            return False
    return True


def write_again(entry: Entry, images: str) -> None:
    """Give a file the size and, if need be, the content it had. Raises OSError."""
    path, size = entry["path"], entry["size"]
    if entry.get("links"):
        link_again(entry)
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        create(path, entry)
    now = os.stat(path)
    if _untouched(entry, now):
        return
    if entry["copy"] and (now.st_size < size or not begins_alike(path, entry, images)):
        with open(path, "r+b") as file, open_copy(os.path.join(images, entry["copy"])) as copy:
            at = 0
            while piece := copy.read(CHUNK):
                file.seek(at)
                if file.read(len(piece)).ljust(len(piece), b"\0") != piece:  # what is a hole stays one
                    file.seek(at)
                    file.write(piece)
                at += len(piece)
    os.truncate(path, size)


def lent(meta: dict[str, Any]) -> list[str]:
    """Names in shared memory that are there for CRIU alone (``files.named_again``): to be removed when the restore has ended."""
    return [entry["path"] for entry in meta["files"] if entry["path"].endswith(GONE)]


def put_away(names: list[str]) -> None:
    """Remove files that may be gone already."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(name)


def link_again(entry: Entry) -> None:
    """One file under all the names that it had: those that are there come from the same rank, and are its as well."""
    path, links = entry["path"], entry.get("links", [])
    there = next((name for name in [path, *links] if os.path.exists(name)), "")
    if not there:
        create(path, entry)
        there = path
    for name in [path, *links]:
        if not (os.path.exists(name) and os.path.samefile(name, there)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            os.link(there, name)


def create(path: str, entry: Entry) -> None:
    """An empty file with the owner and the mode it had."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    own(path, entry)


def make_directory(entry: Entry) -> None:
    """A directory that a process stands in or holds open, if it is missing."""
    if not os.path.isdir(entry["path"]):
        os.makedirs(entry["path"], exist_ok=True)
        own(entry["path"], entry)


def own(path: str, entry: Entry) -> None:
    """Owner and mode, as far as we may."""
    with contextlib.suppress(PermissionError):
        os.chown(path, entry["uid"], entry["gid"])
    os.chmod(path, entry["mode"])


def complaint(log: str) -> str:
    """The first errors of a log of CRIU's, which name the cause; later ones only follow from them. Empty: none."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = file.read(LOG_READ).splitlines()
    except OSError:
        return ""
    found = [line.partition("Error ")[2].strip() for line in lines if "Error " in line and HARMLESS not in line]
    return "; ".join(found[:2])
