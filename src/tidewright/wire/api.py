"""Messages of the HTTP API: what a client sends and what the controller answers. Times are absolute microseconds of the
controller's clock (Unix epoch) unless named ``*_us`` durations; memory is bytes; device-time is GPU-seconds.

Every answer carries ``schema``; a field is only ever added within one schema version.
"""

from __future__ import annotations

from msgspec import Struct

from ..model.job import JobSpec
from .answers import SCHEMA as SCHEMA
from .answers import CalibrationView as CalibrationView
from .answers import EtaView as EtaView
from .answers import StateName as StateName
from .answers import WhyView as WhyView
from .arrays import ArrayLimitRequest as ArrayLimitRequest
from .arrays import ArrayView as ArrayView
from .arrays import MemberView as MemberView
from .job_parts import AttemptLog as AttemptLog
from .job_parts import CauseView as CauseView
from .job_parts import ChangeView as ChangeView
from .job_parts import DeviceHeld as DeviceHeld
from .job_parts import FailureView as FailureView
from .job_parts import Holder as Holder
from .job_parts import ImageView as ImageView
from .job_parts import StoryLine as StoryLine
from .job_parts import TimeInterval as TimeInterval
from .loads import DeviceLoad as DeviceLoad
from .loads import JobLoad as JobLoad
from .loads import TopView as TopView
from .loads import UsageReply as UsageReply
from .loads import UsageRow as UsageRow
from .nodes import DrainRequest as DrainRequest
from .nodes import NodeList as NodeList
from .nodes import NodeView as NodeView
from .nodes import ShareView as ShareView
from .rates import ForgetRatesRequest as ForgetRatesRequest
from .rates import RateRow as RateRow
from .rates import RatesReply as RatesReply

MAX_BODY = 8 * 1024 * 1024
"""Bytes of the largest request body accepted."""
MAX_SPECS = 10_000
"""Most jobs in one submission."""
SOCKET_NAME = "controller.sock"
TOKEN_NAME = "token"
NO_EXIT_CODE = -1
"""``exit_code`` of a job that has not ended."""
TIME_LIMIT_EXIT = 124
"""``exit_code`` of a job stopped at its time limit, as timeout(1) returns."""

FINAL_STATES = frozenset({"completed", "failed", "cancelled", "timeout"})


class ErrorBody(Struct, frozen=True, kw_only=True):
    """Any answer that is not 2xx. ``code``: usage, notfound, conflict, unauthorized, toolarge, full, busy or bug."""

    error: str
    remedy: str = ""
    code: str = "usage"
    cause: CauseView | None = None
    """The same as data, where the engine refused."""
    schema: str = SCHEMA


class SubmitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job, or the members of an array or sweep. A repeated ``op_id`` gets the first answer again. ``after``: what all of them
    wait for, such as ``afterok:prep`` (a job's or an array's id or name), looked up now. ``env``: variables that every spec has
    which does not give them itself."""

    specs: tuple[JobSpec, ...]
    env: dict[str, str] = {}
    after: tuple[str, ...] = ()
    op_id: str = ""
    dry_run: bool = False


class SubmitReply(Struct, frozen=True, kw_only=True):
    """``ids`` in the order of the specs; empty for a dry run. ``warnings`` are to be shown to the user."""

    ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    causes: tuple[CauseView, ...] = ()
    """The warnings as data, in the same order."""
    dry_run: bool = False
    forecast: tuple[str, ...] = ()
    """Dry run only: one line per spec on where it would start as things stand, or why not."""
    times: tuple[EtaView, ...] = ()
    """Dry run only: when each would start and end; ``job`` is its number among the specs, from 1."""
    schema: str = SCHEMA


class SuspendRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``until_us`` is an absolute time at which the hold ends by itself; 0: only ``resume`` ends it."""

    until_us: int = 0
    op_id: str = ""


class ActionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of resume, cancel, checkpoint and undrain. May be left out."""

    op_id: str = ""
    why: str = ""


class MoveRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bring a job to these nodes; empty: anywhere but where it is. Refused when it cannot be done now."""

    to: tuple[str, ...] = ()
    op_id: str = ""


class ScaleRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Have a job run on so many devices until the next request; 0: what it was submitted with."""

    devices: int = 0
    op_id: str = ""


class ActionReply(Struct, frozen=True, kw_only=True):
    """The request is durable. ``warning`` is to be shown to the user. Of several members of an array, ``array`` is its id,
    ``jobs`` those that it was done to, ``refused`` how many it was not done to, of which ``members`` has the first.
    ``waiting``: of a suspension, how many of those that it was done to have no devices now."""

    job: int = -1
    array: int = 0
    jobs: tuple[int, ...] = ()
    waiting: int = 0
    refused: int = 0
    members: tuple[MemberView, ...] = ()
    node: str = ""
    warning: str = ""
    cause: CauseView | None = None
    """The warning as data."""
    schema: str = SCHEMA


class JobView(Struct, frozen=True, kw_only=True):
    """One job, live or ended. The list leaves ``story``, ``logs`` and ``spec`` out; the single job has everything."""

    id: int
    name: str
    state: StateName
    why: str = ""
    """Why it is in that state, in words."""
    cause: CauseView | None = None
    """The same as data."""
    array: int = 0
    """The id of the array that it is a member of, and its index in that; 0: it is none."""
    array_index: int = -1
    array_limit: int = 0
    """How many members of the array may run at once; 0: all."""
    array_waiting: str = ""
    """The indices of the waiting members that this entry stands for, where a list has one for all of them (``collapse``)."""
    reason: str = ""
    """For a waiting job the stable code of its binding limit (plan.reasons.Reason), when known."""
    team: str = "default"
    user: str = ""
    tier: str = "standard"
    kind: str = "training"
    submit: int = 0
    start: int = -1
    """First start; -1: not yet."""
    end: int = -1
    since: int = 0  # when it entered this state
    devices: int = 1
    min_devices: int = 0
    ranks: int = 1
    held: int = 0  # devices it holds now
    held_until: int = 0
    """When the suspension that its user asked for ends by itself; 0: there is none, or only ``resume`` ends it."""
    where: tuple[DeviceHeld, ...] = ()
    memory_limit: str = ""
    """What limits it to its share of a device's memory, while it runs; the single job only."""
    share_limits: str = ""
    """How far it is held to its share of a device's compute, and to its class, while it runs; the single job only."""
    host_limits: str = ""
    """How far its ranks are held to the host CPUs and memory they asked for, while it runs; the single job only."""
    level: str = ""
    """How it can be made to release its devices: none, requeue, cooperative, freeze, full; empty before its first start."""
    level_why: str = ""
    """Why it is no higher, when its program or its nodes rule that out."""
    level_cause: CauseView | None = None
    wanted: int = 0
    """Devices its user wants it on at present (scale); 0: as submitted."""
    images: tuple[ImageView, ...] = ()
    """Images it could be restored from, oldest first; the single job only."""
    next_image: int = 0
    between_images_us: int = 0
    """When the next periodic image is due, and run time from one to the next; 0: none is taken."""
    save_us: int = 0
    """How long its last suspension or image took; expected before the first."""
    restore_us: int = 0
    predicted_us: int = 0
    """Median of the run times of similar jobs, where its user gave no estimate; 0: not enough have ended."""
    predicted_low_us: int = 0
    predicted_high_us: int = 0
    """First and ninth decile of the same."""
    hold_us: int = 0  # until every rank was quiesced for its last image; 0: not known
    ranks_per_device: float = 0.0
    """Ranks that share one device by time slices; 1: each has its own, 0: it runs nowhere."""
    lost_us: int = 0
    """Full-speed run time that was delivered and lost again to failures."""
    attempt: int = 0
    preemptions: int = 0
    exit_code: int = NO_EXIT_CODE
    failure: FailureView | None = None
    """Of a failed job: which rank failed first, and how."""
    fraction: float = 0.0
    """Delivered GPU fraction since submission, 0 to 1."""
    target: float = 0.0
    """What its tier promises."""
    ideal_us: int = 0
    """Full-speed run time delivered."""
    delivered_gpu_s: float = 0.0
    held_gpu_s: float = 0.0
    command: str = ""
    spec: JobSpec | None = None
    story: tuple[StoryLine, ...] = ()
    logs: tuple[AttemptLog, ...] = ()


class JobList(Struct, frozen=True, kw_only=True):
    """``more`` when ``limit`` cut the list. Live jobs first by id, then ended ones, newest first."""

    jobs: tuple[JobView, ...]
    now: int
    more: bool = False
    schema: str = SCHEMA


class JobReply(Struct, frozen=True, kw_only=True):
    """One job in full."""

    job: JobView
    array: ArrayView | None = None
    """Asked of several members of an array: all of them; ``job`` is the first that waits, else the first."""
    now: int
    schema: str = SCHEMA


class WaitReply(Struct, frozen=True, kw_only=True):
    """Answer of a long poll: ``final`` false means ask again. ``exit_code`` is the job's, 128 + signal for a signal.

    Of several members of an array: ``array`` is its id, the exit code the worst of theirs, ``failed`` how many did not
    complete, ``members`` the first of those that were not cancelled either."""

    job: int
    array: int = 0
    failed: int = 0
    members: tuple[MemberView, ...] = ()
    state: StateName
    final: bool
    exit_code: int = NO_EXIT_CODE
    why: str = ""
    cause: CauseView | None = None
    schema: str = SCHEMA


class Info(Struct, frozen=True, kw_only=True):
    """The controller itself. ``notices`` are things its operator should know (a dropped torn record, a full disk …)."""

    version: str
    pid: int
    state_dir: str
    policy: str
    epoch: int
    started: int
    now: int
    turn: int
    revision: int
    nodes: int
    devices: int
    free: int
    live_jobs: int
    ended_jobs: int
    agent: str = ""
    """``connected`` or why not."""
    notices: tuple[str, ...] = ()
    schema: str = SCHEMA


class JobEvent(Struct, frozen=True, kw_only=True):
    """One state change, sent as a server-sent event; ``seq`` is its id: send the last one to resume after it."""

    seq: str
    at: int
    job: int
    name: str
    state: StateName
    what: str
    why: str = ""
    cause: CauseView | None = None
    exit_code: int = NO_EXIT_CODE
    notify: bool = False
    """Whether its user wants notifications."""
    schema: str = SCHEMA


class Done(Struct, frozen=True, kw_only=True):
    """The request was carried out; nothing more to say."""

    ok: bool = True
    schema: str = SCHEMA
