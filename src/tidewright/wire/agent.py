"""Messages between a controller and a node's agent; wire.framing puts them on a stream.

Knows nothing of sockets, processes or who is on the other end. Times are microseconds, memory is bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ..model.failure import RankFailure
from ..model.node import DeviceFault, NodeSpec

Phase = Literal["starting", "running", "suspending", "suspended", "resuming", "stopping", "exited", "failed"]
Fault = Literal["", "user", "world"]
ShareClass = Literal["rt", "be"]
Verb = Literal["", "launch", "suspend", "resume", "stop", "checkpoint", "fetch"]


class RankSeat(Struct, frozen=True, forbid_unknown_fields=True):
    """Where one rank sits on this node: the indices of its devices."""

    rank: int
    local_rank: int
    devices: tuple[int, ...]


class NewSeat(Struct, frozen=True, forbid_unknown_fields=True):
    """The devices a suspended rank comes back on."""

    rank: int
    devices: tuple[int, ...]


class Peer(Struct, frozen=True, forbid_unknown_fields=True):
    """Another node's agent, and where its peer server listens (rendezvous, the cut of a gang, images)."""

    node: str
    address: str
    port: int


class LaunchArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start the ranks of one attempt that belong on this node. ``env`` is given whole: nothing is inherited.

    With ``image`` they do not start from the beginning but from the images of that serial number, which are here or at
    one of ``sources``. ``run_as``: the unix account of the ranks (a name, or UID[:GID]); empty: the agent's own. Clients of
    a runtime see no device and run on the cores of its devices, ``beside``.
    """

    job: int
    attempt: int
    name: str = ""
    command: tuple[str, ...]
    env: dict[str, str] = {}
    workdir: str = ""
    output: str = ""
    """Log of rank 0; ``%j`` job, ``%x`` name, ``%a`` attempt (array index when ``array_index`` is given), ``%A`` ``array``,
    else job."""
    array_index: int = -1
    array: int = 0
    world_size: int = 1
    group_rank: int = 0  # which of the attempt's nodes this is, in rank order
    groups: int = 1  # how many nodes the attempt is on
    ranks: tuple[RankSeat, ...]
    beside: tuple[int, ...] = ()
    devices: int = 0
    """Devices the job asked for in all: thread pools are sized by these, whatever it runs on now (0: by what it has)."""
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    grace_us: int = 30_000_000
    step_file: str = ""
    level: int = -1
    """Highest level (model.job.Level) the ranks are to be prepared for; -1: whatever this node can do."""
    tenant: str = "default"
    """Whose images these are: pages are shared within a tenant and never beyond it."""
    gpu_memory: int = 0
    """Bytes of its one device that the attempt may use; 0: all of its devices."""
    gpu_milli: int = 0  # thousandths of that device's compute; 0: no such share
    share_class: ShareClass = "rt"
    """Of such a share: ``rt``'s compute is set aside and its work goes first; ``be`` runs in what the others leave."""
    cpus_milli: int = 0
    memory: int = 0
    """Thousandths of host CPUs and bytes of host memory that each rank may use; 0: no limit."""
    run_as: str = ""
    image: int = 0
    image_job: int = 0  # of that job, not of an earlier attempt of this one; of one rank
    sources: tuple[Peer, ...] = ()
    peers: tuple[Peer, ...] = ()
    """The agents of all the attempt's nodes, in group order, this one included; empty when there is but one."""


class SuspendArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Suspend the attempt by ``level`` (model.job.Level). ``bounded``: a gang may be held, for a minute at most.

    A full image gets the number ``serial``; ``previous`` is the last one that the job could come back from (0: none), which
    is not dropped for it. With ``peers`` (all the attempt's nodes, in group order) the first leads the cut of the gang.
    """

    job: int
    attempt: int
    level: int
    grace_us: int = 30_000_000
    bounded: bool = False
    serial: int = 0
    previous: int = 0
    peers: tuple[Peer, ...] = ()


class CheckpointArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Take full images of a running attempt, which runs on. Answered by a report of verb ``checkpoint``."""

    job: int
    attempt: int
    serial: int
    previous: int = 0
    peers: tuple[Peer, ...] = ()


class FetchArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Take copies of rank images from other nodes; image ``previous`` (0: none) is kept beside it. Answered by a report of verb
    ``fetch``."""

    job: int
    attempt: int
    serial: int
    ranks: tuple[int, ...]
    sources: tuple[Peer, ...]
    tenant: str = "default"
    previous: int = 0


class ResumeArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bring a suspended attempt back on these devices; ranks not named keep theirs.

    With ``serial`` it comes back from full images: ``launch`` says all there is to know of the ranks that belong here
    now, which may be others than before, on a node that has no record of the attempt. ``back``: only this node has
    suspended its ranks, which join the others where these are."""

    job: int
    attempt: int
    ranks: tuple[NewSeat, ...] = ()
    serial: int = 0
    launch: LaunchArgs | None = None
    back: bool = False


class StopArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """SIGTERM to everything the attempt started, SIGKILL after the grace."""

    job: int
    attempt: int
    grace_us: int = 30_000_000


class ForgetArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end is journaled: drop the attempt's records. Logs stay. ``images``: the job's images go, too (it is over).
    ``left``: the attempt lives on other nodes now; nothing of it that is still here may be taken for its end."""

    job: int
    attempt: int
    images: bool = False
    left: bool = False


class NoArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """``inventory``, ``usage`` and ``forgive`` (an operator says that the devices are sound) take nothing."""


class ImageReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of this node's part of one image. Sizes in bytes, times in microseconds."""

    serial: int
    ranks: tuple[int, ...] = ()
    size_bytes: int = 0
    new_bytes: int = 0
    """What it added to the store, once ``stored``."""
    hold_us: int = 0
    """From the request to the moment all ranks were quiesced."""
    save_us: int = 0
    store_us: int = 0
    """Hashing, compressing and writing, behind the suspension."""
    stored: bool = False  # it is in this node's store, and can be fetched from here
    remote: bool = False  # it is in the remote store, and outlives this node
    lost: str = ""  # why it can never be restored: which file is damaged, what differs


class JobReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one attempt stands on this node, over all its ranks here. Pushed at every change and listed by ``inventory``.

    ``verb`` is the request that ``state`` answers: ``running`` with verb ``suspend`` and an ``error`` is a refused or
    failed suspend, ``suspended`` with verb ``resume`` and an ``error`` a failed resume. ``failed`` is a launch that
    left nothing behind; its ``fault`` says whose it was.
    """

    job: int
    attempt: int
    state: Phase
    verb: Verb = ""
    code: int = 0
    """Worst exit code, 128 + signal; meaningful when ``exited``."""
    lost: bool = False
    """The exit status is unknown (the shim died); never the job's fault."""
    fault: Fault = ""
    """Whose fault a failed launch is; ``user`` of an attempt that exited: it was ended for what it did."""
    error: str = ""
    op_id: str = ""  # of the suspension or resumption that verb and error are about; empty from earlier agents
    took_us: int = 0
    """How long the save (``suspended``) or restore (``running`` after ``resume``) took."""
    why: str = ""
    first_failure: RankFailure | None = None  # the first rank here that failed by itself; others may still run
    logs: tuple[tuple[int, str], ...] = ()  # (rank, path of its log)
    image: ImageReport | None = None
    """The image that ``verb`` made, fetched or came back from."""
    level: int = -1  # the highest level the attempt can be suspended by here; -1: not known yet
    level_why: str = ""  # why it is not higher, for the user
    memory_limit: str = ""
    """What limits it to its share of a device's memory, in words; empty without a share."""
    share_limits: str = ""
    """How far it is held to its share of a device's compute and to its class, in words; empty without a share of compute."""
    host_limits: str = ""  # how far its ranks are held to host CPUs and memory, in words; empty: neither was asked for
    notice: str = ""
    """The last thing its user should know of what it does."""
    no_room: bool = False  # the save failed because its image does not fit on the disk


class Health(Struct, frozen=True):
    """Which of the node's devices take no new work, all of them."""

    faults: tuple[DeviceFault, ...] = ()


class Inventory(Struct, frozen=True, kw_only=True):
    """Everything a controller needs after (re)connecting. ``incarnation`` changes when the machine was rebooted."""

    node: NodeSpec
    incarnation: str
    epoch: int
    pid: int
    jobs: tuple[JobReport, ...] = ()
    unhealthy: dict[int, str] = {}
    faults: tuple[DeviceFault, ...] = ()
    """Devices that take no new work; older agents and controllers only know ``unhealthy`` (device to why)."""
    peer: Peer | None = msgspec.field(default=None, name="depot")
    """Where other agents reach this one."""
    full: str = ""
    """Why it takes no full images; empty when it does, and ``node.full`` says so."""
    criu: str = ""
    """Version of the CRIU it takes them with; empty when there is none."""
    unlimited: str = ""  # why it cannot hold ranks to the CPUs and memory they ask for; empty when it can
    images: tuple[tuple[int, int, int], ...] = ()
    """(job, serial, rank) of every image in this node's store."""
    heartbeats: bool = msgspec.field(default=False, name="beats")
    """It answers heartbeats at ``heartbeat_socket``; agents of before they existed do not."""


class JobUsage(Struct, frozen=True, kw_only=True):
    """What one attempt uses on this node. ``cpu_percent`` is of one core since the last ``usage`` call."""

    job: int
    attempt: int
    cpu_percent: float = 0.0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    processes: int = 0
    steps: int | None = None
    samples: int | None = None
    """What the program wrote to its step file (``TIDE_STEP_FILE``), if it did."""


class DeviceUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device: utilisation in percent, memory in bytes, ids of the processes on it where known."""

    index: int
    percent: float = 0.0
    memory_used: int = 0
    processes: tuple[int, ...] = ()


class Usage(Struct, frozen=True, kw_only=True):
    """The answer to ``usage``."""

    jobs: tuple[JobUsage, ...] = ()
    devices: tuple[DeviceUse, ...] = ()


class ErrorReply(Struct, frozen=True, omit_defaults=True):
    """Why a request was not served. ``kind``: usage (wrong request), fenced (older controller), world (retry), bug."""

    kind: Literal["usage", "fenced", "world", "bug"]
    message: str
    remedy: str = ""


class RpcRequest(Struct, frozen=True, omit_defaults=True):
    """One call. ``id`` pairs the answer on this connection; ``op_id`` makes repeats harmless; ``epoch`` fences."""

    id: int
    method: str
    op_id: str = ""
    epoch: int = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class RpcResponse(Struct, frozen=True, omit_defaults=True):
    """The answer to the request with this ``id`` (-1: to a line that was no request)."""

    id: int
    ok: msgspec.Raw = msgspec.Raw()
    error: ErrorReply | None = None


class Push(Struct, frozen=True):
    """A report sent unasked."""

    report: JobReport


class HealthPush(Struct, frozen=True):
    """Sent unasked when devices fail or recover; older controllers pass it over."""

    health: Health


class Line(Struct, frozen=True):
    """What a client may receive: a ``RpcResponse`` or a push, distinguished by which fields are there."""

    id: int = -1
    ok: msgspec.Raw = msgspec.Raw()
    error: ErrorReply | None = None
    report: JobReport | None = None
    health: Health | None = None


ARGS: dict[str, type[Struct]] = {
    "launch": LaunchArgs,
    "suspend": SuspendArgs,
    "resume": ResumeArgs,
    "stop": StopArgs,
    "forget": ForgetArgs,
    "checkpoint": CheckpointArgs,
    "fetch": FetchArgs,
    "forgive": NoArgs,
    "inventory": NoArgs,
    "usage": NoArgs,
}
"""Every method of an agent and what it takes. The first seven answer with a ``JobReport``."""


def heartbeat_socket(socket: Path) -> Path:
    """Where the agent that listens at ``socket`` answers heartbeats: one byte per connection."""
    return socket.with_name(f"{socket.name}.pulse")
