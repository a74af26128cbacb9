"""Rates learnt from jobs that report samples: kept as they come, news where they differ from what is known, and put in force.

Declared tables are of another machine, batch or version; what a job does here is better (Pollux, OSDI'21, section 4.1, fits its
model to the same reports). Pure: who measures, and who decides by it, is elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from msgspec.structs import replace

from ..model.rate import Goodput, KindSteps, LearntRates, Place, ProgressReport, RateSettings, StepTime, Throughput
from .goodput import StepSample, step_s
from .rates import Rates

MOST_PER_S = 1e15
"""Samples per second, as in declared rows."""
MOST_ROWS = 4_096
"""Learnt rows in force; beyond them the oldest go."""
_MOST_PLACES = 4_096
_WINDOWS = 20
"""Reports of one job at one place that are kept, the last."""
_JOBS = 32
"""Jobs of one place that are kept, the last."""
_LEAST_WINDOWS = 3
_NEWS = 0.05
"""A figure that differs by less from the one in force is none that changes a decision."""
UNLIKE = 10.0
"""A report that differs by this factor from what is known otherwise counts something else."""
_OUTLIER = 1.5
"""Among three or more jobs in one place, one whose steps differ from the median's by this factor is not fitted to."""


_Windows = dict[int, "deque[ProgressReport]"]
Fit = Callable[[list[StepSample]], StepTime]


class RateHistory:
    """Reports by place and job. The figure of a place is the median over its jobs of the median of each: one job that counts
    something else among several changes little. ``fit`` makes step times of goodput models; None: they are not learnt."""

    def __init__(self, fit: Fit | None = None) -> None:
        self._fit = fit
        self._seen: dict[Place, _Windows] = {}
        self._fresh: set[Place] = set()
        """Places with reports that ``news`` has not looked at."""

    def note(self, place: Place, job: int, report: ProgressReport) -> None:
        """Keep a report, unless no machine could do so much."""
        if not 0 < report.samples / report.seconds < MOST_PER_S:
            return
        self._fresh.add(place)
        by_job = self._seen.pop(place, {})
        self._seen[place] = by_job  # the last seen is the last to go
        windows = by_job.pop(job, None) or deque(maxlen=_WINDOWS)
        by_job[job] = windows
        windows.append(report)
        if len(by_job) > _JOBS:
            del by_job[next(iter(by_job))]
        if len(self._seen) > _MOST_PLACES:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._fresh.discard(oldest)

    def forget(self, workload: str) -> None:
        """Nothing was reported of this."""
        self._seen = {place: by_job for place, by_job in self._seen.items() if place.workload != workload}
        self._fresh = {place for place in self._fresh if place.workload != workload}

    def news(self, declared: RateSettings, learnt: LearntRates) -> tuple[LearntRates, tuple[str, ...]]:
        """What differs from what is in force, of places with new reports, and remarks on reports that are not believed."""
        rows, steps, remarks = [], [], list[str]()
        fresh, self._fresh = self._fresh, set()
        in_force = Rates(with_learnt(declared, learnt))
        known = Rates(declared)
        for place in sorted(fresh):
            per_s = _figure(self._seen[place])
            if per_s is None or place.workload in declared.goodput:
                continue
            expected = known.expected_per_s(*place) or _by_others(place, declared, learnt)
            if expected and unlike(per_s, expected):
                remarks.append(_unlike(place, per_s, expected))
            elif _differs(per_s, in_force.per_s(*place)):
                rows.append(Throughput(place.workload, place.kind, place.devices, per_s, place.nodes))
        if self._fit is not None:
            for workload in sorted({place.workload for place in fresh} & declared.goodput.keys()):
                steps += self._fitted(workload, declared.goodput[workload], learnt, self._fit, remarks)
        return LearntRates(tuple(rows), tuple(steps)), tuple(remarks)

    def _fitted(
        self, workload: str, model: Goodput, learnt: LearntRates, fit: Fit, remarks: list[str]
    ) -> list[KindSteps]:
        """Step times of kinds of which the present ones foretell the measured steps badly."""
        found = []
        in_force = model.steps | {one.kind: one.times for one in learnt.steps if one.workload == workload}
        for kind in dict.fromkeys(place.kind for place in self._seen if place.workload == workload):
            samples = self._samples(workload, kind, model, remarks)
            times = in_force.get(kind)
            if samples and (times is None or any(_differs(one.seconds, _foretold(times, one)) for one in samples)):
                fitted = fit(samples)
                if times is None or _error(fitted, samples) < _error(times, samples):
                    found.append(KindSteps(workload, kind, fitted))
        return found

    def _samples(self, workload: str, kind: str, model: Goodput, remarks: list[str]) -> list[StepSample]:
        """Of each job the median step, without those that count something else: by the declared times, or by other jobs."""
        found: list[StepSample] = []
        times = model.steps.get(kind) or next(iter(model.steps.values()))
        for place, by_job in self._seen.items():
            if (place.workload, place.kind) != (workload, kind):
                continue
            here = []
            for one in filter(None, (_median_step(place, windows) for windows in by_job.values())):
                expected = _foretold(times, one)
                if unlike(one.seconds, expected):
                    remarks.append(_unlike(place, *(one.per_device * one.devices / s for s in (one.seconds, expected))))
                else:
                    here.append((one.seconds / expected, one))
            middle = median(ratio for ratio, _ in here) if here else 1.0
            found += [one for ratio, one in here if len(here) < 3 or middle / _OUTLIER < ratio < middle * _OUTLIER]
        return found


def unlike(figure: float, other: float) -> bool:
    """Whether two figures differ so much that they are not of the same thing."""
    return not other / UNLIKE < figure < other * UNLIKE


def _by_others(place: Place, declared: RateSettings, learnt: LearntRates) -> float:
    """What the rows learnt of a workload elsewhere say of a place; 0 where there are none."""
    others = tuple(
        row
        for row in learnt.throughputs
        if row.workload == place.workload and (row.kind, row.devices) != (place.kind, place.devices)
    )
    return Rates(RateSettings(kinds=declared.kinds, throughputs=others)).expected_per_s(*place) if others else 0.0


def _median_step(place: Place, windows: deque[ProgressReport]) -> StepSample | None:
    if len(windows) < _LEAST_WINDOWS:
        return None
    per_device = median(one.samples / one.steps for one in windows) / place.devices
    return StepSample(place.devices, place.nodes, per_device, median(one.seconds / one.steps for one in windows))


def _figure(by_job: Mapping[int, deque[ProgressReport]]) -> float | None:
    each = [
        median(one.samples / one.seconds for one in windows)
        for windows in by_job.values()
        if len(windows) >= _LEAST_WINDOWS
    ]
    return median(each) if each else None


def _differs(measured: float, known: float) -> bool:
    return known <= 0 or abs(measured / known - 1) > _NEWS


def _foretold(times: StepTime, sample: StepSample) -> float:
    return step_s(times, sample.devices, sample.nodes, sample.per_device)


def _error(times: StepTime, samples: list[StepSample]) -> float:
    return sum(abs(_foretold(times, one) / one.seconds - 1) for one in samples)


def _unlike(place: Place, per_s: float, expected: float) -> str:
    return (
        f"{place.workload} on {place.devices} {place.kind} reports {per_s:g} samples per second where {expected:g} is to be "
        "expected: it counts something else, and is not learnt from"
    )


# -- in force ---------------------------------------------------------------------------------------------------------------


def merged(before: LearntRates, more: LearntRates) -> LearntRates:
    """Both, the later in the place of the earlier, and behind it: the last to go."""
    rows = {(row.workload, row.kind, row.devices, row.nodes): row for row in before.throughputs}
    steps = {(one.workload, one.kind): one for one in before.steps}
    for row in more.throughputs:
        rows.pop(key := (row.workload, row.kind, row.devices, row.nodes), None)
        rows[key] = row
    for one in more.steps:
        steps.pop(name := (one.workload, one.kind), None)
        steps[name] = one
    return LearntRates(tuple(rows.values())[-MOST_ROWS:], tuple(steps.values())[-MOST_ROWS:])


def without(learnt: LearntRates, workload: str) -> LearntRates:
    """What was learnt of other workloads."""
    return LearntRates(
        tuple(row for row in learnt.throughputs if row.workload != workload),
        tuple(one for one in learnt.steps if one.workload != workload),
    )


_recent: list[tuple[RateSettings, LearntRates, RateSettings]] = []


def with_learnt(declared: RateSettings, learnt: LearntRates) -> RateSettings:
    """Settings with what was learnt in its place; the last few are remembered, by identity (neither is ever written).

    A learnt row replaces the declared ones for the same devices that do not name a number of nodes, and that for the same nodes.
    One that counts something else than what is declared now, perhaps since, is left out.
    """
    if not learnt.throughputs and not learnt.steps:
        return declared
    for settings, known, found in _recent:
        if settings is declared and known is learnt:
            return found
    made = _joined(declared, learnt)
    _recent.insert(0, (declared, learnt, made))
    del _recent[4:]
    return made


def _joined(declared: RateSettings, learnt: LearntRates) -> RateSettings:
    known = Rates(declared)
    believed = [
        row
        for row in learnt.throughputs
        if not (expected := known.expected_per_s(row.workload, row.kind, row.devices, row.nodes))
        or not unlike(row.per_s, expected)
    ]
    mine = {(row.workload, row.kind, row.devices) for row in believed}
    exact = {(row.workload, row.kind, row.devices, row.nodes) for row in believed}
    kept = [
        row
        for row in declared.throughputs
        if (row.workload, row.kind, row.devices, row.nodes) not in exact
        and (row.nodes or not row.per_s or (row.workload, row.kind, row.devices) not in mine)
    ]
    goodput = dict(declared.goodput)
    for one in learnt.steps:
        model = declared.goodput.get(one.workload)
        if model is not None and _alike(model, one):
            goodput[one.workload] = replace(
                goodput[one.workload], steps={**goodput[one.workload].steps, one.kind: one.times}
            )
    return replace(declared, throughputs=(*kept, *believed), goodput=goodput)


def _alike(model: Goodput, learnt: KindSteps) -> bool:
    """Whether learnt step times are of the same thing as those that are declared now of the kind."""
    times = model.steps.get(learnt.kind)
    if times is None:
        return True
    batch = min(model.batch, model.most_per_device)
    return not unlike(step_s(learnt.times, 1, 1, batch), step_s(times, 1, 1, batch))
