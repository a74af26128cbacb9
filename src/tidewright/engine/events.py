"""Events: everything that the engine can receive. Frozen, tagged, and the journal's own format.

What agents, nodes and operators say comes in their own words (``str``), what the controller concludes as a ``Cause``.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from ..model.cause import Cause
from ..model.failure import RankFailure
from ..model.job import JobSpec
from ..model.node import DeviceFault, NodeSpec
from ..model.rate import LearntRates
from ..model.service import ServiceSpec
from ..plan.plan import Plan


class Submit(Struct, frozen=True, tag=True, omit_defaults=True):
    """A user submits a job. The answer is a ``Reply`` with the same ``op_id``; a repeated op_id gets the first answer again."""

    spec: JobSpec
    op_id: str = ""


class JobIdsUsed(Struct, frozen=True, tag=True):
    """Ids below ``next_job`` were given out already, by steps that the journal has lost; later jobs get others."""

    next_job: int


class Cancel(Struct, frozen=True, tag=True, omit_defaults=True):
    """A user ends a job, whatever it is doing."""

    job: int
    op_id: str = ""


class Hold(Struct, frozen=True, tag=True, omit_defaults=True):
    """A user suspends a job until ``Release``; ``until`` (by the wall clock, 0: none) releases it by itself."""

    job: int
    op_id: str = ""
    until: int = 0


class Release(Struct, frozen=True, tag=True, omit_defaults=True):
    """A user ends a hold."""

    job: int
    op_id: str = ""


class Move(Struct, frozen=True, tag=True, omit_defaults=True):
    """A user wants a job on these nodes (names; empty: anywhere but where it is). Refused, with a reason, when it cannot be
    done now."""

    job: int
    nodes: tuple[str, ...] = ()
    op_id: str = ""


class Scale(Struct, frozen=True, tag=True, omit_defaults=True):
    """A user wants a job on so many devices, neither more nor fewer, until the next such request; its ranks take turns on fewer
    than there are ranks. 0: back to what was submitted."""

    job: int
    devices: int = 0
    op_id: str = ""


class TakeImage(Struct, frozen=True, tag=True, omit_defaults=True):
    """A user wants a full image of a running job now; it runs on. Refused, with a reason, when it cannot be taken."""

    job: int
    op_id: str = ""


class NodeUp(Struct, frozen=True, tag=True):
    """A node is there, new or back. Known by name; jobs on devices that it no longer has are moved."""

    node: NodeSpec
    incarnation: str


class NodeDown(Struct, frozen=True, tag=True):
    """A node and everything on it is gone: its ranks are dead, frozen ones too."""

    name: str
    why: Cause | str
    kept: tuple[tuple[int, int], ...] = ()
    """(job, serial) of images of which it was found to have its part still: it was only started anew."""


class NodeSilent(Struct, frozen=True, tag=True):
    """A node's agent does not answer. Its ranks live on; nothing new is placed there until ``NodeUp``."""

    name: str
    why: Cause | str


class NodeHealth(Struct, frozen=True, tag=True, omit_defaults=True):
    """Which devices of a node take no new work, all of them: a device that is not named is in service again."""

    name: str
    faults: tuple[DeviceFault, ...] = ()


class NodeDrain(Struct, frozen=True, tag=True, omit_defaults=True):
    """An operator keeps new work off a node (``on``), or lets it back. ``move``: the jobs on it are to leave it."""

    name: str
    on: bool
    why: str = ""
    op_id: str = ""
    move: bool = False


class Started(Struct, frozen=True, tag=True):
    """All ranks of the attempt run."""

    job: int
    attempt: int


class StartFailed(Struct, frozen=True, tag=True, omit_defaults=True):
    """The attempt could not be launched; nothing of it is left. ``fault`` "user" (e.g. no such program) is final.

    ``image_lost``: the image it was to start from is damaged or gone; an older one is tried, else the beginning. ``node``: which
    node could not; empty when it is not known, as in journals of earlier versions.
    """

    job: int
    attempt: int
    error: Cause | str
    fault: str = "world"
    image_lost: bool = False
    node: str = ""


class Exited(Struct, frozen=True, tag=True, omit_defaults=True):
    """Every rank of the attempt is gone. ``code`` is the worst exit code, 128 + signal for a signal.

    ``lost``: the exit status is unknown (dead node, dead shim); this is never the job's fault.
    """

    job: int
    attempt: int
    code: int
    lost: bool = False
    why: Cause | str = ""
    failure: RankFailure | None = None
    """The rank that failed first, if one did."""
    own: bool = False
    """Its agent ended it for what it did (``why``): a failure of the job's own, whatever the code."""


class Suspended(Struct, frozen=True, tag=True, omit_defaults=True):
    """The job has released its devices. ``save_us`` is how long that took.

    After a full image: its ``serial`` as in the command, and its size before compression, bytes over all ranks.
    """

    job: int
    attempt: int
    save_us: int = 0
    serial: int = 0
    size_bytes: int = 0


class SuspendFailed(Struct, frozen=True, tag=True, omit_defaults=True):
    """The job still runs where it was. ``no_room``: its image does not fit on a disk."""

    job: int
    attempt: int
    error: Cause | str
    no_room: bool = False


class Resumed(Struct, frozen=True, tag=True, omit_defaults=True):
    """The job runs on the devices it was given. ``restore_us`` is how long that took."""

    job: int
    attempt: int
    restore_us: int = 0


class ResumeFailed(Struct, frozen=True, tag=True, omit_defaults=True):
    """The job could not be brought back there. ``image_lost``: it never will be; it starts again from an older image if there
    is one, else from the beginning. ``node`` as in ``StartFailed``."""

    job: int
    attempt: int
    error: Cause | str
    image_lost: bool = False
    node: str = ""


class Checkpointed(Struct, frozen=True, tag=True, omit_defaults=True):
    """A running job was imaged and runs on. ``save_us``: how long it stood still in all; ``hold_us``: the part of that
    until every rank stood at the cut; ``size_bytes`` as in ``Suspended``."""

    job: int
    attempt: int
    serial: int
    save_us: int = 0
    hold_us: int = 0
    size_bytes: int = 0


class CheckpointFailed(Struct, frozen=True, tag=True):
    """No image was made; the job runs on as before."""

    job: int
    attempt: int
    serial: int
    error: Cause | str


class ImageCopied(Struct, frozen=True, tag=True):
    """The whole image (every rank's) is now on ``node`` too, or with "*" in a store that outlives every node."""

    job: int
    serial: int
    node: str


class LevelLowered(Struct, frozen=True, tag=True):
    """The program does something that rules out the level it runs at: until the attempt ends it has ``level``
    (model.job.Level) at most."""

    job: int
    attempt: int
    level: int
    why: Cause | str


class Noticed(Struct, frozen=True, tag=True):
    """Something that the job's user should know of a running attempt; nothing follows from it."""

    job: int
    attempt: int
    text: str


class PlanReady(Struct, frozen=True, tag=True):
    """The answer to ``PlanRequest``."""

    plan: Plan


class PlanFailed(Struct, frozen=True, tag=True):
    """The planner raised. A plan is requested again after a pause; jobs keep running."""

    basis: int
    error: str


class ClockOffset(Struct, frozen=True, tag=True):
    """The wall clock, as just read, is ahead of the engine's time by ``offset_us``; so it has been since the engine's time
    was last taken from it, at ``since`` (engine time)."""

    since: int
    offset_us: int


class ForecastMade(Struct, frozen=True, tag=True):
    """A waiting job was forecast to start between ``low`` and ``high`` (-1: no end), as likely before as after ``middle``. The
    question was of the pool as it was at ``asked``. Engine time. Nothing is decided by it; how often it holds is counted."""

    job: int
    asked: int
    low: int
    middle: int
    high: int


class RatesLearnt(Struct, frozen=True, tag=True, omit_defaults=True):
    """Running jobs report samples, and these are their rates, or step times fitted to them. They hold from now on."""

    rates: LearntRates


class ForgetRates(Struct, frozen=True, tag=True, omit_defaults=True):
    """What was learnt of a workload is not to be believed any more."""

    workload: str
    op_id: str = ""


class DeployService(Struct, frozen=True, tag=True, omit_defaults=True):
    """A user deploys a service, or another version of one."""

    service: ServiceSpec
    op_id: str = ""


class ScaleService(Struct, frozen=True, tag=True, omit_defaults=True):
    """So many replicas of a service are wanted, within its bounds."""

    name: str
    replicas: int
    op_id: str = ""


class ReplicaReady(Struct, frozen=True, tag=True, omit_defaults=True):
    """The gateway has been reached by a replica: this attempt of it answers requests."""

    name: str
    job: int
    attempt: int
    op_id: str = ""


class TakeServiceImage(Struct, frozen=True, tag=True, omit_defaults=True):
    """The gateway says that this attempt of a replica is warmed up, holds no connection, and waits to be made the image that
    further replicas start from."""

    name: str
    job: int
    attempt: int
    op_id: str = ""


class DeleteService(Struct, frozen=True, tag=True, omit_defaults=True):
    """A user wants a service and its replicas to end."""

    name: str
    op_id: str = ""


class Tick(Struct, frozen=True, tag=True):
    """Nothing happened but time: timers that are due fire."""


Event: TypeAlias = (
    Submit | JobIdsUsed | Cancel | Hold | Release | NodeUp | NodeDown | NodeSilent | NodeDrain | Started | StartFailed
    | Exited | NodeHealth
    | Suspended | SuspendFailed | Resumed | ResumeFailed | PlanReady | PlanFailed | Tick
    | Checkpointed | CheckpointFailed | ImageCopied | LevelLowered | Noticed | ClockOffset | Move | Scale | TakeImage
    | ForecastMade | RatesLearnt | ForgetRates | DeployService | ScaleService | DeleteService
    | ReplicaReady | TakeServiceImage
)  # fmt: skip
