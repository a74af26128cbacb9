"""The device whose best-effort kernels are launched one by one (``--stop kernel``): to compare gates with what others do.

Not run on a GPU yet.
"""

from __future__ import annotations

from typing import Any

from ...transport.messages import MakeModel
from ...transport.tensors import Signature
from ...worker.execution import flat_outputs
from ..capture import capture, warm_up
from ..compile import compile_plain
from ..device import BEST_EFFORT, REAL_TIME, RealTimeGraph
from ..kernels import GraphKernels, driver_api
from ..throttle import RealTimeProgress, ThrottledChain
from .models import CudaDevice, GraphModel, SlottedModel, new_stream, run_ns, signature_of


class KernelModel(SlottedModel):
    """A model of a best-effort queue. ``shares``: what the queue is granted where kernels are chosen by
    their profile while real-time work runs."""

    def __init__(
        self,
        kernels: GraphKernels,
        inputs: tuple[Any, ...],
        outputs: Any,
        signature: Signature,
        stream: Any,
        progress: RealTimeProgress,
        shares: tuple[int, ...],
    ) -> None:
        super().__init__(signature, flat_outputs(outputs))
        self._kernels, self._inputs, self._stream = kernels, inputs, stream
        self._chain = ThrottledChain(kernels.facts, lambda at: kernels.start(at, stream), progress)
        self._shares, self.share = shares, 0

    @property
    def shares(self) -> tuple[int, ...]:
        """What it can be granted where kernels are chosen by their profile."""
        return self._shares

    def begin(self, slot: int, share: int) -> None:
        """Copy the inputs, and launch the first kernels."""
        import torch

        with torch.cuda.stream(self._stream):
            for place, value in zip(self._inputs, self.slots[slot][0], strict=True):
                place.copy_(value, non_blocking=True)
        self._chain.begin()
        self.go_on(share)

    def go_on(self, share: int) -> None:
        """Launch what may be launched."""
        self.share, self._chain.by_profile = share, bool(share)
        self._chain.pump(held=False)

    def drained(self, more: bool) -> bool:
        """Whether nothing of it is on the device; launches ``more`` if it may."""
        return self._chain.pump(held=not more)

    @property
    def complete(self) -> bool:
        """Whether the task has run to its end."""
        return self._chain.complete

    def deliver(self, slot: int) -> None:
        """Begin to copy the outputs."""
        self.deliver_on(self._stream, slot)

    def discard(self) -> None:
        """Forget the task."""
        self._chain.discard()

    def release(self) -> None:
        """Free what it computes in."""
        super().release()
        self._kernels.release()
        self._inputs = ()


class WatchedGraphModel(GraphModel):
    """A real-time model whose kernels and their times are known: what runs now follows from when it was launched."""

    def __init__(
        self, graph: RealTimeGraph, signature: Signature, kernels: GraphKernels, progress: RealTimeProgress
    ) -> None:
        super().__init__(graph, signature, closes_gates=True)
        self._facts, self._progress = kernels.facts, progress

    def begin(self, slot: int) -> None:
        """Copy the inputs, run, copy the outputs."""
        self._progress.begin(self._facts)
        super().begin(slot)

    def delivered(self) -> bool:
        """Whether the outputs are there."""
        done = super().delivered()
        if done:
            self._progress.end()
        return done


class ThrottledDevice(CudaDevice):
    """``shares``: what queues may be granted beside real-time work, if kernels are to be chosen by their profile. Raises
    UsageError where there is no device, or cuda-bindings is missing."""

    def __init__(self, shares: tuple[int, ...]) -> None:
        driver_api()
        super().__init__()
        self._granted = shares
        self._progress = RealTimeProgress(self.ready.multiprocessors)

    def _close_gates(self, row: int, closed: bool) -> None:
        """There are none: what is not launched is held back."""

    def real_time_model(self, model: Any, inputs: tuple[Any, ...], request: MakeModel) -> tuple[SlottedModel, int, int]:
        function = compile_plain(model, inputs)
        took = run_ns(function, inputs)
        stream = new_stream(REAL_TIME)
        graph = RealTimeGraph(function, inputs, None, stream, keep=True)
        kernels = GraphKernels(graph.graph)
        kernels.time(stream)
        found = WatchedGraphModel(graph, signature_of(request, graph.outputs), kernels, self._progress)
        kernels.release()
        return found, 0, took

    def best_effort_model(
        self, model: Any, inputs: tuple[Any, ...], request: MakeModel, row: int
    ) -> tuple[SlottedModel, int, int]:
        function = compile_plain(model, inputs)
        took = run_ns(function, inputs)
        stream = new_stream(BEST_EFFORT)
        warm_up(lambda: function(*inputs), stream)
        graph, outputs = capture(lambda: function(*inputs), stream, keep=True)
        kernels = GraphKernels(graph, keep=function)
        kernels.time(stream)
        found = KernelModel(
            kernels, inputs, outputs, signature_of(request, outputs), stream, self._progress, self._granted
        )
        return found, len(kernels.kernels), took
