"""The journal's format: one JSON record per turn, chained by SHA-256."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

from ..engine.commands import Command
from ..engine.events import Event

FORMAT = 1
"""Version of the record; the first thing a reader checks."""
GENESIS = bytes(32)
"""What the first record is chained to."""


class TurnRecord(Struct, array_like=True, frozen=True):
    """What one turn was told and what it answered. ``now`` in microseconds of the engine's clock."""

    turn: int
    now: int
    events: list[Event]
    commands: list[Command]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TurnRecord)


def encode(record: TurnRecord) -> bytes:
    """One line of JSON, without the newline."""
    return _encoder.encode(record)


def decode(body: bytes) -> TurnRecord:
    """Raises msgspec.DecodeError or ValidationError on anything that is not a turn of this version."""
    return _decoder.decode(body)


def chain(previous: bytes, body: bytes) -> bytes:
    """Hash of a record: SHA-256 over the previous record's hash and this body. 32 bytes."""
    return hashlib.sha256(previous + body).digest()
