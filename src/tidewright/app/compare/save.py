"""Results of cells in a folder, one line each in a file that is only appended to: an interrupted comparison goes on where it was.

A line counts for the same question, the same contents of the files that it names, and the same code.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import inspect
import os
from functools import cache, lru_cache
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct

from ... import __version__
from ...base.errors import UsageError
from ...policy.registry import make
from ..output_file import check_output, files_named
from ..simulate import Question
from .worker import RunResult

SCHEMA = "tidewright.cell/1"
CELLS = "cells.jsonl"
"""The file in the folder."""
_DECIDING = ("base", "model", "plan", "estimate", "placement", "policy", "engine", "drive", "sim")
"""Rooms whose code a result depends on."""

_ROOM_BYTES = 1 << 16
"""What must be free for results: each takes some thousand bytes."""

_SHOWING = ("report", "plots")
"""Files of ``sim`` that show results and decide nothing."""
_ANOTHER = "give a new or empty directory with --save"


class SavedCell(Struct, frozen=True, kw_only=True):
    """One line: ``key`` is the hash of the question, ``code`` that of the program that answered it, ``sum`` that of the rest."""

    schema: str = SCHEMA
    key: str
    code: str
    question: Question
    found: RunResult
    sum: str = ""


def key_of(question: Question) -> str:
    """Hash of a question and of the files that its options name."""
    digest = hashlib.sha256(msgspec.json.encode(question))
    digest.update(_policy_source(question.policy))
    for text in (question.trace, question.cluster, question.profile, question.costs, question.rates):
        for path in files_named(text):
            digest.update(_content(path))
    return digest.hexdigest()[:32]


def _content(path: Path) -> bytes:
    try:
        status = path.stat()
        # SQLite may make an empty log where there was none, and remove it.
        return _hashed(path, status.st_size, status.st_mtime_ns) if status.st_size else b""
    except OSError:
        return b""


@lru_cache
def _hashed(path: Path, size: int, changed_ns: int) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _policy_source(name: str) -> bytes:
    """Hash of the file that a policy is written in, which may be another package's."""
    try:
        return _content(Path(inspect.getsourcefile(type(make(name))) or ""))
    except TypeError:
        return b""


@cache
def code_of() -> str:
    """Hash of the code and packaged data that decide what comes out of a simulation."""
    digest = hashlib.sha256(__version__.encode())
    root = Path(__file__).parents[2]
    for room in _DECIDING:
        for file in sorted((root / room).rglob("*")):
            shows = "comparison" in file.parts or file.stem in _SHOWING
            if file.is_file() and file.suffix != ".pyc" and not shows:
                digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _sum(saved: SavedCell) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(saved, sum=""))).hexdigest()[:16]


class SaveFolder:
    """``known`` are the results in the folder by key; ``outdated`` counts those of other code.

    Raises UsageError when it is no such folder, when it is damaged, or when another comparison writes to it.
    """

    def __init__(self, folder: Path) -> None:
        self.known: dict[str, RunResult] = {}
        self.outdated = 0
        self.torn = False
        """Whether the last line was incomplete: its writer was killed. It is gone."""
        self._path = folder / CELLS
        try:
            folder.mkdir(exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"cannot write {self._path}: {error.strerror}", _ANOTHER) from None
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{self._path} is in use by another comparison", f"wait for it, or {_ANOTHER}") from None
        whole = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    self.torn = True
                    break
                whole += len(line)
                self._take(number, line)
        self._file.truncate(whole)

    def _take(self, number: int, line: bytes) -> None:
        try:
            saved = msgspec.json.decode(line, type=SavedCell)
            if saved.schema != SCHEMA:
                raise msgspec.ValidationError(f"schema {saved.schema}, this version reads {SCHEMA}")
            if saved.sum != _sum(saved):
                raise msgspec.ValidationError("its checksum is another")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{self._path}, line {number}: damaged, or not a saved cell of this version ({error})",
                f"delete that line, and its cell is run again; or {_ANOTHER}",
            ) from None
        if saved.code == code_of():
            self.known[saved.key] = saved.found
        else:
            self.outdated += 1

    def add(self, key: str, question: Question, found: RunResult) -> None:
        """Append a result, on the disk when this returns. Raises UsageError when the disk refuses; no part is there then."""
        saved = SavedCell(key=key, code=code_of(), question=question, found=found)
        saved = msgspec.structs.replace(saved, sum=_sum(saved))
        handle, left = self._file.fileno(), memoryview(msgspec.json.encode(saved) + b"\n")
        whole = os.fstat(handle).st_size
        try:
            while left:
                left = left[os.write(handle, left) :]
            os.fsync(handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(handle, whole)
            raise UsageError(
                f"cannot write {self._path}: {error.strerror}", "free some space and give the command again"
            ) from None

    def __enter__(self) -> SaveFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def check_save(folder: Path) -> None:
    """Raise UsageError for a path that is a file, has no parent, or is a folder of something else, and where no more can be
    written."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--save {folder}: it is a file, not a directory", _ANOTHER)
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"--save {folder}: there is no directory {folder.absolute().parent}", _ANOTHER)
    try:
        foreign = folder.is_dir() and any(folder.iterdir()) and not (folder / CELLS).is_file()
    except OSError as error:
        raise UsageError(f"cannot read {folder}: {error.strerror}", _ANOTHER) from None
    if foreign:
        raise UsageError(f"--save {folder}: it holds other files and no saved comparison ({CELLS})", _ANOTHER)
    check_output(folder / CELLS if folder.is_dir() else folder, "--save", _ROOM_BYTES)
