"""Files that a user names for results: looked at before the work that fills them, and there whole or not at all after it."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import BinaryIO

from .errors import UsageError


class OutputFile:
    """The file that ``option`` names. ``finish`` puts what was written to ``stream`` in its place; without it the old file stays.

    A pipe or a device (``/dev/stdout``) and a file in a folder that takes no new ones are written in place; of a symbolic link,
    what it points to is replaced. Raises UsageError that names the option.
    """

    def __init__(self, path: Path, option: str) -> None:
        self.path, self._option = path, option
        self._target = Path(os.path.realpath(path))
        self._draft: Path | None = None
        try:
            self.stream = self._open()
        except OSError as error:
            raise self.unwritable(error) from None

    def _open(self) -> BinaryIO:
        there = self._target.exists()
        if there and not self._target.is_file():
            return self._target.open("wb")
        try:
            stream = self._open_draft()
        except PermissionError:
            if not there:
                raise
            return self._target.open("wb")
        if there:
            os.chmod(stream.fileno(), self._target.stat().st_mode & 0o7777)
        return stream

    def _open_draft(self) -> BinaryIO:
        """A file of its own beside the target, also where another writer has the same target, or was killed."""
        for number in itertools.count():
            draft = self._target.with_name(f".{self._target.name}.{number}.new")
            with contextlib.suppress(FileExistsError):
                stream = draft.open("xb")
                self._draft = draft
                return stream
        raise AssertionError("there are more names than files")

    def finish(self) -> None:
        """Everything is written."""
        try:
            self.stream.close()
            if self._draft is not None:
                os.replace(self._draft, self._target)
                self._draft = None
        except OSError as error:
            self.discard()
            raise self.unwritable(error) from None

    def discard(self) -> None:
        """What was written is not wanted; once finished, this does nothing."""
        with contextlib.suppress(OSError):  # what is still to be flushed is thrown away with the rest
            self.stream.close()
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)
            self._draft = None

    def unwritable(self, error: OSError) -> UsageError:
        """The error to raise for one of the disk's."""
        return UsageError(f"cannot write {self.path}: {error.strerror}", f"give another path with {self._option}")


def check_output(path: Path | None, option: str) -> None:
    """Raise UsageError for a file that could not be written, before the work is done rather than after."""
    if path is None:
        return
    parent = Path(os.path.realpath(path)).parent
    if not parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {path.parent}", f"give another {option}")
    if path.exists() and not path.is_file():
        if not os.access(path, os.W_OK):
            raise UsageError(f"cannot write {path}: Permission denied", f"give another path with {option}")
        return  # opening a pipe would wait for its reader
    if not path.exists() or os.access(parent, os.W_OK | os.X_OK):
        OutputFile(path, option).discard()
    elif not os.access(path, os.W_OK):
        raise UsageError(f"cannot write {path}: Permission denied", f"give another path with {option}")


def write_output(path: Path, content: bytes, option: str) -> None:
    """Write the file whole. Raises UsageError where the disk refuses it; an old file is there then."""
    file = OutputFile(path, option)
    try:
        file.stream.write(content)
    except OSError as error:
        file.discard()
        raise file.unwritable(error) from None
    file.finish()
