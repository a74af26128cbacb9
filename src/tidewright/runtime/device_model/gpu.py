"""One accelerator in virtual time: chains of kernels in streams, the CTA gate, padding, holds and resets.

How CTAs share the SMs is in ``core``; which way of sharing is used, in ``rows``.
"""

from __future__ import annotations

from collections.abc import Callable

from .core import DeviceCore
from .costs import ModelCosts
from .kernels import KernelChain
from .streams import ChainRun, ChainState, Cohort, ModelStream, OnDone, PreemptionWatch, SmPartition

_IDLE = (ChainState.CLOSED, ChainState.PARKED)


class GpuModel(DeviceCore):
    """Deterministic: equal calls give equal times. Calls come from outside between runs, or from callbacks during one."""

    def __init__(self, sms: int = 132, costs: ModelCosts | None = None, *, segment_kernels: int = 64) -> None:
        super().__init__(sms, costs or ModelCosts())
        self.segment_kernels = segment_kernels
        self.flag = False
        self.restore_ns: list[int] = []
        """From every relaunch of a preempted chain until its next kernel could start."""
        self.admit: Callable[[ModelStream, ChainRun], bool] | None = None
        """Asked before each kernel of a stream; False holds it until ``reconsider``."""
        self.on_kernel: Callable[[ModelStream, ChainRun], None] | None = None
        """Called when the CTAs of a kernel may start, and before any does."""
        self.on_quiet: Callable[[ModelStream], None] | None = None
        """Called when a held stream has nothing left on the device."""
        self._raised = False
        self._raises = 0
        """Raises that were cleared again: a raise on its way is void when its number is not this."""

    def submit(self, stream: ModelStream, chain: KernelChain, on_done: OnDone) -> ChainRun:
        """Append one inference to a stream."""
        run = ChainRun(chain, on_done, ctas_done=[0] * len(chain.kernels), work=[0] * len(chain.kernels))
        stream.chains.append(run)
        if stream.head is run:
            self._begin(stream, run)
        return run

    def raise_flag(self) -> None:
        """Close the gates of all gated streams once the flag is visible. Raised already, it stays raised."""
        if self._raised:
            return
        self._raised = True
        self.at(self.now + self.costs.flag_ns, self._flag_visible, self._raises, self.now)

    def clear_flag(self) -> None:
        """Open the gates. A chain that is closed stays so until it is drained and relaunched (the gate is sticky)."""
        self._raises += 1
        self.flag = self._raised = False
        for stream in self.streams:
            if not stream.gated:
                continue
            if stream.partition:
                stream.stopped = False
                self._close(stream)
            elif stream.head and stream.head.state is ChainState.PARKED:
                self._relaunch(stream, stream.head)
            else:
                stream.stopped = False

    def pad_beside(self, stream: ModelStream, partition: SmPartition | None) -> None:
        """Where a gated stream goes on while the flag is up. It is closed and moved if the flag is up already."""
        if stream.padding is not partition:
            stream.padding = partition
            if self.flag:
                stream.stopped = partition is None
                self._close(stream)

    def hold(self, stream: ModelStream, depth: int) -> None:
        """Issue no more kernels of the stream; ``depth`` of them, the present one included, are on the device already."""
        head = stream.head
        stream.limit = head.at + depth if head and head.state is not ChainState.HELD else (head.at if head else 0)

    def release(self, stream: ModelStream) -> None:
        stream.limit = None
        if stream.head and stream.head.state is ChainState.HELD:
            self._launch(stream, stream.head)

    def is_quiet(self, stream: ModelStream) -> bool:
        """Whether a held stream has nothing on the device."""
        return stream.head is None or stream.head.state is ChainState.HELD

    def kill(self, stream: ModelStream) -> None:
        """REEF's reset: nothing more starts, and after ``reset_ns`` what is resident is gone, undone. See ``resume``."""
        stream.stopped = True
        if (head := stream.head) is None:
            return
        if head.state not in _IDLE:
            head.state, head.generation = ChainState.CLOSED, head.generation + 1
            self.at(self.now + self.costs.reset_ns, self._killed, stream, head)

    def resume(self, stream: ModelStream) -> None:
        """Launch a killed stream again, whole kernels from where it stands: blocks of a partial kernel that ran are run again."""
        stream.stopped = False
        if (head := stream.head) and head.state is ChainState.PARKED:
            self._restart_kernel(stream, head)
            head.floor = head.base = head.at
            self._relaunch(stream, head)

    def pad(self, host: ModelStream, guest: ModelStream, ctas: int, waves: int, sms: int, duration: int) -> bool:
        """Run ``ctas`` of the guest's parked kernel in the launch of the host's present one, on ``sms`` SMs of their own.

        ``waves`` one after the other take ``duration`` in all. False when they do not fit.
        """
        run, within = guest.head, host.head
        if run is None or within is None or run.state is not ChainState.PARKED:
            return False
        capacity = -(-ctas // waves) * run.kernel.size
        if self.used + capacity > self.capacity:
            return False
        within.padded += 1
        self._start(Cohort(guest, run, ctas, capacity, self.now, self.partition(sms), (host, within)), duration)
        return True

    def reconsider(self) -> None:
        """Ask ``admit`` again for every stream that it has held."""
        self.at(self.now, self._reconsider)

    def _reconsider(self) -> None:
        for stream in self.streams:
            if stream.limit is None and stream.head and stream.head.state is ChainState.HELD:
                self._ready(stream, stream.head, stream.head.generation)

    # -- kernels and chains ---------------------------------------------------------------------------------------

    def _begin(self, stream: ModelStream, run: ChainRun) -> None:
        if not stream.stopped:
            self._launch(stream, run)

    def _launch(self, stream: ModelStream, run: ChainRun) -> int:
        """One graph launch; nodes of the segment that are complete return at once. Returns when the next kernel may start."""
        run.state, run.generation = ChainState.STARTING, run.generation + 1
        due = self.now + self.costs.graph_launch_ns + (run.at - run.base) * self.costs.drain_node_ns
        self.at(due, self._ready, stream, run, run.generation)
        return due

    def _relaunch(self, stream: ModelStream, run: ChainRun) -> None:
        stream.stopped = False
        begun = run.at or run.started
        due = self._launch(stream, run)
        if begun:
            self.restore_ns.append(due - self.now)

    def _ready(self, stream: ModelStream, run: ChainRun, generation: int) -> None:
        if run.generation != generation:
            return
        if stream.limit is not None and run.at >= stream.limit:
            run.state = ChainState.HELD
            self._quiet(stream)
        elif self.admit and not self.admit(stream, run):
            run.state = ChainState.HELD
        else:
            run.state = ChainState.READY
            stream.ready_since = next(self._order)
            if self.on_kernel:
                self.on_kernel(stream, run)

    def _quiet(self, stream: ModelStream) -> None:
        if self.on_quiet and stream.limit is not None:
            self.on_quiet(stream)

    def _progressed(self, stream: ModelStream, run: ChainRun) -> None:
        # A chain may have ended with the launch that its last cohort shared.
        if stream.head is not run or run.padded:
            return
        if run.finished == run.kernel.blocks:
            self._kernel_done(stream, run)
        elif run.state is ChainState.CLOSED and stream.gated and not run.resident:
            self._drain(stream, run)

    def _kernel_done(self, stream: ModelStream, run: ChainRun) -> None:
        run.at, run.started, run.finished = run.at + 1, 0, 0
        if run.at == len(run.chain.kernels):
            self._chain_done(stream, run)
            return
        if run.at % self.segment_kernels == 0:
            run.base = run.at
        if run.state is ChainState.READY:
            run.state = ChainState.STARTING
            due = self.now + self.costs.node_start_ns + stream.kernel_gap_ns
            self.at(due, self._ready, stream, run, run.generation)
        elif run.state is ChainState.CLOSED and stream.gated:
            self._drain(stream, run)

    def _chain_done(self, stream: ModelStream, run: ChainRun) -> None:
        run.generation += 1
        stream.chains.popleft()
        if stream.limit is not None:
            stream.limit = 0
        if stream.gated and run.state is ChainState.CLOSED:
            self._after_close(stream)
        if stream.head:
            self._begin(stream, stream.head)
        run.on_done(self.now)
        self._quiet(stream)

    # -- gate and reset -------------------------------------------------------------------------------------------

    def _flag_visible(self, which: int, raised: int) -> None:
        if which != self._raises:
            return
        self.flag = True
        watch = PreemptionWatch(raised, 0)
        for stream in self.streams:
            if stream.gated:
                for cohort in stream.cohorts:
                    cohort.watchers.append(watch)
                watch.left += len(stream.cohorts)
                stream.stopped = True
                self._close(stream)

    def _close(self, stream: ModelStream) -> None:
        head = stream.head
        if head is None:
            self._after_close(stream)
        elif head.state is ChainState.PARKED:
            self._parked(stream, head)
        elif head.state is not ChainState.CLOSED:
            head.state, head.generation = ChainState.CLOSED, head.generation + 1
            if not head.resident:
                self._drain(stream, head)

    def _drain(self, stream: ModelStream, run: ChainRun) -> None:
        """The nodes that are left of the segment are issued all the same, and return at once."""
        end = min((run.at // self.segment_kernels + 1) * self.segment_kernels, len(run.chain.kernels))
        due = self.now + (end - run.at) * self.costs.drain_node_ns
        self.at(due, self._parked, stream, run)

    def _parked(self, stream: ModelStream, run: ChainRun) -> None:
        run.state = ChainState.PARKED
        self._after_close(stream)
        if not stream.stopped:
            self._relaunch(stream, run)

    def _after_close(self, stream: ModelStream) -> None:
        """Nothing of a gated stream is on the device: it may go on everywhere, in its share, or not at all."""
        stream.partition = stream.padding if self.flag else None
        stream.stopped = self.flag and stream.padding is None

    def _killed(self, stream: ModelStream, run: ChainRun) -> None:
        if stream.head is not run:
            return
        if stream.cohorts:
            self.preemption_ns.append(self.costs.reset_ns)
        for cohort in list(stream.cohorts):
            cohort.killed = True
            self._free(cohort)
        run.state = ChainState.PARKED
        # The host knows only what it launched: the kernel before the one on the device may have been done (REEF resumes there).
        back = max(run.at - (self.costs.device_queue - 1), run.floor)
        for at in range(back, run.at):
            stream.wasted += run.work[at]
            run.work[at] = 0
        self._restart_kernel(stream, run)
        run.at = back

    def _restart_kernel(self, stream: ModelStream, run: ChainRun) -> None:
        stream.wasted += run.work[run.at]
        run.work[run.at] = run.started = run.finished = 0
