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

from ...base.errors import WorldError
from ...wire.state_files import open_own

_MAGIC = b"TIDEMRK1"
_FORM = struct.Struct(">8sQQ32sQ32s")
_IDS = struct.Struct(">Q8s")
"""After the slot's checksum: the next job's id, with a checksum of its own. Versions that do not know of it read on."""
_SLOT = 512
"""Bytes from slot to slot: one disk sector, so that writing one cannot tear the other."""


class Watermark(Struct, frozen=True):
    """The last two committed points, each a turn and the chain's hash there. ``next_job``: no id from here on was ever
    given out; 0: not known."""

    sequence: int
    previous_turn: int
    previous_hash: bytes
    turn: int
    hash: bytes
    next_job: int = 0


class WatermarkFile:
    """``journal.mark``, open for writing."""

    def __init__(self, path: Path, watermark: Watermark) -> None:
        self.watermark = watermark
        self._file = open_own(path, os.O_RDWR | os.O_CREAT)
        if os.fstat(self._file).st_size < 2 * _SLOT:
            # Room is taken up front: a full disk must not keep a committed turn from being marked.
            os.pwrite(self._file, bytes(2 * _SLOT), 0)
            self._write(watermark)

    def advance(self, turn: int, digest: bytes, next_job: int = 0) -> None:
        """Note that everything up to ``turn`` is durable. Raises WorldError when the disk refuses."""
        before = self.watermark
        ids = max(before.next_job, next_job)
        self.reset(Watermark(before.sequence + 1, before.turn, before.hash, turn, digest, ids))

    def reset(self, watermark: Watermark) -> None:
        """Replace both points, after a torn transaction was dropped."""
        self._write(watermark)
        self.watermark = watermark

    def _write(self, watermark: Watermark) -> None:
        try:
            os.pwrite(self._file, encode(watermark), watermark.sequence % 2 * _SLOT)
            os.fdatasync(self._file)
        except OSError as error:
            raise WorldError(f"the journal's watermark cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file; the mark stays."""
        os.close(self._file)


def encode(watermark: Watermark) -> bytes:
    """One slot: the fields and half of their SHA-256, then the ids."""
    end = (watermark.turn, watermark.hash)
    body = _FORM.pack(_MAGIC, watermark.sequence, watermark.previous_turn, watermark.previous_hash, *end)
    return body + sha256(body).digest()[:16] + _IDS.pack(watermark.next_job, _ids_check(body, watermark.next_job))


def _ids_check(body: bytes, next_job: int) -> bytes:
    return sha256(body + next_job.to_bytes(8, "big")).digest()[:8]


def read_watermark(path: Path) -> Watermark | None:
    """The newest intact slot; None when the file is missing or neither slot is intact."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found = [watermark for at in (0, _SLOT) if (watermark := _decode(data[at : at + _SLOT])) is not None]
    return max(found, key=lambda watermark: watermark.sequence, default=None)


def _decode(slot: bytes) -> Watermark | None:
    body, check, ids = slot[: _FORM.size], slot[_FORM.size : _FORM.size + 16], slot[_FORM.size + 16 :]
    if len(check) != 16 or not body.startswith(_MAGIC) or sha256(body).digest()[:16] != check:
        return None
    _, sequence, previous_turn, previous_hash, turn, digest = _FORM.unpack(body)
    return Watermark(sequence, previous_turn, previous_hash, turn, digest, _next_job(body, ids))


def _next_job(body: bytes, ids: bytes) -> int:
    """The slot's next id; 0 when it holds none that is intact (written by an earlier version)."""
    if len(ids) < _IDS.size:
        return 0
    next_job, check = _IDS.unpack(ids[: _IDS.size])
    return int(next_job) if check == _ids_check(body, next_job) else 0
