"""From what happened to each job to the figures people compare. Arithmetic on columns.

It refuses to know how any of it came about.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..base.units import HOUR, SECOND
from ..engine.commands import Ended
from ..model.job import TIER_TARGET, State, Tier
from .meter import PoolMeter
from .result import SimulationResult, TierResult
from .trace import Trace

UNFINISHED, REFUSED = -1, -2
Floats = NDArray[np.float64]


class Outcomes:
    """What became of each row of a trace, as columns; times in microseconds."""

    def __init__(self, trace: Trace) -> None:
        jobs = len(trace)
        self.trace = trace
        self.state = np.full(jobs, UNFINISHED, np.int8)
        self.start = np.full(jobs, -1, np.int64)
        self.end = np.full(jobs, -1, np.int64)
        self.preemptions = np.zeros(jobs, np.int32)
        self.attempts = np.zeros(jobs, np.int32)
        self.lost = np.zeros(jobs, np.int64)
        self.settled = 0
        self.held_area = 0
        """Milli-device-microseconds by the engine's ledger, ended jobs only."""

        self.refusals: dict[int, str] = {}
        """Row to the code of why the job was refused."""

    def refuse(self, row: int, why: str) -> None:
        """The job was not let in, or could not start at once where jobs do not queue."""
        self.state[row] = REFUSED
        self.refusals[row] = why
        self.settled += 1

    def record(self, row: int, ended: Ended, lost_us: int) -> None:
        """The job has ended; ``lost_us`` of its run time had to be repeated."""
        self.state[row] = ended.state
        self.start[row] = ended.first_start
        self.end[row] = ended.end
        self.preemptions[row] = ended.preemptions
        self.attempts[row] = ended.attempts
        self.lost[row] = lost_us
        self.held_area += ended.held_milli_us
        self.settled += 1


class Labels(Struct, frozen=True, kw_only=True):
    """What was simulated, for the record, and how often the loop turned."""

    policy: str
    cluster: str
    devices: int
    launch_us: NDArray[np.int64]
    """Of each row of the trace, microseconds."""
    profile: str
    arriving_area: int
    """Milli-device-microseconds held until the last job of the trace was admitted or refused, at ``arriving_us``."""
    arriving_us: int
    """0: some were not."""
    fragmentation: float
    turns: int
    planning_rounds: int
    moves: int
    refused_moves: dict[str, int]
    checkpoints: int


def measure(outcomes: Outcomes, meter: PoolMeter, labels: Labels) -> SimulationResult:
    """All figures of one run."""
    trace = outcomes.trace
    done = outcomes.state == int(State.COMPLETED)
    jct = (outcomes.end - trace.submit)[done] / SECOND
    queue = (outcomes.start - trace.submit)[done] / SECOND
    rho = fairness(outcomes, labels.devices, labels.launch_us, meter.at)
    span = max(meter.at, 1)
    lost = sum(int(us) * int(k) for us, k in zip(outcomes.lost.tolist(), trace.devices.tolist(), strict=True) if us)
    return SimulationResult(
        policy=labels.policy,
        trace=trace.name,
        profile=labels.profile,
        remarks=trace.remarks,
        cluster=labels.cluster,
        devices=labels.devices,
        jobs=len(trace),
        completed=int(done.sum()),
        failed=int((outcomes.state > int(State.COMPLETED)).sum()),
        refused=int((outcomes.state == REFUSED).sum()),
        refusals=dict(sorted(Counter(outcomes.refusals.values()).items())),
        unfinished=int((outcomes.state == UNFINISHED).sum()),
        makespan_s=meter.at / SECOND,
        utilisation=meter.held_area / (1000 * labels.devices * span),
        utilisation_arriving=_utilisation_arriving(trace, meter, labels),
        jct_mean_s=_mean(jct),
        jct_median_s=_quantile(jct, 0.5),
        jct_p99_s=_quantile(jct, 0.99),
        queue_mean_s=_mean(queue),
        queue_p99_s=_quantile(queue, 0.99),
        queue_length_mean=meter.queued_area / span,
        rho_mean=_mean(rho),
        rho_p99=_quantile(rho, 0.99),
        rho_worst=float(rho.max()) if len(rho) else 0.0,
        rho_unfair=_mean(rho > 1.0 + 1e-6),
        fragmentation=labels.fragmentation,
        preemptions=int(outcomes.preemptions.sum()),
        restarts=int(np.maximum(outcomes.attempts - 1, 0).sum()),
        lost_device_hours=lost / HOUR,
        run_hours=float(trace.duration[done].sum() / HOUR),
        held_device_hours=meter.held_area / 1000 / HOUR,
        tiers=tuple(_tier(outcomes, tier, done, labels.launch_us) for tier in reversed(Tier)),
        turns=labels.turns,
        planning_rounds=labels.planning_rounds,
        moves=labels.moves,
        moves_refused=sum(labels.refused_moves.values()),
        move_refusals={str(why): count for why, count in sorted(labels.refused_moves.items())},
        checkpoints=labels.checkpoints,
        goodput=sum(
            int(us) * int(k) for us, k in zip(trace.duration[done].tolist(), trace.devices[done].tolist(), strict=True)
        )
        * 1000
        / max(meter.held_area, 1),
        jct_quantiles_s=tuple(round(float(value), 3) for value in np.quantile(jct, np.linspace(0, 1, 201)))
        if len(jct)
        else (),
        series=meter.series(),
    )


def _utilisation_arriving(trace: Trace, meter: PoolMeter, labels: Labels) -> float:
    """Share of the capacity held while jobs came: see ``SimulationResult.utilisation_arriving``. 0 to 1."""
    area, span = labels.arriving_area, labels.arriving_us
    if not span or trace.submit[0] == trace.submit[-1]:
        area, span = meter.held_area, meter.at
    return area / (1000 * labels.devices * max(span, 1))


def fairness(outcomes: Outcomes, devices: int, launch_us: NDArray[np.int64], now: int) -> Floats:
    """Finish-time fairness of completed jobs: JCT over the time the job would have taken alone on a 1/N share.

    rho = JCT / (L + T · max(1, k·N / D)): L what its launch takes in the ordinary case, T the run time on the full allotment
    of k devices, D the cluster's devices and N the mean number of jobs in the system over this job's own life; a share smaller
    than k slows the job linearly. After Themis (NSDI'20, section 3), with N over the life as in Shockwave (NSDI'23).
    """
    trace = outcomes.trace
    known = outcomes.state != REFUSED
    done = outcomes.state == int(State.COMPLETED)
    ends = np.where(outcomes.end >= 0, outcomes.end, now)[known] / SECOND
    submits = trace.submit[known] / SECOND
    times = np.sort(np.concatenate([submits, ends]))
    active = np.searchsorted(np.sort(submits), times, side="right") - np.searchsorted(
        np.sort(ends), times, side="right"
    )
    area = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(times))]) if len(times) else np.zeros(0)
    life_from, life_to = trace.submit[done] / SECOND, outcomes.end[done] / SECOND
    life = np.maximum(life_to - life_from, 1e-9)
    others = (
        np.maximum((np.interp(life_to, times, area) - np.interp(life_from, times, area)) / life, 1.0)
        if done.any()
        else life
    )
    alone = trace.duration[done] / SECOND * np.maximum(1.0, trace.devices[done] * others / devices)
    rho: Floats = life / (alone + launch_us[done] / SECOND)
    return rho


def _tier(outcomes: Outcomes, tier: Tier, done: NDArray[np.bool_], launch_us: NDArray[np.int64]) -> TierResult:
    trace, target = outcomes.trace, TIER_TARGET[tier]
    mine = done & (trace.tier == int(tier))
    duration = trace.duration[mine].astype(np.float64)
    jct = np.maximum((outcomes.end - trace.submit)[mine], 1).astype(np.float64)
    work = duration * trace.devices[mine]
    fraction = duration / jct
    kept = fraction >= target
    return TierResult(
        tier=tier.name.lower(),
        target=target,
        jobs=int(mine.sum()),
        fraction_mean=_mean(fraction),
        fraction_p5=_quantile(fraction, 0.05),
        attained=_mean(kept),
        attained_by_work=float((work * kept).sum() / work.sum()) if len(work) else 0.0,
        attainable=_mean(duration / (duration + launch_us[mine]) >= target),
        jct_mean_s=_mean(jct) / SECOND,
        work_s=float(work.sum()) / SECOND,
    )


def _mean(values: NDArray[Any]) -> float:
    return math.fsum(values.tolist()) / len(values) if len(values) else 0.0


def _quantile(values: Floats, at: float) -> float:
    return float(np.quantile(values, at)) if len(values) else 0.0
