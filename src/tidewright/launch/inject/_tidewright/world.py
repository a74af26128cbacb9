"""A world: one default process group of torch, with all groups below it. Its names, and how its ranks gather again."""

from __future__ import annotations

import contextlib
import os
import uuid

from .control.op_stream import ident
from .process_control import control
from .rendezvous import frames
from .rendezvous.client import link

_epochs = {}


def named(kind, where):
    """The store's name for a world that meets at ``where``; another one each time a process meets there again.

    Restarted workers of torchrun meet at the same place, but have another restart count.
    """
    key = f"{kind}/{where}/{_run()}"
    _epochs[key] = epoch = _epochs.get(key, 0) + 1
    return f"w/{key}/{epoch}"


def _run():
    return "/".join(os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT"))


def agreed(store, rank):
    """A name for a world whose ranks share a store that it was not made for, another one each time it is used."""
    key = f"tidewright/world/{store.add(f'tidewright/uses/{rank}', 1)}"
    if rank == 0:
        store.set(key, uuid.uuid4().hex)
    return "w/own/" + bytes(store.get(key)).decode()


class TorchWorld:
    """The world this process is in. ``name`` is the prefix of its keys."""

    def __init__(self, name, rank, size):
        self.name, self.rank, self.size = name, rank, size
        self.ident = ident(name, size)
        self._control = (name + "/control").encode()
        self._groups = {}
        control.join(self.ident, rank, size)

    def count(self, name, ranks):
        """How many groups of this name and these members there have been, this one included."""
        key = (name, tuple(ranks))
        self._groups[key] = self._groups.get(key, 0) + 1
        return self._groups[key]

    def gather(self):
        """Wait, for as long as it takes, until every rank that has not ended is here too; the number of the round."""
        parts = [str(self.rank).encode(), str(self.size).encode(), uuid.uuid4().bytes]
        return frames.to_number(link.ask(frames.GATHER, self._control, parts, wait_s=0)[0])

    def tell(self, key, value):
        """Publish a value to the other ranks."""
        link.ask(frames.SET, self._control, [key.encode(), value])

    def hear(self, keys):
        """The values that others have published; waits for them."""
        return link.ask(frames.MGET, self._control, [key.encode() for key in keys], wait_s=0)

    def check(self, key):
        """Whether a rank has published it."""
        return bool(frames.to_number(link.ask(frames.CHECK, self._control, [key.encode()])[0]))

    def agree(self, key, value):
        """The value that the first of all ranks has published under ``key``: this one's, if it is the first."""
        return link.ask(frames.CAS, self._control, [key.encode(), b"", value])[0]

    def ended(self):
        """Publish that this rank has ended. No rank waits for this, so its loss does little harm."""
        with contextlib.suppress(OSError, RuntimeError):
            for key in (b"ended", b"ended/%d" % self.rank):  # in this order: see ``gone``
                link.ask(frames.SET, self._control, [key, b"1"], patience_s=0)

    def gone(self):
        """The ranks that have ended; seldom any, so it is one question."""
        if not self.check("ended"):
            return set()
        return {rank for rank in range(self.size) if rank != self.rank and self.check(f"ended/{rank}")}


World = TorchWorld
"""By the name under which ranks of images made before look for it when their program makes its first group."""
