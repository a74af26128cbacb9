"""What a simulation tells: one versioned record, the same in JSON, in tables and in reports."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from ..base.errors import UsageError
from .meter import Series

SCHEMA = "tidewright.simulation/1"
_OF_COMPLETED = (
    "jct_mean_s", "jct_median_s", "jct_p99_s", "queue_mean_s", "queue_p99_s", "rho_mean", "rho_p99", "rho_worst", "rho_unfair",
)  # fmt: skip
"""Figures that nothing can be said of where no job completed: 0 in the record, null in JSON."""


class TierResult(Struct, frozen=True, kw_only=True):
    """Completed jobs of one tier. ``fraction`` is the delivered GPU fraction: true run time over time since submission.

    Shares of an empty tier are 0. ``attainable`` is the share that would attain with the cluster to itself: launching
    takes time, so very short jobs cannot.
    """

    tier: str
    target: float
    jobs: int
    fraction_mean: float
    fraction_p5: float
    attained: float
    """Share of jobs with fraction >= target."""
    attained_by_work: float
    """The same, each job weighted by its device-time."""
    attainable: float
    jct_mean_s: float
    work_s: float = 0.0
    """Device-seconds that its jobs had to do."""


class SimulationResult(Struct, frozen=True, kw_only=True):
    """Times are seconds, areas device-hours. Means and quantiles are over completed jobs, and 0 where there are none.

    JCT is end minus submission; queueing is first start minus submission; utilisation is device-time held over
    capacity times makespan; ``rho`` is finish-time fairness, see ``sim.metrics.fairness``.
    """

    schema: str = SCHEMA
    policy: str
    trace: str
    cluster: str
    devices: int
    jobs: int
    completed: int
    failed: int
    refused: int
    refusals: dict[str, int] = {}
    """Why jobs were refused, by code."""
    remarks: tuple[str, ...] = ()
    """What the trace's reader changed: rows sorted or left out."""
    profile: str = "default"
    unfinished: int
    """Still in the system at the end (horizon reached, or nothing could start them): censored, not in the means."""
    horizon_s: float = 0.0
    """When the simulation would have ended at the latest; 0: not known."""
    makespan_s: float
    utilisation: float
    utilisation_arriving: float
    """The same without the emptying at the end: device-time held over capacity, from 0 until the last job is admitted or refused,
    which is its submission, or the start of a round after it. Where all jobs are submitted at one instant, or some have not been
    admitted at the end, over the makespan."""
    jct_mean_s: float
    jct_median_s: float
    jct_p99_s: float
    queue_mean_s: float
    queue_p99_s: float
    queue_length_mean: float
    """Jobs that hold no device, from their submission on, also where a round admits them later; mean over the makespan."""
    rho_mean: float
    rho_p99: float
    rho_worst: float = 0.0
    """Of the job treated worst."""
    rho_unfair: float
    """Share of completed jobs that did worse than alone on their share of the cluster (rho > 1)."""
    fragmentation: float = 0.0
    """Share of the free device-time until the last submission that a job like the trace's could not use: ``sim.free_share``."""
    preemptions: int
    restarts: int
    lost_device_hours: float
    """Work that was done and had to be done again."""
    goodput: float = 0.0
    """Device-time of completed jobs' own work over device-time held: the rest went into launching, saving and repeating."""
    checkpoints: int = 0
    """Images taken of running jobs."""
    held_device_hours: float
    run_hours: float = 0.0
    """Hours of run that completed jobs needed, whatever their size: what preemptions are counted against."""
    tiers: tuple[TierResult, ...]
    turns: int
    planning_rounds: int = field(name="thoughts")
    moves: int
    """Moves of all plans, those that were refused included."""
    moves_refused: int = 0
    """Moves that the engine did not apply, since they did not hold when they came to it; all of a gang of which one did not."""
    move_refusals: dict[str, int] = {}
    """Why, by code."""
    jct_quantiles_s: tuple[float, ...]
    """JCT at 0, 0.5, … 100 per cent."""
    series: Series


def to_json(results: list[SimulationResult]) -> bytes:
    """A JSON array of results, indented."""
    rows = msgspec.to_builtins(results)
    for row in rows:
        if not row["completed"]:
            row.update(dict.fromkeys(_OF_COMPLETED))
    return msgspec.json.format(msgspec.json.encode(rows), indent=2)


def from_json(text: bytes) -> list[SimulationResult]:
    """The results in ``to_json``'s output. Raises UsageError when it is anything else or of another version."""
    try:
        rows = msgspec.json.decode(text, type=list[dict[str, Any]])
        for row in rows:
            row.update((key, 0.0) for key in _OF_COMPLETED if key in row and row[key] is None)
        results = msgspec.convert(rows, list[SimulationResult])
    except msgspec.MsgspecError as error:
        raise UsageError(f"not simulation results: {error}", "give the output of tide simulate -o json") from error
    wrong = [result.schema for result in results if result.schema != SCHEMA]
    if wrong:
        raise UsageError(f"results of schema {wrong[0]}", f"this version reads {SCHEMA}; run the simulation again")
    return results
