"""The process that answers questions about forks: ``python -m tidewright.app.explain_worker POLICY``.

Each question comes on stdin and each answer goes to stdout as frames: length, then content. It ends with its controller.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from typing import BinaryIO

import msgspec

from ..explain.questions import answer, read_question
from ..explain.trial import Within
from ..plan.plan import Planner
from ..policy.registry import make

NICENESS = 10
"""Runs after what schedules."""
_LENGTH = struct.Struct("!Q")
OK, FAILED = b"+", b"-"
"""First byte of an answer; after ``FAILED`` come words."""


def frame(content: bytes) -> bytes:
    """Content with its length before it."""
    return _LENGTH.pack(len(content)) + content


def frame_length(head: bytes) -> int:
    """What is to be read after the ``LENGTH_BYTES`` of a frame's head."""
    length: int = _LENGTH.unpack(head)[0]
    return length


LENGTH_BYTES = _LENGTH.size


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    content = stream.read(length := frame_length(head))
    return content if len(content) == length else None


def _within(seconds: float) -> Within:
    begun = time.monotonic()
    return lambda share: lambda: time.monotonic() > begun + share * seconds


def serve(planner: Planner, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer until the questions end. A question is three frames: seconds that it may take, snapshot, question."""
    while (budget := _read(source)) is not None:
        image, question = _read(source), _read(source)
        if image is None or question is None:
            return
        try:
            found = answer(image, planner, read_question(question), _within(float(budget)))
            content = OK + msgspec.msgpack.encode(found)
        except Exception as error:  # the next question may be answered all the same
            content = FAILED + f"{type(error).__name__}: {error}".encode()
        try:
            sink.write(frame(content))
            sink.flush()
        except BrokenPipeError:  # the controller ended meanwhile
            os.dup2(os.open(os.devnull, os.O_WRONLY), sink.fileno())  # the stream is flushed again when it is closed
            return


def main() -> int:
    """Serve on stdin and stdout; nothing else may write there."""
    os.nice(NICENESS)
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(make(sys.argv[1]), sys.stdin.buffer, sink)
    return 0


if __name__ == "__main__":
    sys.exit(main())
