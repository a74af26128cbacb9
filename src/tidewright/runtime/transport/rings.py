"""Rings of fixed entries between two processes, one that writes and one that reads, with an eventfd(2) as doorbell.

The writer fills an entry, then adds 1 to the eventfd; the reader takes as many entries as the eventfd counts. So no index is
shared, nothing the other side writes is trusted but the entries, and the system calls order memory on every processor. A client
may have no more tasks outstanding than a ring has entries: one that never reads its completions stops only itself.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

from msgspec import Struct

from ...base.errors import UsageError

ENTRIES = 256
"""Entries of a ring, and most tasks that a client has outstanding."""
_SUBMISSION = struct.Struct("<QII")
_COMPLETION = struct.Struct("<QIIQQQ")
SUBMISSION_BYTES, COMPLETION_BYTES = 64, 256
TEXT_BYTES = COMPLETION_BYTES - _COMPLETION.size - 2
RING_BYTES = ENTRIES * (SUBMISSION_BYTES + COMPLETION_BYTES)


class Submission(Struct, frozen=True, gc=False):
    """``task``: the client's own number for it. ``slot``: which of the model's slots holds the inputs and takes the outputs."""

    task: int
    model: int
    slot: int


class Completion(Struct, frozen=True, gc=False):
    """Times in nanoseconds of CLOCK_MONOTONIC, the same in all processes of a host. ``state``: a TaskState."""

    task: int
    state: int
    preemptions: int
    submitted_ns: int
    launched_ns: int
    ended_ns: int
    error: str = ""


class RingPair:
    """Both rings of a client in one mapping: submissions first, completions behind them."""

    def __init__(self, memory: mmap.mmap, submitted: int, completed: int) -> None:
        self._memory, self.submitted, self.completed = memory, submitted, completed
        self._next_in = self._next_out = 0

    def submit(self, entry: Submission) -> None:
        """The client's side. The caller has made sure that fewer than ``ENTRIES`` tasks are outstanding."""
        at = self._next_out % ENTRIES * SUBMISSION_BYTES
        _SUBMISSION.pack_into(self._memory, at, entry.task, entry.model, entry.slot)
        self._next_out += 1
        os.eventfd_write(self.submitted, 1)

    def submissions(self) -> Iterator[Submission]:
        """The runtime's side: what was submitted since the last call; none where the doorbell is silent."""
        for at in self._rung(self.submitted, SUBMISSION_BYTES, 0):
            yield Submission(*_SUBMISSION.unpack_from(self._memory, at))

    def complete(self, entry: Completion) -> None:
        """The runtime's side. The client has an entry free for each task that it submitted."""
        at = ENTRIES * SUBMISSION_BYTES + self._next_out % ENTRIES * COMPLETION_BYTES
        text = entry.error.encode(errors="replace")[:TEXT_BYTES]
        _COMPLETION.pack_into(
            self._memory,
            at,
            entry.task,
            entry.state,
            entry.preemptions,
            entry.submitted_ns,
            entry.launched_ns,
            entry.ended_ns,
        )
        at += _COMPLETION.size
        struct.pack_into("<H", self._memory, at, len(text))
        self._memory[at + 2 : at + 2 + len(text)] = text
        self._next_out += 1
        os.eventfd_write(self.completed, 1)

    def completions(self) -> Iterator[Completion]:
        """The client's side: what has ended since the last call. Blocks where the eventfd was made to."""
        for at in self._rung(self.completed, COMPLETION_BYTES, ENTRIES * SUBMISSION_BYTES):
            fields: tuple[int, int, int, int, int, int] = _COMPLETION.unpack_from(self._memory, at)
            text = at + _COMPLETION.size
            (length,) = struct.unpack_from("<H", self._memory, text)
            error = self._memory[text + 2 : text + 2 + min(length, TEXT_BYTES)].decode(errors="replace")
            yield Completion(*fields, error=error)

    def _rung(self, doorbell: int, size: int, base: int) -> Iterator[int]:
        """Where the entries begin that the doorbell counts. Raises UsageError where it counts more than a ring holds."""
        try:
            count = os.eventfd_read(doorbell)
        except BlockingIOError:
            return
        if count > ENTRIES:
            raise UsageError(f"{count} entries at once", f"have {ENTRIES} tasks outstanding at most")
        for _ in range(count):
            at = base + self._next_in % ENTRIES * size
            self._next_in += 1
            yield at
