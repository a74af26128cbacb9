"""The control page: the shared memory through which a process and its node's agent agree on a cut.

One file per process in ``ctl`` of the rank directory, mapped by both sides; 64-bit words in the machine's own order. A
word has one writer: the process writes the first half of the header and the entries, the agent writes ``HOLD`` and what
follows it in the header, and ``CUT`` of each entry. Nothing here knows what a cut is for. Standard library only.

An *entry* counts operations of one kind that are issued in one order: the collectives of a group, or the messages from
one rank of it to another (counted by each end for itself).
"""

from __future__ import annotations

import mmap
import os

MAGIC = 0x7469_6465_0001
"""``tide`` and the layout's number."""
ENTRIES = 2048
HEADER_WORDS = 64
ENTRY_WORDS = 8
HEAP_AT = (HEADER_WORDS + ENTRIES * ENTRY_WORDS) * 8
"""Where the lists of members begin (bytes). Each is a run of 32-bit ranks."""
SIZE = HEAP_AT + 128 * 1024
"""Of the file, in bytes; only what is used takes up memory."""

# Words the process writes.
(
    MAGIC_AT,
    PID,
    NAMESPACE,
    WORLD,
    RANK,
    WORLD_SIZE,
    STATE,
    FENCED,
    COUNT,
    HEAP_USED,
    PARKS,
    STORE_WAIT,
    LEFT_WORLD,
    LEFT_RANK,
    EXITING,
    STEP_US,
    STANDING,
) = range(17)
"""STEP_US: how long the last training step took, 0 until one has begun and ended; STANDING: 1 while a thread stands still where
one begins."""
EXIT_DONE, EXIT_BEGUN = 1, 3
"""Values of EXITING, when not 0: the program issues nothing more. EXIT_BEGUN: its connections are still there, or are to
come back;
EXIT_DONE: they are closed for good. The wrapper of images made before says EXIT_DONE for both."""
# Words the agent writes.
HOLD, VERSION, BUILD, TICKET, HOST_PID = 32, 33, 34, 35, 36

# Words of an entry; CUT is the agent's.
ID, KIND, PEER, ISSUED, WANT, WAITING, CUT, MEMBERS = range(8)

RUNNING, HELD, DRAINED, PARKED, REBUILDING = 1, 2, 3, 4, 5
STATES = {RUNNING: "running", HELD: "held", DRAINED: "drained", PARKED: "parked", REBUILDING: "rebuilding"}

FREE, STOP, DRAIN, DROP = 0, 1, 2, 3
"""Values of HOLD. STOP: issue nothing beyond the cut. DRAIN: complete what is issued. DROP: close all connections.
``P2P`` is added to DRAIN where messages between two ranks have been sent, ``ANYBODY`` where a rank has received from
any source."""
P2P, ANYBODY = 16, 32

GROUP, SEND, RECV, ANY = 1, 2, 3, 4
"""Kinds of entry. ANY: receives from any source."""
GONE = 32
"""Added to a kind whose group has been destroyed."""
PAIRED = 16
"""Added to SEND and RECV where an operation, once issued, cannot be taken back (NCCL)."""

HOLD_FILE = "hold"
"""In ``ctl`` while the agent holds: a process that makes its page now begins held."""


class Page:
    """A mapped control page. ``words`` is the whole of it as 64-bit words."""

    def __init__(self, path, create=False, opened=-1):
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0) | os.O_CLOEXEC
        file = os.open(path, flags, 0o600) if opened < 0 else opened
        try:
            if create:
                os.ftruncate(file, SIZE)
            elif os.fstat(file).st_size != SIZE:
                raise ValueError("not a control page: " + str(path))
            self.map = mmap.mmap(file, SIZE)
        finally:
            os.close(file)
        self.path = path
        self.words = memoryview(self.map).cast("Q")
        self.heap = memoryview(self.map)[HEAP_AT:].cast("I")

    def close(self):
        """Unmap."""
        self.words.release()
        self.heap.release()
        self.map.close()

    def add(self, ident, kind, peer, members=()):
        """A new entry; returns the index of its first word.

        ``peer``: the other rank, or the size of a group. ``members``: the ranks of a group that is not the whole
        world; they are left out, which costs the cut some precision, when the heap is full.
        """
        words = self.words
        count = words[COUNT]
        if count >= ENTRIES:
            raise RuntimeError(f"more than {ENTRIES} process groups and channels")
        at = HEADER_WORDS + count * ENTRY_WORDS
        words[at + ID], words[at + KIND], words[at + PEER] = ident, kind, peer
        for word in (ISSUED, WANT, WAITING, CUT):
            words[at + word] = 0
        words[at + MEMBERS] = self._list(members)
        words[COUNT] = count + 1
        return at

    def _list(self, members):
        used = self.words[HEAP_USED]
        if not members or used + len(members) > len(self.heap):
            return 0
        for index, rank in enumerate(members):
            self.heap[used + index] = rank
        self.words[HEAP_USED] = used + len(members)
        return used + 1

    def members(self, at):
        """The ranks of the group whose entry is at ``at``; empty for the whole world."""
        where = self.words[at + MEMBERS]
        return tuple(self.heap[where - 1 : where - 1 + self.words[at + PEER]]) if where else ()

    def behind(self):
        """Whether the agent lets this process go further than it has."""
        words = self.words
        places = range(HEADER_WORDS, HEADER_WORDS + words[COUNT] * ENTRY_WORDS, ENTRY_WORDS)
        return any(words[at + CUT] > words[at + ISSUED] for at in places if not words[at + KIND] & GONE)

    def clear(self):
        """Forget all entries (the process has left its world)."""
        self.words[COUNT] = 0
        self.words[HEAP_USED] = 0
