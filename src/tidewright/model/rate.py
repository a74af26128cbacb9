"""The rate at which a job makes progress: the unit, what is declared of it, and the question that everyone asks.

The ledger, planners and the simulated world ask one estimator (``estimate.rates`` has the ones that are built in); it
refuses to know who asks.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from .job import JobSpec
from .table import Column

FULL_RATE = 1_000_000
"""Millionths of full speed at full speed: that on the full allotment of the job's reference kind, on as few nodes as can be."""
MOST_RATE = 1_000 * FULL_RATE
"""Largest rate there is: a job submitted before faster kinds join runs above its full speed there."""
_SAFE = 9 * 10**18
"""Larger products would not fit 64 bits: 104 days at full speed."""


class Spread(NamedTuple):
    """How an allocation lies: on ``nodes`` nodes, where the ``fewest`` of this kind that could hold it is less or equal."""

    nodes: int = 1
    fewest: int = 1


TOGETHER = Spread()
"""On as few nodes as can be."""


class RatedJob(NamedTuple):
    """What of a job decides its rate. ``workload`` names its row in tables (empty: none); ``reference`` is the kind of device
    whose full allotment is full speed (empty: every kind is alike)."""

    workload: str
    ranks: int
    demand: int
    reference: str = ""


class RateEstimator(Protocol):
    """The one interface of ledger, planners and simulated world. Pure: the same arguments, the same rate."""

    def rate(
        self, job: RatedJob, kind: str, count: int, spread: Spread = TOGETHER, neighbours: tuple[RatedJob, ...] = ()
    ) -> int:
        """Millionths of full speed on ``count`` devices of ``kind`` beside ``neighbours`` on the same devices; at least 1."""
        ...

    def runs_on(self, workload: str, kind: str, count: int) -> bool:
        """False where it is known that the workload cannot run on so many devices of the kind (out of memory)."""
        ...

    def reference(self, spec: JobSpec, kinds: tuple[str, ...]) -> str:
        """Of the pool's ``kinds`` the one on which the job is fastest, of those it accepts; empty where all are alike."""
        ...

    @property
    def by_kind(self) -> bool:
        """Whether rates differ by anything but the number of devices."""
        ...


class Throughput(Struct, frozen=True, omit_defaults=True):
    """Work per second of one workload on ``devices`` of one kind: samples, or steps of a fixed batch. 0: it cannot run there.

    ``nodes``: on so many nodes; 0: wherever they lie.
    """

    workload: str
    kind: str
    devices: int
    per_s: float
    nodes: int = 0


class StepTime(Struct, frozen=True, omit_defaults=True):
    """Seconds of one training step by Pollux's model (Qiao et al., OSDI'21, section 3.2), of one kind of device.

    ``gradient + gradient_per_sample * m`` computes m samples on a device; synchronising K devices takes
    ``local + local_per_device * (K - 2)`` on one node and ``remote + remote_per_device * (K - 2)`` on several; ``overlap``
    (1 to 10) says how much of both happens at once.
    """

    gradient: float
    gradient_per_sample: float
    local: float = 0.0
    local_per_device: float = 0.0
    remote: float = 0.0
    remote_per_device: float = 0.0
    overlap: float = 1.0


class Goodput(Struct, frozen=True, omit_defaults=True):
    """Throughput times statistical efficiency (Pollux, OSDI'21, section 3): batches grow with devices as far as they pay.

    ``noise`` is the gradient noise scale in samples; batches are at least ``batch`` and at most ``most_batch``, of which one
    device holds ``most_per_device`` at a time.
    """

    steps: dict[str, StepTime]
    batch: int
    most_batch: int
    most_per_device: int
    noise: float


class RateSettings(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is declared of rates; nothing declared means that all kinds are alike and only the number of devices counts.

    ``kinds``: speed of each kind relative to the others, for workloads without rows of their own. ``spread``: share of its speed
    that a workload keeps on more nodes than it needs (``""``: every other workload). ``goodput``: by workload.
    """

    kinds: dict[str, float] = {}
    throughputs: tuple[Throughput, ...] = ()
    spread: dict[str, float] = {}
    goodput: dict[str, Goodput] = {}


class Place(NamedTuple):
    """Where a workload was seen."""

    workload: str
    kind: str
    devices: int
    nodes: int


class ProgressReport(NamedTuple):
    """What a job did in a while without a pause: ``samples`` in ``steps`` steps and ``seconds``."""

    steps: int
    samples: int
    seconds: float


class KindSteps(Struct, frozen=True):
    """Step times of a workload with a goodput model, fitted to what was measured on one kind of device."""

    workload: str
    kind: str
    times: StepTime


class LearntRates(Struct, frozen=True, omit_defaults=True):
    """What running jobs have shown: rows, one for each workload, kind and number of devices and nodes, that take the place of
    declared ones, and step times in the place of those of declared goodput models."""

    throughputs: tuple[Throughput, ...] = ()
    steps: tuple[KindSteps, ...] = ()


NOTHING_LEARNT = LearntRates()


def rated(spec: JobSpec, reference: str, workload: str) -> RatedJob:
    """A job as estimators see it, while it runs ``workload``."""
    return RatedJob(workload, spec.ranks, spec.devices, reference)


def phase_at(spec: JobSpec, done_us: int) -> tuple[str, int]:
    """What a job computes once ``done_us`` of its full-speed work are done, and when by that measure it ends (0: never)."""
    begins = 0
    for phase in spec.phases:
        begins += phase.work_us
        if done_us < begins or not phase.work_us:
            return phase.workload, begins if phase.work_us else 0
    return (spec.phases[-1].workload if spec.phases else spec.workload), 0


def workload_at(spec: JobSpec, done_us: int) -> str:
    """What a job computes once ``done_us`` of its full-speed work are done."""
    return phase_at(spec, done_us)[0] if spec.phases else spec.workload


def progress_us(elapsed_us: int, rate: int) -> int:
    """Full-speed microseconds of ``elapsed_us`` at a rate; rounded down, so that a job never counts as done too early."""
    return elapsed_us * rate // FULL_RATE


def progress_column(elapsed: Column, rate: Column) -> Column:
    """The same for columns of shape (n,), int64."""
    if len(elapsed) and int(np.maximum.reduce(elapsed)) * int(np.maximum.reduce(rate)) > _SAFE:
        whole, rest = np.divmod(elapsed, FULL_RATE)
        long: Column = whole * rate + rest * rate // FULL_RATE
        return long
    found: Column = elapsed * rate // FULL_RATE
    return found


def lasts_us(work_us: int, rate: int) -> int:
    """Microseconds that ``work_us`` of full-speed work takes at a rate; rounded up."""
    return -(-work_us * FULL_RATE // rate)
