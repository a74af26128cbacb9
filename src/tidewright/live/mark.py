"""The watermark: which turns were made durable, kept outside the database.

SQLite opens a truncated or damaged write-ahead log without a word, the last transactions missing. The mark says what
must be there. Two slots are written in turn, each with its own checksum, so that a torn write spoils one at most.
"""

from __future__ import annotations

import os
import struct
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from ..base.errors import WorldError

_MAGIC = b"TIDEMRK1"
_FORM = struct.Struct(">8sQQ32sQ32s")
_SLOT = 512
"""Bytes from slot to slot: one disk sector, so that writing one cannot tear the other."""


class Mark(Struct, frozen=True):
    """The last two committed points, each a turn and the chain's hash there."""

    sequence: int
    previous_turn: int
    previous_hash: bytes
    turn: int
    hash: bytes


class MarkFile:
    """``journal.mark``, open for writing."""

    def __init__(self, path: Path, mark: Mark) -> None:
        self.mark = mark
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size < 2 * _SLOT:
            # Room is taken up front: a full disk must not keep a committed turn from being marked.
            os.pwrite(self._file, bytes(2 * _SLOT), 0)
            self._write(mark)

    def advance(self, turn: int, digest: bytes) -> None:
        """Note that everything up to ``turn`` is durable. Raises WorldError when the disk refuses."""
        self.reset(Mark(self.mark.sequence + 1, self.mark.turn, self.mark.hash, turn, digest))

    def reset(self, mark: Mark) -> None:
        """Replace both points, after a torn transaction was dropped."""
        self._write(mark)
        self.mark = mark

    def _write(self, mark: Mark) -> None:
        try:
            os.pwrite(self._file, encode(mark), mark.sequence % 2 * _SLOT)
            os.fdatasync(self._file)
        except OSError as error:
            raise WorldError(f"the journal's watermark cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file; the mark stays."""
        os.close(self._file)


def encode(mark: Mark) -> bytes:
    """One slot: the fields and half of their SHA-256."""
    body = _FORM.pack(_MAGIC, mark.sequence, mark.previous_turn, mark.previous_hash, mark.turn, mark.hash)
    return body + sha256(body).digest()[:16]


def read_mark(path: Path) -> Mark | None:
    """The newest intact slot; None when the file is missing or neither slot is intact."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found = [mark for at in (0, _SLOT) if (mark := _decode(data[at : at + _FORM.size + 16])) is not None]
    return max(found, key=lambda mark: mark.sequence, default=None)


def _decode(slot: bytes) -> Mark | None:
    body, check = slot[: _FORM.size], slot[_FORM.size :]
    if len(check) != 16 or not body.startswith(_MAGIC) or sha256(body).digest()[:16] != check:
        return None
    return Mark(*_FORM.unpack(body)[1:])
