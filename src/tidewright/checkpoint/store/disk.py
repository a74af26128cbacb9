"""Everything the store does to its disk, one small method each, so that a test can end a life between any two.

A draft is written and flushed under ``tmp/`` and then renamed to where it belongs: what has its final name is whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...base.atomic import sync_directory
from ..files.space import is_full, refusal
from .errors import StoreFull

Chunk = bytes | bytearray | memoryview
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})


class Disk:
    """The real one."""

    def create(self, path: Path) -> int:
        """A new file for its owner only, as a descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, file: int, data: Chunk) -> None:
        """Append all of ``data``. Raises StoreFull when the disk is."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(file, left) :]
        except OSError as error:
            raise full(error, file) from error

    def sync(self, file: int) -> None:
        """Make a file's content survive a power cut."""
        try:
            os.fsync(file)
        except OSError as error:
            raise full(error, file) from error

    def rename(self, draft: Path, final: Path) -> None:
        """Give a draft its final name; a directory there is none of the store's (a repaired file system), and goes."""
        try:
            draft.rename(final)
        except IsADirectoryError:
            shutil.rmtree(final)
            draft.rename(final)

    def link(self, draft: Path, final: Path) -> None:
        """Give a draft a further name, unless that is taken: of two that make the same thing, one wins for both."""
        with contextlib.suppress(FileExistsError):
            os.link(draft, final)

    def sync_directory(self, path: Path) -> None:
        """Make names added to and removed from a directory survive a power cut."""
        sync_directory(path)

    def remove(self, path: Path) -> None:
        """Remove a file, or what is in its place; harmless when it is gone."""
        try:
            path.unlink(missing_ok=True)
        except IsADirectoryError:
            shutil.rmtree(path)

    def make_directory(self, path: Path, below: Path | None = None) -> None:
        """A directory for its owner only; durable. Its parents are made, too, but not ``below`` and what that lies in: a state
        directory that was renamed is not made again. Raises OSError."""
        whole = (path, *path.parents)
        missing = [one for one in whole if (below is None or below in one.parents) and not one.exists()]
        for one in reversed(missing):
            one.mkdir(mode=0o700, exist_ok=True)
            self.sync_directory(one.parent)


def full(error: OSError, file: int) -> Exception:
    """The error to raise for a failed write to an open file: StoreFull when space was missing."""
    if not is_full(error):
        return error
    return StoreFull(str(refusal(Path(os.readlink(f"/proc/self/fd/{file}")).parent, "an image")))


def spoiled(error: OSError) -> bool:
    """Whether a file that could not be read counts as damaged: not when this process had no descriptor or memory left."""
    return error.errno not in _PASSING


def draft_name(drafts: Path) -> Path:
    """A unique path for a draft."""
    return drafts / secrets.token_hex(8)


@contextlib.contextmanager
def scratch(drafts: Path) -> Iterator[Path]:
    """A directory for a while. It is locked, so that a collection removes only those of the dead."""
    path = draft_name(drafts)
    path.mkdir(mode=0o700)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def abandoned(path: Path) -> bool:
    """Whether a scratch directory's owner is gone."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(handle)


def size_below(root: Path) -> int:
    """Bytes of all files below ``root``, whatever comes and goes meanwhile."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def write_whole(disk: Disk, drafts: Path, final: Path, chunks: Iterable[Chunk]) -> None:
    """Write a file durably, at once or not at all. What fails leaves no draft; what is killed leaves one for gc."""
    draft = draft_name(drafts)
    try:
        file = disk.create(draft)
        try:
            for chunk in chunks:
                disk.write(file, chunk)
            disk.sync(file)
        finally:
            os.close(file)
        disk.rename(draft, final)
    except Exception:
        disk.remove(draft)
        raise
    disk.sync_directory(final.parent)
