"""Ways of sharing the modelled device, one class each: the rows of the benchmark.

Those named after published systems are their *policies*, written again on this model from their papers and sources; they are not
those systems. A row takes requests of clients and calls back when each is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..padding.nvidia_rule import GridKernel, select_on_leftover
from ..padding.slowdown import SlowdownTable
from .gpu import GpuModel
from .kernels import CtaKernel, KernelChain
from .streams import ChainRun, ChainState, ModelStream, OnDone, SmPartition


@dataclass(frozen=True, slots=True)
class ModelClient:
    """Sends requests for one model, real-time or best-effort."""

    name: str
    chain: KernelChain
    realtime: bool


class SharingRow(ABC):
    """What every row does: ``request`` one inference of a client. ``label`` is for tables, ``about`` for their readers."""

    label = ""
    about = ""

    def __init__(self, gpu: GpuModel, clients: Sequence[ModelClient], table: SlowdownTable | None = None) -> None:
        self.gpu = gpu
        self.clients = {client.name: client for client in clients}
        self.table = table
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Make the streams."""

    @abstractmethod
    def request(self, name: str, on_done: OnDone) -> None:
        """One inference of a client; ``on_done`` is called when it is done."""

    def real_time(self) -> list[ModelClient]:
        return [client for client in self.clients.values() if client.realtime]

    def best_effort(self) -> list[ModelClient]:
        return [client for client in self.clients.values() if not client.realtime]


class StreamRow(SharingRow):
    """A stream for every client, all of one priority."""

    label = "STREAM"
    about = "one stream per client, equal priority"
    rt_priority = 0

    def open(self) -> None:
        self.streams = {name: self.make_stream(client) for name, client in self.clients.items()}

    def make_stream(self, client: ModelClient) -> ModelStream:
        return self.gpu.stream(client.name, self.rt_priority if client.realtime else 0)

    def request(self, name: str, on_done: OnDone) -> None:
        self.gpu.submit(self.streams[name], self.clients[name].chain, on_done)


class PriorityRow(StreamRow):
    """Real-time streams have the higher priority: CTAs are preempted at their ends, kernel by kernel."""

    label = "PRIO"
    about = "stream priority only (block-level preemption by the hardware)"
    rt_priority = 1


class GreenRow(StreamRow):
    """A fixed split of the SMs."""

    label = "GREEN"
    about = "SMs split half and half, always"

    def open(self) -> None:
        half = self.gpu.sms // 2
        self.halves = {True: self.gpu.partition(half), False: self.gpu.partition(self.gpu.sms - half)}
        super().open()

    def make_stream(self, client: ModelClient) -> ModelStream:
        return self.gpu.stream(client.name, partition=self.halves[client.realtime])


class RealTimeOnlyRow(StreamRow):
    """The device is dedicated to real-time clients, whose requests run in order of arrival; others get no answer."""

    label = "RT-only"
    about = "no best-effort work: what real-time latency can be at best"

    def open(self) -> None:
        self.stream = self.gpu.stream("rt")

    def request(self, name: str, on_done: OnDone) -> None:
        if self.clients[name].realtime:
            self.gpu.submit(self.stream, self.clients[name].chain, on_done)


class SequentialRow(SharingRow):
    """One inference at a time; a waiting real-time request goes first, none is interrupted."""

    label = "SEQ"
    about = "one inference at a time, real-time first, no preemption"

    def open(self) -> None:
        self.stream = self.gpu.stream("all")
        self.queues: dict[bool, deque[tuple[KernelChain, OnDone]]] = {True: deque(), False: deque()}
        self.running = False

    def request(self, name: str, on_done: OnDone) -> None:
        client = self.clients[name]
        self.queues[client.realtime].append((client.chain, on_done))
        self._next()

    def _next(self) -> None:
        queue = self.queues[True] or self.queues[False]
        if self.running or not queue:
            return
        self.running = True
        chain, on_done = queue.popleft()
        self.gpu.submit(self.stream, chain, lambda now: self._done(now, on_done))

    def _done(self, now: int, on_done: OnDone) -> None:
        self.running = False
        on_done(now)
        self._next()


class RealTimeFirstRow(SharingRow):
    """Base of the preempting rows: real-time requests run in order on one stream; ``enter`` and ``leave`` real-time mode."""

    rt_priority = 1
    gated = False
    gap_ns = 0

    def open(self) -> None:
        self.outstanding = 0
        self.rt = self.gpu.stream("rt", self.rt_priority)
        self.be = {c.name: self.gpu.stream(c.name, gated=self.gated, gap_ns=self.gap_ns) for c in self.best_effort()}

    def request(self, name: str, on_done: OnDone) -> None:
        client = self.clients[name]
        if not client.realtime:
            self.gpu.submit(self.be[name], client.chain, on_done)
            return
        self.outstanding += 1
        if self.outstanding == 1:
            self.enter()
        self.start(client.chain, lambda now: self._done(now, on_done))

    def start(self, chain: KernelChain, on_done: OnDone) -> None:
        self.gpu.submit(self.rt, chain, on_done)

    def _done(self, now: int, on_done: OnDone) -> None:
        # The caller may ask again at once; real-time mode then goes on.
        on_done(now)
        self.outstanding -= 1
        if not self.outstanding:
            self.leave()

    @abstractmethod
    def enter(self) -> None:
        """Real-time work begins."""

    @abstractmethod
    def leave(self) -> None:
        """It ends."""


class GateRow(RealTimeFirstRow):
    """The CTA gate: best-effort CTAs that have not started return at once, and later run exactly once."""

    label = "gate"
    about = "ours: CTA gate with exactly-once resume"
    gated = True

    def enter(self) -> None:
        self.gpu.raise_flag()

    def leave(self) -> None:
        self.gpu.clear_flag()


class GatePaddingRow(GateRow):
    """The gate, and one best-effort client that goes on in a share of the SMs as the slow-down table admits."""

    label = "gate+padding"
    about = "ours: CTA gate, and a best-effort model on the share of SMs that the slow-down table admits"

    def open(self) -> None:
        super().open()
        self.partitions: dict[int, SmPartition] = {}
        self.running: list[str] = []
        self.padded: tuple[str, int] | None = None
        self.turns = dict.fromkeys(self.be, 0)

    def start(self, chain: KernelChain, on_done: OnDone) -> None:
        self.running.append(chain.name)
        self._choose()

        def done(now: int) -> None:
            self.running.remove(chain.name)
            on_done(now)
            self._choose()

        super().start(chain, done)

    def _choose(self) -> None:
        """Keep the padding that there is while every real-time model that runs or waits admits it, else find another."""
        if not self.running or (self.padded and self._admitted(self.padded[0]) >= self.padded[1]):
            return
        shares = {name: self._admitted(name) for name in self.be}
        best = max(shares, key=lambda name: (shares[name], -self.turns[name]), default=None)
        if self.padded:
            self.gpu.pad_beside(self.be[self.padded[0]], None)
        self.padded = None
        # One best-effort model at a time: the table knows pairs, not threes.
        if best is not None and (share := shares[best]):
            self.padded = (best, share)
            self.turns[best] += 1
            if share not in self.partitions:
                self.partitions[share] = self.gpu.partition(share)
            self.gpu.pad_beside(self.be[best], self.partitions[share])

    def _admitted(self, name: str) -> int:
        rts = tuple(sorted(set(self.running)))
        return self.table.best_share(rts, self.clients[name].chain.name) if self.table else 0


class GateMergeRow(GateRow):
    """The gate, and best-effort kernels merged into the real-time graph: whole ones, beside kernels that leave them SMs.

    Generous to merged graphs: what fits is chosen anew at each real-time kernel, where a graph is fixed when it is captured.
    """

    label = "gate+merge"
    about = "CTA gate, and whole best-effort kernels merged into real-time graphs (upper bound; not built, see docs)"

    def open(self) -> None:
        super().open()
        self.gpu.on_kernel = self._merge

    def _merge(self, stream: ModelStream, run: ChainRun) -> None:
        if stream is not self.rt:
            return
        guests = list(self.be.values())
        found = select_on_leftover(_grid(run.kernel), [_head(guest) for guest in guests], self.gpu.sms, whole=True)
        if found:
            occupancy = guests[found.queue].head.kernel.occupancy  # type: ignore[union-attr]
            waves = -(-found.ctas // (found.sms * occupancy))
            self.gpu.pad(stream, guests[found.queue], found.ctas, waves, found.sms, found.time_ns)


def _grid(kernel: CtaKernel) -> GridKernel:
    return GridKernel(kernel.blocks, kernel.occupancy, kernel.cta_ns[-1], kernel.alone_ns, kernel.bound)


def _head(stream: ModelStream) -> tuple[GridKernel, int] | None:
    """The kernel that a drained chain goes on with, and its CTAs that are missing."""
    run = stream.head
    if run is None or run.state is not ChainState.PARKED or not run.waiting:
        return None
    return _grid(run.kernel), run.waiting


class WaitingRow(RealTimeFirstRow):
    """Base of the rows that start real-time work once best-effort work has left the device."""

    def open(self) -> None:
        super().open()
        self.delayed: list[Callable[[], object]] = []
        self.entering = False

    def start(self, chain: KernelChain, on_done: OnDone) -> None:
        if self.entering:
            self.delayed.append(lambda: self.gpu.submit(self.rt, chain, on_done))
        else:
            self.gpu.submit(self.rt, chain, on_done)

    def entered(self) -> None:
        self.entering = False
        delayed, self.delayed = self.delayed, []
        for submit in delayed:
            submit()
