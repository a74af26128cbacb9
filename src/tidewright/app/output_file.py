"""Files that a command writes for its user at the end of long work: checked before it, and there whole or not at all.

It refuses to know what is in them, but for what pages of plots need.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from ..base.errors import UsageError
from ..live.journal.store import DATABASE
from ..report.figure import require_matplotlib
from ..sim.stream import check_packed as check_packed

ROOM_BYTES = 1 << 20
"""What must be free before the work: most pages and tables are smaller."""
_STREAMS = ("/dev/std", "/dev/fd/", "/proc/")
"""Names of what is open already: a shell's ``> file`` behind them would not notice that another file took its place."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_REPLACED = (*_FORBIDDEN, errno.EBUSY)
"""A file that is there may still be written to."""


def check_plots() -> None:
    """Raise UsageError naming the extra to install when no page with plots could be made."""
    require_matplotlib()


def check_output(path: Path, option: str, room: int = ROOM_BYTES) -> None:
    """Raise UsageError, naming the path and what to do, unless a file can be written there now, of ``room`` bytes.

    Nothing is left behind.
    """
    with _explained(path, option):
        _check_place(path)
        if not _is_stream(path):
            try:
                with _draft(path) as (handle, _):
                    _write(handle, bytes(room))
            except OSError as error:
                if error.errno not in _NOT_REPLACED or not path.exists():
                    raise
                os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))


def files_named(text: str) -> Iterator[Path]:
    """What the text of an option, like ``FILE``, ``learn:JOURNAL`` or ``gavel:FILE,throughputs=FILE``, may name: paths, most of
    which do not exist; of a directory the journal in it. What was written last to a journal is in a log beside its database."""
    name, _, argument = text.partition(":")
    for part in (text, name, argument.split(",")[0], *(part.partition("=")[2] for part in text.split(","))):
        if part:
            path = Path(part, DATABASE) if os.path.isdir(part) else Path(part)
            yield path
            if path.suffix == Path(DATABASE).suffix:
                yield path.with_name(f"{path.name}-wal")


def check_apart(path: Path, option: str, reads: Iterable[str]) -> None:
    """Raise UsageError when writing ``path`` would replace a file that one of the texts ``reads`` names."""
    for text in reads:
        check_not_among(path, option, files_named(text), text)


def check_not_among(path: Path, option: str, files: Iterable[Path], text: str) -> None:
    """Raise UsageError when ``path`` is one of the files that ``text`` is read from."""
    for read in () if _is_stream(path) else files:
        with contextlib.suppress(OSError):
            if path.samefile(read):
                raise UsageError(f"{option} {path} is the file that {text} is read from", f"give another {option}")


def write_output(path: Path, content: bytes, option: str) -> None:
    """Write a file, or replace the one that is there, in one step; a pipe or device is written to as it is, and so is a file that
    cannot be replaced: a mount point, or one in a directory of others.

    Raises UsageError, naming the path and what to do; what was there is still there then, unless it could not be replaced.
    """
    with _explained(path, option):
        _check_place(path)
        if _is_stream(path):
            path.write_bytes(content)
            return
        try:
            with _draft(path) as (handle, draft):
                _write(handle, content)
                os.fsync(handle)
                os.replace(draft, os.path.realpath(path))
        except OSError as error:
            if error.errno not in _NOT_REPLACED or not path.exists():
                raise
            path.write_bytes(content)


def _check_place(path: Path) -> None:
    """What opening a draft beside it would not show. Raises OSError."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no directory {path.parent}")
    with contextlib.suppress(FileNotFoundError):
        os.lstat(path)  # a name may be too long, for one
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _is_stream(path: Path) -> bool:
    return path.exists() and (not path.is_file() or str(path.absolute()).startswith(_STREAMS))


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[tuple[int, Path]]:
    """A new file beside the one that ``path`` leads to, with its owner and mode; removed at the end, if still there."""
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".tide-{secrets.token_hex(4)}.new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            now = target.stat()
            os.fchown(handle, now.st_uid, now.st_gid)
            os.fchmod(handle, stat.S_IMODE(now.st_mode))
        yield handle, draft
    finally:
        os.close(handle)
        draft.unlink(missing_ok=True)


def _write(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


@contextlib.contextmanager
def _explained(path: Path, option: str) -> Iterator[None]:
    """An OSError as a UsageError that says what to do about this path."""
    try:
        yield
    except OSError as error:
        _refuse(path, option, error)


def _refuse(path: Path, option: str, error: OSError) -> NoReturn:
    why = error.strerror or str(error)
    if isinstance(error, IsADirectoryError):
        remedy = f"name a file in it, e.g. {option} {path / 'out'}"
    elif isinstance(error, FileNotFoundError):
        remedy = f"make it with mkdir -p {path.parent}, or give another {option}"
    elif error.errno in _FULL:
        remedy = f"free some space there, or give a {option} on another disk"
    elif error.errno in _FORBIDDEN:
        remedy = f"give a {option} in a directory where you may create files"
    else:
        remedy = f"give another {option}"
    raise UsageError(f"cannot write {path}: {why}", remedy) from None
