"""Messages about nodes: what is on them, and draining one. Units as in ``wire.api``."""

from __future__ import annotations

from msgspec import Struct

from .answers import SCHEMA
from .job_parts import CauseView

MAX_REASON = 500
"""Characters of an operator's reason."""


class DrainRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep new work off a node. ``why``: one line. ``move``: jobs that can go on elsewhere with all their work leave it. May be
    left out."""

    op_id: str = ""
    why: str = ""
    move: bool = False


class ShareView(Struct, frozen=True, kw_only=True):
    """A job's share of a device: its class, the thousandths of compute and the bytes of memory that it may use (0: none were
    asked for, or it is not known how much the device has)."""

    device: int
    job: int
    share_class: str
    milli: int
    memory: int


class NodeView(Struct, frozen=True, kw_only=True):
    """A node and what its devices do. ``state`` is up, cordoned (it refused launches), draining, silent or down."""

    name: str
    state: str
    kind: str
    devices: int
    free: int
    """Devices in service that nothing holds and nothing is promised."""
    faults: dict[int, str] = {}
    """Devices that take no new work, and why."""
    jobs: tuple[int, ...] = ()
    suspended: tuple[int, ...] = ()
    """Jobs without devices whose memory, or whose only image, is on it: they are lost to it if it is switched off."""
    since: int = 0
    """When it was drained, microseconds since 1970."""
    moves: bool = False
    """Drained so that jobs leave it."""
    device_memory: int = 0
    memory: int = 0
    cpus: int = 0
    uuids: tuple[str, ...] = ()
    note: str = ""
    why: str = ""
    cause: CauseView | None = None
    busy: tuple[tuple[int, ...], ...] = ()
    """Device by device: the jobs on it."""
    shares: tuple[ShareView, ...] = ()
    """Who shares devices with others, device by device."""
    full: bool = False
    full_why: str = ""
    level: str = ""
    criu: str = ""
    """Whether jobs there can be imaged whole; why not; the highest level to suspend them at; the version of its CRIU."""
    address: str = ""
    """Where other nodes' agents reach its own."""
    images: int = 0
    """Rank images it holds."""
    cpus_milli_asked: int = 0
    memory_asked: int = 0
    """Host CPUs (thousandths) and host memory (bytes) set aside for jobs on it."""
    unlimited: str = ""
    """Why it cannot hold ranks to the CPUs and memory they ask for; empty when it can."""


class NodeList(Struct, frozen=True, kw_only=True):
    """All nodes, by name."""

    nodes: tuple[NodeView, ...]
    now: int
    schema: str = SCHEMA
