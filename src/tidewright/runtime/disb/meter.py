"""Counts what the clients of a run see, and makes the result of it. The same for the model and for a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .arrivals import IntendedLaunch
from .result import QUANTILES, ClientResult, DisbResult, PreemptionFigures, quantile, summarize
from .workload import DisbTask, DisbWorkload


@dataclass(slots=True)
class _Counted:
    launched: int = 0
    latency: list[float] = field(default_factory=list)
    intended: list[float] = field(default_factory=list)


class DisbMeter:
    """``standalone_ns`` by client. Requests that complete after ``end`` (nanoseconds) are launched but not counted as done."""

    def __init__(self, workload: DisbWorkload, standalone_ns: Mapping[str, int], end: int) -> None:
        self.workload = workload
        self.standalone_ns = standalone_ns
        self.end = end
        self._counted = {task.id: _Counted() for task in workload.tasks}

    def launched(self, client: str) -> None:
        self._counted[client].launched += 1

    def completed(self, client: str, launch: IntendedLaunch, now: int) -> None:
        """A request that was made by ``launch`` is complete at ``now`` (nanoseconds)."""
        if now <= self.end:
            counted = self._counted[client]
            counted.latency.append((now - launch.at) / 1000)
            counted.intended.append((now - launch.intended) / 1000)

    def result(
        self,
        row: str,
        source: Literal["model", "measurement"],
        loop: Literal["closed", "open"],
        seed: int,
        dropped: Mapping[str, int],
        busy: float,
        preemption: PreemptionFigures,
    ) -> DisbResult:
        """All figures of the run."""
        seconds = self.end / 1e9
        rts = [task for task in self.workload.tasks if task.realtime]
        ratios = sorted(us / self._alone(task) for task in rts for us in self._counted[task.id].latency)
        return DisbResult(
            workload=self.workload.name,
            row=row,
            source=source,
            loop=loop,
            seed=seed,
            seconds=seconds,
            clients=tuple(self._client(task, dropped.get(task.id, 0), seconds) for task in self.workload.tasks),
            rt=summarize([us for task in rts for us in self._counted[task.id].latency]),
            rt_since_intended=summarize([us for task in rts for us in self._counted[task.id].intended]),
            rt_increase=sum(ratios) / len(ratios) - 1 if ratios else 0.0,
            rt_increase_p99=quantile(ratios, 0.99) - 1 if ratios else 0.0,
            rt_per_second=self._done(True) / seconds,
            be_per_second=self._done(False) / seconds,
            rt_done=self._work(True) / seconds,
            be_done=self._work(False) / seconds,
            busy=busy,
            preemption=preemption,
        )

    def _alone(self, task: DisbTask) -> float:
        return self.standalone_ns[task.id] / 1000

    def _done(self, realtime: bool) -> int:
        return sum(len(self._counted[task.id].latency) for task in self.workload.tasks if task.realtime is realtime)

    def _work(self, realtime: bool) -> float:
        of = (task for task in self.workload.tasks if task.realtime is realtime)
        return sum(len(self._counted[task.id].latency) * self.standalone_ns[task.id] for task in of) / 1e9

    def _client(self, task: DisbTask, dropped: int, seconds: float) -> ClientResult:
        counted = self._counted[task.id]
        return ClientResult(
            task.id,
            task.client.model_name,
            task.realtime,
            self._alone(task),
            summarize(counted.latency),
            summarize(counted.intended),
            counted.launched,
            len(counted.latency),
            dropped,
            len(counted.latency) / seconds,
        )


def preemption_figures(latency_ns: Sequence[int], restore_ns: Sequence[int], wasted: float) -> PreemptionFigures:
    """The figures of preemptions and relaunches, nanoseconds each."""
    ordered = sorted(ns / 1000 for ns in latency_ns)
    cdf = tuple(quantile(ordered, share) for share in QUANTILES) if ordered else ()
    return PreemptionFigures(summarize(ordered), cdf, summarize([ns / 1000 for ns in restore_ns]), wasted)
