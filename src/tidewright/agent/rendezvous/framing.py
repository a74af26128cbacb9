"""Bytes of a connection, cut anywhere, to the frames that they are (frames.py)."""

from __future__ import annotations

from ...launch.inject._tidewright.rendezvous import frames as fr


class FrameBuffer:
    """What has come of a connection and is not yet a request."""

    def __init__(self) -> None:
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """More has come."""
        self._data += data

    def next(self, longest: int) -> bytes | None:
        """The next frame without its length; None while it is not whole. Raises ValueError when it is longer than allowed."""
        if len(self._data) < fr.HEAD.size:
            return None
        end = fr.HEAD.size + fr.length(bytes(self._data[: fr.HEAD.size]), longest)
        if len(self._data) < end:
            return None
        with memoryview(self._data) as view:
            frame = bytes(view[fr.HEAD.size : end])
        del self._data[:end]
        return frame
