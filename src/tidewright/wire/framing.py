"""Messages as frames of a byte stream: one JSON object per line.

Knows nothing of sockets, nor of what the messages mean."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..base.errors import TideError

MAX_FRAME = 16 * 2**20
"""Longest line either side accepts, bytes; a launch with the largest environment Linux allows (2 MiB) fits easily."""
T = TypeVar("T")


class FrameError(TideError):
    """The peer sent something that is not a frame of this protocol; the connection is closed after saying so."""


def encode(message: Struct) -> bytes:
    """One frame. Raises FrameError when it is longer than the other side accepts."""
    body = msgspec.json.encode(message)
    if len(body) >= MAX_FRAME:
        raise FrameError(f"message of {len(body)} bytes; the limit is {MAX_FRAME}")
    return body + b"\n"


def decode(line: bytes, kind: type[T]) -> T:
    """The message in a frame. Raises FrameError naming the field that is wrong."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a {kind.__name__}: {error}") from error


def raw(value: Any) -> msgspec.Raw:
    """``value`` as JSON, to be carried inside a message."""
    return msgspec.Raw(msgspec.json.encode(value))


class Framer:
    """Bytes in, frames out; holds at most one unfinished frame of ``limit`` bytes."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Frames completed by ``data``, without their newline. Raises FrameError at a frame beyond the limit."""
        *whole, rest = data.split(b"\n")
        frames = []
        for part in whole:
            self._grow(part)
            frames.append(bytes(self._rest))
            self._rest.clear()
        self._grow(rest)
        return frames

    def _grow(self, part: bytes) -> None:
        self._rest += part
        if len(self._rest) > self._limit:
            raise FrameError(f"a line of more than {self._limit} bytes")
