"""Rows after published systems: REEF with and without kill, launch throttling, Orion's admission."""

from __future__ import annotations

from ..padding.nvidia_rule import opposite
from ..padding.reef_rule import WaitingKernel, select_padding
from .gpu import GpuModel
from .rows import (
    GateMergeRow,
    GatePaddingRow,
    GateRow,
    GreenRow,
    PriorityRow,
    RealTimeFirstRow,
    RealTimeOnlyRow,
    SequentialRow,
    SharingRow,
    StreamRow,
    WaitingRow,
)
from .streams import ChainRun, ModelStream


class ResetRow(WaitingRow):
    """REEF without padding (its mode Reset): resident best-effort work is killed, and its kernels run again."""

    label = "REEF-reset"
    about = "REEF's reset without padding, policy re-implementation; NVIDIA offers no such reset"

    def enter(self) -> None:
        self.entering = True
        for stream in self.be.values():
            self.gpu.kill(stream)
        self.gpu.at(self.gpu.now + self.gpu.costs.reset_ns, self.entered)

    def leave(self) -> None:
        for stream in self.be.values():
            self.gpu.resume(stream)


class ReefRow(ResetRow):
    """REEF: reset and dynamic kernel padding."""

    label = "REEF"
    about = "REEF's reset and dynamic kernel padding, policy re-implementation"

    def open(self) -> None:
        super().open()
        self.gpu.on_kernel = self._pad

    def _pad(self, stream: ModelStream, run: ChainRun) -> None:
        if stream is not self.rt or run.kernel.profile is None:
            return
        guests = list(self.be.values())
        found = select_padding(run.kernel.profile, [_waiting(guest) for guest in guests], self.gpu.sms)
        if found and found.be_blocks:
            guest = guests[found.queue]
            assert guest.head is not None
            # In the profiles both times hold a launch, of which the merged kernel has one: the rule's bound is kept.
            time = found.be_iterations * guest.head.kernel.cta_ns[found.be_occupancy - 1]
            time = min(time, run.kernel.alone_ns)
            self.gpu.pad(stream, guest, found.be_blocks, found.be_iterations, self.gpu.sms - found.rt_units, time)


def _waiting(stream: ModelStream) -> WaitingKernel | None:
    run = stream.head
    if run is None or run.kernel.profile is None or not run.waiting:
        return None
    return WaitingKernel(run.kernel.profile, run.started)


class ThrottleRow(WaitingRow):
    """At most ``depth`` best-effort kernels of a client are on the device; real-time work waits for those."""

    label = "REEF-N"
    about = "launch throttling, 2 kernels in flight (REEF-N), policy re-implementation"
    depth = 2

    def __init__(self, gpu: GpuModel, *args: object) -> None:
        # The shallower the queue, the more often the host is late with the next kernel.
        self.gap_ns = gpu.costs.throttle_ns * 2 // self.depth
        super().__init__(gpu, *args)  # type: ignore[arg-type]
        self.gpu.on_quiet = self._quiet
        self.began = 0

    def enter(self) -> None:
        self.entering, self.began = True, self.gpu.now
        for stream in self.be.values():
            self.gpu.hold(stream, self.depth)
        self._quiet(self.rt)

    def _quiet(self, _: ModelStream) -> None:
        if self.entering and all(self.gpu.is_quiet(stream) for stream in self.be.values()):
            if self.gpu.now > self.began:
                self.gpu.preemption_ns.append(self.gpu.now - self.began)
            self.entered()

    def leave(self) -> None:
        for stream in self.be.values():
            self.gpu.release(stream)


class ProgressiveRow(ThrottleRow):
    """XSched's level 1 with its default threshold."""

    label = "XSched-Lv1"
    about = "launch throttling, 16 kernels in flight (XSched level 1), policy re-implementation"
    depth = 16


class OrionRow(RealTimeFirstRow):
    """Orion's admission: beside a real-time kernel only small best-effort kernels that are bound by another resource."""

    label = "Orion"
    about = "Orion's admission by profile and size, policy re-implementation without its limit on outstanding time"

    def open(self) -> None:
        super().open()
        self.gpu.admit = self._admit
        self.gpu.on_kernel = self._on_kernel
        self.kernel: ChainRun | None = None

    def enter(self) -> None:
        self.kernel = None

    def leave(self) -> None:
        self.kernel = None
        self.gpu.reconsider()

    def _on_kernel(self, stream: ModelStream, run: ChainRun) -> None:
        if stream is self.rt:
            self.kernel = run
            self.gpu.reconsider()

    def _admit(self, stream: ModelStream, run: ChainRun) -> bool:
        if stream is self.rt or not self.outstanding:
            return True
        if self.kernel is None or self.rt.head is not self.kernel:
            return False
        beside = self.kernel.kernel
        need = -(-run.kernel.blocks // run.kernel.occupancy)
        left = self.gpu.sms - -(-beside.blocks // beside.occupancy)
        return opposite(beside.bound, run.kernel.bound) and need <= left


ROWS: tuple[type[SharingRow], ...] = (
    RealTimeOnlyRow,
    SequentialRow,
    StreamRow,
    PriorityRow,
    GreenRow,
    ThrottleRow,
    ProgressiveRow,
    OrionRow,
    ResetRow,
    ReefRow,
    GateRow,
    GateMergeRow,
    GatePaddingRow,
)
"""Every row, in the order of tables."""
