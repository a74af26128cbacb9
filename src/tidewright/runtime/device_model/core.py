"""Virtual time, the pool of SMs and the CTAs on it: what the device does by itself, without gates, holds and resets.

The SMs are one pool of capacity: where exactly a CTA lies is not modelled, and neither are L2 and memory. CTAs of one kernel
that start in the same instant are one cohort with one end. How long they take depends on how full their SMs are at the start,
by the kernel's own profile: neighbours contend as copies of the kernel itself would. Later arrivals do not slow them down.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Any

from .costs import ModelCosts
from .kernels import SM_CAPACITY
from .streams import ChainRun, ChainState, Cohort, ModelStream, SmPartition


class DeviceCore(ABC):
    """Events in order of time, then of their making; CTAs by priority, then by when their kernel was ready."""

    def __init__(self, sms: int, costs: ModelCosts) -> None:
        self.sms = sms
        self.costs = costs
        self.capacity = sms * SM_CAPACITY
        self.now = 0
        self.used = 0
        self.busy = 0
        """Capacity times nanoseconds in use so far."""
        self.streams: list[ModelStream] = []
        self.partitions: list[SmPartition] = []
        self.preemption_ns: list[int] = []
        """From every raise of the flag, or reset, that met resident best-effort CTAs until the last of them was gone."""
        self._order = count()
        self._events: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []

    def stream(
        self,
        name: str,
        priority: int = 0,
        *,
        gated: bool = False,
        partition: SmPartition | None = None,
        gap_ns: int = 0,
    ) -> ModelStream:
        """A new stream, confined to ``partition`` if one is given; the host adds ``gap_ns`` before each of its kernels."""
        made = ModelStream(name, priority, gated, partition, gap_ns)
        self.streams.append(made)
        return made

    def partition(self, sms: int) -> SmPartition:
        """``sms`` of the SMs, for streams to be confined to."""
        made = SmPartition(sms * SM_CAPACITY)
        self.partitions.append(made)
        return made

    def at(self, time: int, call: Callable[..., object], *args: Any) -> None:
        """Call back at ``time``, in the order of these calls where times are equal."""
        heapq.heappush(self._events, (max(time, self.now), next(self._order), call, args))

    def run_until(self, time: int) -> None:
        """Advance to ``time``: everything due by then has happened."""
        events = self._events
        while events and events[0][0] <= time:
            self._advance(events[0][0])
            while events and events[0][0] == self.now:
                _, _, call, args = heapq.heappop(events)
                call(*args)
            self._dispatch()
        self._advance(time)

    def _advance(self, time: int) -> None:
        self.busy += self.used * (time - self.now)
        self.now = time

    def _dispatch(self) -> None:
        ready = [s for s in self.streams if s.chains and s.chains[0].state is ChainState.READY and s.chains[0].waiting]
        ready.sort(key=lambda s: (-s.priority, s.ready_since))
        first_waiting = None
        for stream in ready:
            # A CTA of higher priority that does not fit yet is not overtaken by smaller ones of lower priority.
            if first_waiting is not None and stream.priority < first_waiting:
                return
            if self._fill(stream, stream.chains[0]):
                first_waiting = stream.priority

    def _fill(self, stream: ModelStream, run: ChainRun) -> bool:
        """Start what fits. True when CTAs are left over for want of room on the device (not in the partition)."""
        kernel, partition = run.kernel, stream.partition
        room = (self.capacity - self.used) // kernel.size
        within = (partition.capacity - partition.used) // kernel.size if partition else room
        ctas = min(run.waiting, room, within)
        if ctas > 0:
            capacity = ctas * kernel.size
            self._start(Cohort(stream, run, ctas, capacity, self.now, partition), self._time(run, capacity, partition))
        return run.waiting > 0 and room <= within

    def _time(self, run: ChainRun, more: int, partition: SmPartition | None) -> int:
        """Nanoseconds of CTAs that take ``more`` of the SMs where they go."""
        occupancy = run.kernel.occupancy
        filled, of = self._fullness(more, partition)
        return run.kernel.cta_ns[min(-(-filled * occupancy // of), occupancy) - 1]

    def _fullness(self, more: int, partition: SmPartition | None) -> tuple[int, int]:
        """How full the SMs are where ``more`` goes, with it: (capacity in use, capacity)."""
        apart = sum(one.capacity for one in self.partitions if one.used or one is partition)
        free = self.used - sum(one.used for one in self.partitions)
        if partition:
            # CTAs that are not confined fill the other SMs first; what is too much for those lies on all partitions evenly.
            spilled = max(free - (self.capacity - apart), 0)
            return partition.used + more + spilled * partition.capacity // apart, partition.capacity
        elsewhere = (free + more, self.capacity - apart)
        everywhere = (self.used + more, self.capacity)
        emptier = elsewhere[1] > 0 and elsewhere[0] * everywhere[1] <= everywhere[0] * elsewhere[1]
        return elsewhere if emptier else everywhere

    def _start(self, cohort: Cohort, time: int) -> None:
        cohort.run.started += cohort.ctas
        self.used += cohort.capacity
        if cohort.partition:
            cohort.partition.used += cohort.capacity
        cohort.stream.cohorts.append(cohort)
        self.at(self.now + time, self._ended, cohort)

    def _free(self, cohort: Cohort) -> None:
        stream, spent = cohort.stream, cohort.capacity * (self.now - cohort.began)
        self.used -= cohort.capacity
        if cohort.partition:
            cohort.partition.used -= cohort.capacity
        stream.executed += spent
        cohort.run.work[cohort.run.at] += spent
        stream.cohorts.remove(cohort)
        for watch in cohort.watchers:
            watch.left -= 1
            if not watch.left:
                self.preemption_ns.append(self.now - watch.raised)

    def _ended(self, cohort: Cohort) -> None:
        if cohort.killed:
            return
        self._free(cohort)
        run = cohort.run
        run.finished += cohort.ctas
        run.ctas_done[run.at] += cohort.ctas
        if cohort.host:
            # Padding has a partition of its own, which ends with it.
            assert cohort.partition
            self.partitions.remove(cohort.partition)
            cohort.host[1].padded -= 1
            self._progressed(*cohort.host)
        self._progressed(cohort.stream, run)

    @abstractmethod
    def _progressed(self, stream: ModelStream, run: ChainRun) -> None:
        """CTAs of the present kernel of ``run``, or of its padding, have ended."""
