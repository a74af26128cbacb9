"""What a cut knows of the processes it stops: their control pages, as values that travel between nodes."""

from __future__ import annotations

from typing import Protocol

import msgspec

FREE, STOP, DRAIN, DROP = 0, 1, 2, 3
"""Phases of a hold, as the control page has them."""
P2P = 16
GROUP, SEND, RECV, ANY, PAIRED, GONE = 1, 2, 3, 4, 16, 32
RUNNING, HELD, DRAINED, PARKED, REBUILDING = 1, 2, 3, 4, 5
STATES = {RUNNING: "running", HELD: "held", DRAINED: "drained", PARKED: "parked", REBUILDING: "connecting again"}


class PageEntry(msgspec.Struct, frozen=True, array_like=True):
    """What one process has issued of one kind: the collectives of a group, or messages to or from a peer.

    ``peer``: a rank of the world, or a group's size. ``want``: the number of the operation at which a thread was
    stopped, ``waiting`` that of one whose completion a thread waits for; 0 for none.
    """

    index: int
    ident: int
    kind: int
    peer: int
    issued: int
    want: int = 0
    waiting: int = 0
    members: tuple[int, ...] = ()

    @property
    def what(self) -> int:
        """The kind without its flags."""
        return self.kind & 15

    @property
    def gone(self) -> bool:
        """Whether its group has been destroyed by this process."""
        return bool(self.kind & GONE)


class PageState(msgspec.Struct, frozen=True, array_like=True):
    """One control page as it was read. ``job_rank``: the rank's number in the job; ``rank``: that in the ``world``.

    ``dead``: its process is gone. ``left``: the world this process was in before, and its rank there. ``step_us``: how long
    its last training step took, 0: not known; ``standing``: it stands still where one begins. ``exiting``: it issues nothing
    more; ``ended``: its connections are closed for good as well.
    """

    job_rank: int
    name: str
    pid: int
    world: int
    rank: int
    size: int
    state: int
    phase: int
    parks: int = 0
    store_wait: bool = False
    exiting: bool = False
    dead: bool = False
    left: tuple[int, int] = (0, 0)
    entries: tuple[PageEntry, ...] = ()
    step_us: int = 0
    standing: bool = False
    ended: bool = False

    @property
    def finished(self) -> bool:
        """Whether it issues nothing more, even if other ranks wait for it."""
        return self.dead or self.exiting

    @property
    def closed(self) -> bool:
        """Whether its connections are closed for good."""
        return self.dead or self.ended


class CutOrder(msgspec.Struct, frozen=True, array_like=True):
    """How far an entry of a page may go."""

    job_rank: int
    name: str
    index: int
    number: int


class Cuts(msgspec.Struct, frozen=True):
    """What is published to the pages of a node. ``p2p``: messages are to be drained, ``anybody``: also those to receives from any
    source; ``ticket``: of this cut alone."""

    phase: int
    ticket: int = 0
    p2p: bool = False
    anybody: bool = False
    orders: tuple[CutOrder, ...] = ()


class Pages(Protocol):
    """The control pages of the ranks on one node."""

    def hold(self) -> None:
        """Stop all processes, those that appear meanwhile too, and pass a fence: what is read then is final."""

    def read(self) -> list[PageState]:
        """All pages."""

    def publish(self, cuts: Cuts) -> None:
        """Let processes go as far as that, and on to the next phase; to DROP only those that have drained."""

    def release(self) -> None:
        """Release all; those that were ordered to drop their connections build them anew."""
