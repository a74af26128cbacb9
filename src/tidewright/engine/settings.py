"""Settings of the engine; recorded with the journal so that a replay decides alike."""

from __future__ import annotations

from msgspec import Struct, field

from ..base.units import DAY, MINUTE, MS, SECOND
from ..model.job import Level
from ..model.rate import RateSettings
from ..model.splice import LINEAR, OVERHEAD_MILLI

RULES = 1
"""The rules of today, see ``EngineSettings.rules``."""


class EngineSettings(Struct, frozen=True, kw_only=True):
    """Times in microseconds. The defaults describe a pool whose jobs can all be imaged and moved (a simulation)."""

    rules: int = 0
    """Which answers the engine gives: a journal is replayed by those of the version that wrote it. 1, from 2026-11-29 on: a job
    that needs more devices than the pool has of any one kind is refused; a plan is followed by another one if a job has begun to
    run while it was made, or a waiting job is held or has ended; a suspended job is no reason for one where less is free than the
    last one waits for."""
    auto_level: int = int(Level.FULL)
    """What ``preempt: auto`` means for a job of one rank where not every node of its allocation takes full images."""
    gang_level: int = int(Level.FULL)
    """The same for several ranks. Freezing a gang outlasts its process-group timeout, so without a barrier this is NONE."""
    freeze_kinds: tuple[str, ...] = ("cpu",)
    """Device kinds whose memory a frozen job does not occupy; elsewhere freezing frees nothing and is refused."""
    gang_freeze_bound_us: int = 60 * SECOND
    """Longest timed hold of a gang at freeze level; gloo's default timeout is 30 min, NCCL's 10 min."""
    save_us: int = 1 * SECOND
    """Cost of a suspension before one has been measured."""
    restore_us: int = 500 * MS
    full_save_us: int = 1_500 * MS
    """Cost of a full image before one of the job's has been measured: this and the time to write it; see docs/why/failover."""
    full_restore_us: int = 500 * MS
    image_bytes: int = 250 * 10**6
    """Size of one rank's image before one has been measured: a small torch program."""
    image_rate: int = 300 * 10**6
    """Bytes written per second."""
    shared_images: bool = True
    """Whether images lie where no node's death touches them. Otherwise each node keeps its own ranks', and copies are reported
    with ImageCopied."""
    checkpoints: bool = False
    """Whether running jobs are imaged now and then, to fail over to."""
    node_mtbf_us: int = 264 * DAY
    """Time between failures of one node before any was seen: 419 interruptions of 2,048 nodes in 54 days (Llama 3,
    arXiv 2407.21783, table 5)."""
    checkpoint_min_us: int = 10 * SECOND
    """Least run time between periodic images, whatever the failure rate."""
    checkpoint_patience_us: int = 30 * MINUTE
    """How long an image of a running job may take; without an answer by then it is taken to have failed."""
    splice_milli: int = LINEAR
    """Thousandths that ranks lose by taking turns on a device; -1: speed is in proportion to devices."""
    predict: bool = True
    """Whether the run times of jobs that have ended say how long similar ones will take whose users gave no estimate."""
    rates: RateSettings = RateSettings()
    """How fast jobs run on which kind and number of devices, beyond what ``splice_milli`` says."""
    backoff_us: int = 1 * SECOND
    """First pause before a retry; doubles with every failure up to ``backoff_max_us``."""
    backoff_max_us: int = 5 * MINUTE
    max_ranks_per_device: int = 0
    """Most ranks that may take turns on one device, on the fewest devices a job accepts; 0: any number."""
    launch_attempts: int = 8
    """Launches that may fail by the world's fault before the job does."""
    cordon_after: int = 3
    """Launches that a node refuses in a row, of two jobs at least, before it is unschedulable for a while."""
    cordon_us: int = 1 * MINUTE
    """First such pause; doubles each time up to ``cordon_max_us``."""
    cordon_max_us: int = 30 * MINUTE
    avoid_us: int = 1 * MINUTE
    """How long a job is placed elsewhere than on a node that refused to launch it."""
    suspend_cooldown_us: int = field(name="shield_us", default=30 * SECOND)
    """How long planners do not suspend a job whose suspension failed."""
    planning_retry_us: int = field(name="think_retry_us", default=2 * SECOND)
    """Pause before the next planning round after the planner has failed."""
    forecasts: bool = True
    """Whether submissions are answered with a warning when promised GPU fractions outgrow the pool; simulations need none."""
    explained: bool = True
    """Whether plans say what keeps the first jobs of the queue from starting; simulations need none."""
    history_length: int = field(name="story_length", default=64)
    """Entries kept of a job's history; 0 keeps none (long simulations)."""
    remembered_answers: int = 20_000
    remembered_outcomes: int = 200_000
    check_every: int = 256
    """Steps between full checks of the invariants; touched jobs are checked at each."""


def live_settings(**changes: int | tuple[str, ...]) -> EngineSettings:
    """Real nodes: full images where a node takes them; elsewhere single ranks freeze in place and gangs run to completion."""
    import msgspec

    base = EngineSettings(
        auto_level=int(Level.FREEZE), gang_level=int(Level.NONE), save_us=50 * MS, restore_us=20 * MS,
        shared_images=False, checkpoints=True, splice_milli=OVERHEAD_MILLI, max_ranks_per_device=16, rules=RULES,
    )  # fmt: skip
    switches = {one.name for one in msgspec.structs.fields(EngineSettings) if isinstance(one.default, bool)}
    # A settings file writes switches as 0 and 1; the journal keeps them as what they are.
    return msgspec.structs.replace(
        base, **{name: bool(value) if name in switches else value for name, value in changes.items()}
    )
