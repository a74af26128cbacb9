"""What a user asks for: one job, immutable once submitted."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

from msgspec import Struct

from ..base.ids import valid_name
from ..base.units import DAY, SECOND, format_bytes
from .notify import Notify, wrong_notify

LONGEST_US = 36_525 * DAY
"""Longest time accepted; sums with it stay within 64 bits."""
MAX_MEMORY = 2**50
"""Most bytes of one device accepted, a pebibyte; sums with it stay within 64 bits."""
MAX_WORKLOAD = 200
"""Longest name of a workload; Gavel's hold a model, a batch size and a data set."""
MAX_PHASES = 1000
MAX_HOST_MEMORY = 2**46
"""Most bytes of host memory accepted per rank, 64 TiB; of ``MAX_RANKS`` ranks they stay within 64 bits."""
MAX_CPUS_MILLI = 10_000_000
"""Most thousandths of host CPUs accepted per rank."""
MIN_HOST_MEMORY = 2**24
"""Fewest bytes of host memory accepted per rank, 16 MiB: what an interpreter needs before the program's first line."""
MAX_RANKS = 65_536
"""Largest world size accepted; larger than any published training run."""


BEST_EFFORT_MILLI = 1
"""Of a device's compute, what a best-effort share sets aside: as little as can be counted. Its memory is set aside whole."""
RUNTIME_SOCKET, RUNTIME_CLASS = "TIDE_RUNTIME", "TIDE_RUNTIME_CLASS"
"""Variables of a runtime's clients: the socket on which it listens (also of the runtime itself), and ``rt`` or ``be``."""

ARRAY_JOB_ID, ARRAY_TASK_ID = "TIDE_ARRAY_JOB_ID", "TIDE_ARRAY_TASK_ID"
"""Variables of an array's members: the array's id and their own index."""


class Tier(IntEnum):
    """SLA tier: the delivered GPU fraction a job is promised (Singularity, arXiv 2202.07848, section 2)."""

    BASIC = 0
    STANDARD = 1
    PREMIUM = 2


_TIERS = {tier.name.lower(): tier for tier in Tier}

TIER_TARGET = {Tier.PREMIUM: 0.95, Tier.STANDARD: 0.70, Tier.BASIC: 0.0}
"""Promised share of ideal speed: ideal time on the full dedicated allotment over real time since submit."""


class State(IntEnum):
    """Where a job stands. Devices are held from STARTING to STOPPING except in SUSPENDED."""

    HELD = 0
    QUEUED = 1
    STARTING = 2
    RUNNING = 3
    SUSPENDING = 4
    SUSPENDED = 5
    RESUMING = 6
    STOPPING = 7
    COMPLETED = 8
    FAILED = 9
    CANCELLED = 10
    TIMEOUT = 11

    @property
    def word(self) -> str:
        """As users read and write it."""
        return self.name.lower()


FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMEOUT})
HOLDING = frozenset({State.STARTING, State.RUNNING, State.SUSPENDING, State.RESUMING, State.STOPPING})


class Level(IntEnum):
    """How a running job can be made to give its devices back, weakest first (see docs/concepts)."""

    NONE = 0
    REQUEUE = 1
    COOPERATIVE = 2
    FREEZE = 3
    FULL = 4


class Dependency(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``afterok:17``: run only when job 17 ended as ``kind`` says (sbatch(1), --dependency). With ``array``, 17 is the id of an
    array, every member of which has to end; it is met as by a job that completed when all of them completed."""

    kind: Literal["afterok", "afternotok", "afterany"]
    job: int
    array: bool = False


class ArrayMember(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Element ``index`` of the array or sweep ``parent``; ``limit`` members may run at once (0: all)."""

    parent: str
    index: int
    size: int
    limit: int = 0
    job: int = 0
    """The array's id: the job id of its first member, as in Slurm (SLURM_ARRAY_JOB_ID). 0: not submitted yet, or to an earlier
    version, which knew arrays by ``parent`` alone."""


def array_variables(member: ArrayMember) -> dict[str, str]:
    """What the ranks of a member of an array find in their environment."""
    return {ARRAY_JOB_ID: str(member.job), ARRAY_TASK_ID: str(member.index)}


class Phase(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A stretch of a job's work with a rate of its own, e.g. after the batch size has grown: ``work_us`` full-speed
    microseconds (0, of the last phase only: all that is left) as ``workload``."""

    workload: str
    work_us: int = 0


class JobSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One job as submitted. Times are microseconds, memory is bytes; zero means "not given" unless stated.

    ``devices`` is the full allotment; ``min_devices`` below it makes the job elastic. ``ranks`` is the world size and
    never changes; on fewer devices, ranks share them.
    """

    name: str = ""
    command: tuple[str, ...] = ()
    kind: Literal["training", "service", "task", "runtime"] = "training"
    """``runtime``: it shares its devices among clients (docs/runtime.md)."""
    ranks: int = 1
    devices: int = 1
    min_devices: int = 0
    device_types: tuple[str, ...] = ()
    gpu_memory: int = 0
    """Bytes of one device's memory; with ``gpu_milli`` zero too it asks for whole devices."""
    gpu_milli: int = 0
    """Thousandths of one device's compute; zero: in proportion to ``gpu_memory``."""
    gpu_share: int = 0
    """Thousandths of one device, of its compute and of its memory alike; instead of the two above."""
    share_class: Literal["rt", "be"] = "rt"
    """Of a share: ``rt`` has its compute set aside and goes first; ``be`` runs in what the others leave of the device."""
    cpus_milli: int = 0
    """Thousandths of host CPUs of each rank, set aside and enforced; zero: neither."""
    memory: int = 0
    """Bytes of host memory of each rank, set aside and enforced; zero: neither."""
    tier: Literal["premium", "standard", "basic"] = "standard"
    team: str = "default"
    user: str = ""
    """Who submitted it; the controller's word, whatever a client says."""
    run_as: str = ""
    """The unix account that its ranks run as, set by the controller; empty: that of the agents."""
    weight: float = 1.0
    deadline_us: int = 0
    """Wanted end, counted from submission."""
    max_duration_us: int = 0
    """Limit on run time; the job is stopped as TIMEOUT at it. Suspended time and runs whose work was lost do not count."""
    expected_us: int = 0
    """The user's estimate of the run time on the full allotment."""
    retries: int = 0
    retry_exit_codes: tuple[int, ...] = ()
    """Exit codes worth a retry; empty: every failure. Lost nodes and lost shims never count against ``retries``."""
    preempt: Literal["auto", "full", "freeze", "cooperative", "requeue", "none"] = "auto"
    """How it may be made to yield at most. ``auto`` and ``full``: full images where every node of its allocation takes them,
    else the next level that works there; ``none``: it keeps its devices to its end."""
    checkpoint_us: int = 0
    """Run time between periodic images; 0: as often as is worth it (Young, Daly), -1: never."""
    grace_us: int = 30 * SECOND
    """Between SIGTERM and SIGKILL."""
    placement: Literal["consolidate", "one-node", "any"] = "consolidate"
    env: dict[str, str] = {}
    workdir: str = ""
    output: str = ""
    """Where rank 0 writes instead of the state directory; ``%j``, ``%x``, ``%a`` as in sbatch(1)."""
    runtime: str = ""
    """The device runtime whose client it is, by name or job id: it has no devices and runs where and while that does."""
    runtime_class: Literal["rt", "be"] = "be"
    """What it may ask of the runtime: real-time or best-effort. Of a job without a runtime it says nothing."""
    workload: str = ""
    """What it computes, as tables of rates name it (``model.rate.RateSettings``); empty: nothing is known of its rates."""
    phases: tuple[Phase, ...] = ()
    """Its work in order, where rates change on the way; empty: all of it is ``workload``."""
    service: str = ""
    """The service whose replica it is, set by the engine."""
    hold: bool = False
    """Held from its submission on, until a user releases it."""
    array: ArrayMember | None = None
    after: tuple[Dependency, ...] = ()
    notify: Notify | None = None
    """Who is sent a mail or a request when something happens to it."""

    @property
    def floor(self) -> int:
        """Fewest devices it can run on."""
        return self.min_devices or self.devices

    @property
    def elastic(self) -> bool:
        return self.floor < self.devices

    @property
    def workloads(self) -> tuple[str, ...]:
        """What it computes, in order."""
        return tuple(phase.workload for phase in self.phases) or (self.workload,)

    @property
    def shares(self) -> bool:
        """Whether it asks for a share of a device."""
        return bool(self.gpu_memory or self.gpu_milli or self.gpu_share)

    @property
    def best_effort(self) -> bool:
        """Whether it runs in what others leave of the device it shares."""
        return self.share_class == "be"

    @property
    def compute_milli(self) -> int:
        """Thousandths of one device's compute that are set aside for its share; 0: in proportion to ``gpu_memory``."""
        return BEST_EFFORT_MILLI if self.best_effort else self.gpu_share or self.gpu_milli

    @property
    def may_be_frozen(self) -> bool:
        """Whether it may be frozen where a full image takes too long: no host memory is set aside for it, which it would keep."""
        return self.preempt in ("auto", "full") and not self.memory

    @property
    def tier_rank(self) -> Tier:
        return _TIERS[self.tier]


class DeviceShare(NamedTuple):
    """What a job may use of one device: thousandths of its compute, and bytes of its memory; 0: no limit is known."""

    milli: int
    memory: int


def share_of(spec: JobSpec, device_memory: int) -> DeviceShare:
    """The share that a job asked for, on a device with so many bytes of memory (0: not known). With memory alone it has compute
    in proportion."""
    memory = spec.gpu_memory or device_memory * spec.gpu_share // 1000
    in_proportion = max(1, memory * 1000 // device_memory) if memory and device_memory else 0
    return DeviceShare(spec.gpu_share or spec.gpu_milli or in_proportion, memory)


def problems(spec: JobSpec) -> list[str]:
    """Everything wrong with a spec, in words; empty when it is sound. Whether it fits the pool is the engine's question."""
    # Texts are made only for what is wrong: every submission passes here.
    found: list[str] = []
    need = found.append
    if not spec.command or not spec.command[0]:
        need("command: empty; say what to run")
    if spec.name and not valid_name(spec.name):
        need(f"name: {spec.name!r} may hold letters, digits and . _ - [ ] only, up to 128")
    if spec.name.isdigit():
        need(f"name: {spec.name!r} would read as a job id")
    if not valid_name(spec.team):
        need(f"team: {spec.team!r} is not a valid name")
    if spec.service:
        need(f"service: only {spec.service!r} itself makes its replicas; see tide serve")
    if spec.runtime:
        found.extend(_not_for_clients(spec))
    elif not 1 <= spec.devices <= MAX_RANKS:
        need(f"devices: {spec.devices} is not between 1 and {MAX_RANKS}")
    if not 0 <= spec.min_devices <= spec.devices:
        need(f"min_devices: {spec.min_devices} is not between 0 and devices ({spec.devices})")
    if not 1 <= spec.ranks <= MAX_RANKS:
        need(f"ranks: {spec.ranks} is not between 1 and {MAX_RANKS}")
    if not 0 <= spec.gpu_memory <= MAX_MEMORY:
        need(f"gpu_memory: not between 0 and {MAX_MEMORY} bytes")
    if spec.gpu_memory and spec.devices != 1 and not spec.runtime:
        need("gpu_memory: a share is of one device; ask for devices: 1")
    if spec.gpu_milli or spec.cpus_milli or spec.memory:
        found.extend(_odd_resources(spec))
    if spec.gpu_share or spec.best_effort:
        found.extend(_odd_share(spec))
    if not 0 < spec.weight <= 1e6:
        need(f"weight: {spec.weight} is not above 0 and at most 1e6")
    for field in ("deadline_us", "max_duration_us", "expected_us", "grace_us", "retries"):
        if not 0 <= getattr(spec, field) <= LONGEST_US:
            need(f"{field.removesuffix('_us')}: not between 0 and a century")
    if spec.retries > 1000:
        need(f"retries: {spec.retries} is above 1000")
    found.extend(_odd_combinations(spec))
    return found


def _not_for_clients(spec: JobSpec) -> list[str]:
    """What a client of a runtime cannot ask for: its devices are the runtime's."""
    found = []
    if not valid_name(spec.runtime):
        found.append(f"runtime: {spec.runtime!r} is not a valid name")
    if spec.kind == "runtime":
        found.append("kind: a runtime cannot be the client of another one")
    if spec.devices or spec.min_devices:
        found.append("devices: a client of a runtime has none of its own; leave them out (0)")
    if spec.device_types or spec.shares:
        found.append("device_types, gpu_memory, share: a client of a runtime has no devices; leave them out")
    if spec.cpus_milli or spec.memory:
        found.append("cpus, memory: a client of a runtime runs where that does; ask for them with the runtime")
    if spec.preempt not in ("auto", "requeue"):
        found.append(f"preempt: a client of a runtime ends and starts with it; {spec.preempt} is not possible")
    return found


def _odd_resources(spec: JobSpec) -> list[str]:
    found: list[str] = []
    if not 0 <= spec.gpu_milli <= 1000:
        found.append(f"gpu_milli: {spec.gpu_milli} is not between 0 and 1000")
    if spec.gpu_milli and spec.devices != 1 and not spec.runtime:
        found.append("gpu_milli: a share is of one device; ask for devices: 1")
    if not 0 <= spec.cpus_milli <= MAX_CPUS_MILLI:
        found.append(f"cpus: not between 0 and {MAX_CPUS_MILLI // 1000} for each rank")
    if spec.memory and not MIN_HOST_MEMORY <= spec.memory <= MAX_HOST_MEMORY:
        found.append(
            f"memory: not between {format_bytes(MIN_HOST_MEMORY)} and {format_bytes(MAX_HOST_MEMORY)} for each rank"
        )
    return found


def _odd_share(spec: JobSpec) -> list[str]:
    found: list[str] = []
    if not 0 <= spec.gpu_share <= 1000:
        found.append(f"share: {spec.gpu_share} thousandths are not between 0 and 1000")
    if spec.gpu_share and (spec.gpu_memory or spec.gpu_milli):
        found.append("share: of compute and memory alike; leave out gpu_memory and gpu_milli")
    if spec.gpu_share and spec.devices != 1 and not spec.runtime:
        found.append("share: of one device; ask for devices: 1")
    if spec.best_effort and not (spec.gpu_share or spec.gpu_memory):
        found.append("class: be is of a share with memory of its own; ask for share or gpu_memory")
    if spec.best_effort and spec.tier != "basic":
        found.append(f"class: be has no compute set aside, so {spec.tier} cannot be promised; ask for tier: basic")
    return found


def _odd_combinations(spec: JobSpec) -> list[str]:
    found: list[str] = []
    codes = spec.retry_exit_codes
    if not -1 <= spec.checkpoint_us <= LONGEST_US:
        found.append("checkpoint_us: not -1 (never), 0 (as often as is worth it) or a time up to 100 years")
    if not all(0 <= code <= 255 for code in codes):
        found.append(f"retry_exit_codes: {codes} are not all between 0 and 255")
    if spec.array is not None:
        numbers = (spec.array.index, spec.array.size, spec.array.limit, spec.array.job)
        if not all(0 <= one < 2**31 for one in numbers):
            found.append(f"array: {numbers} are not all between 0 and {2**31 - 1}")
    if spec.devices > 0 and spec.ranks > 0:
        divides = spec.ranks % spec.devices == 0 or spec.devices % spec.ranks == 0
        if not divides:
            found.append(f"ranks: {spec.ranks} ranks do not divide over {spec.devices} devices")
    found.extend(_wrong_work(spec))
    if spec.notify is not None:
        found.extend(wrong_notify(spec.notify))
    found.extend(f"env: bad name {key!r}" for key in spec.env if not key or "=" in key or "\0" in key)
    return found


def _wrong_work(spec: JobSpec) -> list[str]:
    """What is wrong with the names and lengths of a job's workloads."""
    found: list[str] = []
    found += [
        f"workload: {name[:40]!r} is longer than {MAX_WORKLOAD} characters or not printable"
        for name in spec.workloads
        if len(name) > MAX_WORKLOAD or not name.isprintable()
    ]
    if len(spec.phases) > MAX_PHASES:
        found.append(f"phases: {len(spec.phases)}; at most {MAX_PHASES}")
    for at, phase in enumerate(spec.phases, 1):
        last = at == len(spec.phases)
        if not (0 if last else 1) <= phase.work_us <= LONGEST_US:
            found.append(f"phases: phase {at} has no length; only the last may leave it out, for all that is left")
    if spec.workload and spec.phases:
        found.append("workload: each phase names its own; leave out workload")
    return found
