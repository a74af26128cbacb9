"""The record of one attempt on this node: what must outlive the agent, and is on disk before each step that relies on it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ...checkpoint.protocol import GangImage
from ...model.failure import RankFailure
from ...wire.agent import ImageReport, Peer, Phase, Verb


class AttemptRecord(Struct, kw_only=True, omit_defaults=True):
    """``memo.json``. ``ending``: "stop" or "cooperative" once the ranks were asked to end, at ``ending_at`` (wall-clock
    seconds). The file keeps the field names of its first version, so that agents of several versions read it."""

    phase: Phase = "starting"
    verb: Verb = "launch"
    ending: Literal["", "stop", "cooperative"] = ""
    ending_at: float = 0.0
    why: str = ""
    error: str = ""
    took_us: int = 0
    grace_us: int = 0
    level: int = 0
    bounded: bool = False
    hold_until: float = 0.0
    """CLOCK_BOOTTIME seconds at which a bounded hold ends."""
    devices: dict[int, tuple[int, ...]] = {}
    cpus: dict[int, tuple[int, ...]] = {}
    image: GangImage | None = None
    quiesced: bool = field(default=False, name="quiet")
    """The ranks are quiesced, without connections, and must be released when they run again."""
    serial: int = 0
    """Number of the full image that it is suspended in, or comes back from."""
    cut: int = 0
    """Number of the cut that the suspension needs: of its image, or one that no other suspension of the attempt has."""
    previous: int = 0
    """Number of the last image that the job could come back from when the latest one was ordered; 0: not known."""
    generation: int = 0
    """How often its ranks have come back from images here; each time they get new directories."""
    whole: int = 0
    """The generation of ranks that has come back whole, from when it may be released until the attempt runs: an agent killed then
    must not bring them back once more, as ranks on other nodes go on."""
    checkpointing: bool = False
    """Ranks may be quiesced for an image that an agent did not live to finish."""
    peers: tuple[Peer, ...] = ()
    boot: str = ""
    """Of the node, when its ranks were started; processes of an earlier one are gone. Empty: not known."""
    rendezvous_generation: str = field(default="", name="sitting")
    """The request by which its ranks started or were restored, the same on all its nodes: the generation of their rendezvous."""
    last_image: ImageReport | None = field(default=None, name="shot")
    max_level: int = field(default=-1, name="cap")
    """Highest level that works for these ranks, once something lowered it; ``max_level_why`` says what."""
    max_level_why: str = field(default="", name="cap_why")
    needs: dict[int, int] = {}
    """Device memory by rank, bytes: the most that was seen; nothing for a rank that was never measured."""
    first_failure: RankFailure | None = None
    op_id: str = ""
    """The suspension or resumption that was asked for last."""
    ops: list[str] = []
    memory_limit: str = ""
    share_limits: str = ""
    host_limits: str = ""
    notice: str = ""
    no_room: bool = False
    """The last suspension failed for want of room on the disk."""
    evicted: bool = False
    """It was ended for what it did; ``why`` says what."""


def cut_of(serial: int, op: str) -> int:
    """The number of the cut that a request needs, the same on all nodes: its image's, or else when it was decided on, which ends
    its op_id. A freeze makes no image, and what is said of one must not be taken for another."""
    decided = op.rpartition(".")[2]
    return serial or (int(decided) if decided.isdecimal() else 0)


def image_ordered(op: str) -> int | None:
    """The number of the image that a request orders; None for any other request."""
    order, _, serial = op.rpartition(".")
    return int(serial) if order.endswith(".checkpoint") and serial.isdecimal() else None
