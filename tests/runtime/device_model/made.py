"""Made-up kernels and a device model that checks itself at every instant."""

from __future__ import annotations

from hypothesis import strategies as st

from tidewright.runtime.device_model.costs import ModelCosts
from tidewright.runtime.device_model.gpu import GpuModel
from tidewright.runtime.device_model.kernels import CtaKernel, KernelChain
from tidewright.runtime.device_model.streams import ChainRun, ChainState, ModelStream

COSTS = ModelCosts()


def chain(*kernels: tuple[int, int, int], name: str = "c") -> KernelChain:
    """Kernels of (blocks, occupancy, nanoseconds of a CTA however full its SM)."""
    return KernelChain(name, tuple(CtaKernel(f"{name}{at}", n, (ns,) * k) for at, (n, k, ns) in enumerate(kernels)))


def kernels() -> st.SearchStrategy[CtaKernel]:
    times = st.lists(st.integers(1_000, 60_000), min_size=1, max_size=8).map(lambda found: tuple(sorted(found)))
    return st.builds(CtaKernel, st.just("k"), st.integers(1, 60), times)


def chains(most: int = 6) -> st.SearchStrategy[KernelChain]:
    found = st.lists(kernels(), min_size=1, max_size=most)
    return found.map(lambda made: KernelChain("c", tuple(made)))


class CheckedGpu(GpuModel):
    """Raises AssertionError in the instant in which capacity is exceeded or left idle, and records gated CTAs under the flag."""

    def _dispatch(self) -> None:
        super()._dispatch()
        assert 0 <= self.used <= self.capacity
        assert self.used == sum(cohort.capacity for stream in self.streams for cohort in stream.cohorts)
        assert all(0 <= one.used <= one.capacity for one in self.partitions)
        waiting = None
        for stream in sorted(self.streams, key=lambda s: -s.priority):
            run = stream.head
            if run is None or run.state is not ChainState.READY or not run.waiting:
                continue
            if waiting is not None and stream.priority < waiting:
                continue
            # Work conservation: a CTA that may start does not fit.
            size, inside = run.kernel.size, stream.partition
            full = self.used + size > self.capacity
            assert full or (inside is not None and inside.used + size > inside.capacity)
            if full:
                waiting = stream.priority

    def _start(self, cohort, time) -> None:  # type: ignore[no-untyped-def]
        stream = cohort.stream
        assert not (self.flag and stream.gated and not stream.partition and cohort.host is None)
        super()._start(cohort, time)


def alone_ns(work: KernelChain, sms: int) -> int:
    """Nanoseconds of a chain on an idle device."""
    gpu, ends = GpuModel(sms), []
    gpu.submit(gpu.stream("x"), work, ends.append)
    gpu.run_until(10**10)
    return ends[0]


def grids(work: KernelChain) -> list[int]:
    return [kernel.blocks for kernel in work.kernels]


def run_all(gpu: GpuModel, stream: ModelStream, works: list[KernelChain]) -> tuple[list[ChainRun], list[int]]:
    """Submit everything to one stream; the runs, and where their ends will be."""
    ends: list[int] = []
    return [gpu.submit(stream, work, ends.append) for work in works], ends
