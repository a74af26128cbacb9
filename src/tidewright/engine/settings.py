"""Settings of the engine; recorded with the journal so that a replay decides alike."""

from __future__ import annotations

from msgspec import Struct

from ..base.units import MINUTE, MS, SECOND
from ..model.job import Level


class EngineSettings(Struct, frozen=True, kw_only=True):
    """Times in microseconds. The defaults describe a pool whose jobs can all be imaged and moved (a simulation)."""

    auto_level: int = int(Level.FULL)
    """What ``preempt: auto`` means for a job of one rank."""
    gang_level: int = int(Level.FULL)
    """The same for several ranks. Freezing a gang outlasts its process-group timeout, so without a barrier this is NONE."""
    freeze_kinds: tuple[str, ...] = ("cpu",)
    """Device kinds whose memory a frozen job does not occupy; elsewhere freezing frees nothing and is refused."""
    gang_freeze_bound_us: int = 60 * SECOND
    """Longest timed hold of a gang at freeze level; gloo's default timeout is 30 min, NCCL's 10 min."""
    save_us: int = 1 * SECOND
    """Cost of a suspension before one has been measured."""
    restore_us: int = 500 * MS
    backoff_us: int = 1 * SECOND
    """First pause before a retry; doubles with every failure up to ``backoff_max_us``."""
    backoff_max_us: int = 5 * MINUTE
    launch_attempts: int = 8
    """Launches that may fail by the world's fault before the job does."""
    shield_us: int = 30 * SECOND
    """How long a job whose suspension failed is left alone."""
    think_retry_us: int = 2 * SECOND
    forecasts: bool = True
    """Whether submissions are answered with a warning when promises outgrow the pool; simulations have no reader."""
    story_length: int = 64
    """Entries kept of a job's history; 0 keeps none (long simulations)."""
    remembered_answers: int = 20_000
    remembered_outcomes: int = 200_000
    check_every: int = 256
    """Steps between full checks of the invariants; touched jobs are checked at each."""


def live_settings(**changes: int | tuple[str, ...]) -> EngineSettings:
    """What one machine without images can do: single ranks freeze in place, gangs run to completion."""
    import msgspec

    base = EngineSettings(auto_level=int(Level.FREEZE), gang_level=int(Level.NONE), save_us=50 * MS, restore_us=20 * MS)
    return msgspec.structs.replace(base, **changes)
