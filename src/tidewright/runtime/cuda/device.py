"""Chains on a CUDA device: best-effort models as gated graphs, real-time ones as graphs that raise the flag first and clear it
last. One process, one context; the caller polls.

Not run on a GPU yet: ``make bench-gpu`` and the ring ``gpu`` are what will show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...base.errors import Conflict, UsageError
from .compile import GatedModel
from .control import ABORTED, CLOSED, GATE, MARKS, RT_ACTIVE, START, words_needed
from .ladder import GateLevel

WARM_UPS = 3
"""Calls before a capture, on its stream: libraries allocate and choose at the first ones (torch.cuda.graph)."""
REAL_TIME, BEST_EFFORT = -5, 0
"""Priorities of streams; a device that has fewer takes its highest (CUDA driver API, cuStreamCreateWithPriority)."""


class ControlBlocks:
    """The control blocks of ``queues`` best-effort queues, one row each of an int32 tensor on the device, so that one strided
    write raises or clears the flag of all. Real-time work is one request at a time: the flag is 0 or 1."""

    def __init__(self, queues: int, largest_grid: int, device: str = "cuda") -> None:
        import torch

        # The gate reads words 0 and 1 as one aligned 64-bit word: rows begin on even words.
        words = words_needed(largest_grid)
        self.blocks = torch.zeros((queues, words + words % 2), dtype=torch.int32, device=device)
        self.blocks[:, ABORTED] = CLOSED

    def raise_flag(self) -> None:
        """Real-time work begins, in the order of the present stream."""
        self.blocks[:, RT_ACTIVE].fill_(1)

    def clear_flag(self) -> None:
        """It ends."""
        self.blocks[:, RT_ACTIVE].fill_(0)

    def row(self, queue: int) -> Any:
        """The block of one queue. Raises UsageError for one that is not there."""
        if not 0 <= queue < len(self.blocks):
            raise UsageError(f"queue {queue} of {len(self.blocks)}", "open the device for more queues")
        return self.blocks[queue]


@dataclass(slots=True)
class ChainCounts:
    """Of one chain: launches that were complete, and those that real-time work cut short."""

    complete: int = 0
    aborted: int = 0


class GatedChain:
    """A gated model captured in one graph on a stream: its head opens the gate where the launch before was cut short, its tail
    reports how far this one came.

    ``outputs`` are overwritten by each task. ``step`` does not wait, and is what learns that a launch has drained.
    """

    def __init__(self, gated: GatedModel, inputs: tuple[Any, ...], control: Any, stream: Any) -> None:
        import torch

        if len(control) < words_needed(gated.largest_grid):
            raise UsageError(
                f"a control block of {len(control)} words for grids of {gated.largest_grid}",
                "open the device for the largest grid of its models",
            )
        require_gated(gated)
        self.control, self.stream, self.inputs = control, stream, inputs
        self.counts = ChainCounts()
        self._report = _pinned(MARKS)
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._busy = False
        # Made before the capture: what is made in it goes to the graph's pool again at once, and the head of a relaunch would
        # write over results of kernels that were complete.
        self._closed, self._zero, self._start = (
            torch.full((), value, dtype=torch.int32, device=control.device) for value in (CLOSED, 0, 0)
        )
        self._fresh = torch.zeros((), dtype=torch.bool, device=control.device)
        gated.bind(control)

        def body() -> Any:
            self._open_gate()
            outputs = gated.function(*inputs)
            self._report.copy_(self.control[:MARKS], non_blocking=True)
            return outputs

        self.graph, self.outputs = capture(body, stream)

    def _open_gate(self) -> None:
        """Start where the launch before was aborted, or at the beginning. In this order: the gate opens last."""
        import torch

        aborted = self.control[ABORTED]
        torch.eq(aborted, self._closed, out=self._fresh)
        torch.where(self._fresh, self._zero, aborted, out=self._start)
        self.control[START].copy_(self._start)
        self.control[ABORTED].copy_(self._closed)
        self.control[GATE].copy_(self._start)

    def begin(self, *values: Any) -> None:
        """A new task with these inputs (tensors like the captured ones), after what the caller's stream has been given. Raises
        Conflict while one is under way, UsageError for other tensors."""
        import torch

        if not (self.step() and self.complete):
            raise Conflict("the chain has a task that is not complete", "run it to its end, or discard it")
        wanted, given = ([(one.shape, one.dtype) for one in each] for each in (self.inputs, values))
        if wanted != given:
            raise UsageError(f"inputs {given}", f"the model takes {wanted}")
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for place, value in zip(self.inputs, values, strict=True):
                place.copy_(value, non_blocking=True)
                value.record_stream(self.stream)  # it is not reused before it has been copied
        self.launch()

    def launch(self) -> None:
        """Run the task, or what is left of it, in the order of the stream."""
        import torch

        with torch.cuda.stream(self.stream):
            self.graph.replay()
            self._event.record(self.stream)
        self._busy = True

    def step(self) -> bool:
        """Whether the launch has drained; its outcome is counted once."""
        if self._busy and self._event.query():
            self._busy = False
            complete = int(self._report[ABORTED]) == CLOSED
            self.counts.complete += complete
            self.counts.aborted += not complete
        return not self._busy

    @property
    def complete(self) -> bool:
        """Whether the last launch, which has drained, ran to the end."""
        return not self._busy and int(self._report[ABORTED]) == CLOSED

    def finish(self) -> None:
        """Launch what is left of the task until it is complete, and wait for it."""
        while not (self.step() and self.complete):
            if self.step():
                self.launch()

    def discard(self) -> None:
        """Forget a task that was cut short. Raises Conflict before its launch has drained."""
        import torch

        if not self.step():
            raise Conflict("the chain is on the device", "wait until it has drained")
        with torch.cuda.stream(self.stream):
            self.control[MARKS:].zero_()
            self.control[ABORTED] = CLOSED
        self.stream.synchronize()
        self._report[ABORTED] = CLOSED


class RealTimeGraph:
    """A model in one graph on a stream of high priority, between raising and clearing the flag of all best-effort queues;
    ``controls`` None: it leaves the flag alone."""

    def __init__(
        self, function: Callable[..., Any], inputs: tuple[Any, ...], controls: ControlBlocks | None, stream: Any
    ) -> None:
        import torch

        self.inputs, self.stream = inputs, stream
        self.event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

        def body() -> Any:
            if controls is not None:
                controls.raise_flag()
            outputs = function(*inputs)
            if controls is not None:
                controls.clear_flag()
            return outputs

        self.graph, self.outputs = capture(body, stream)

    def launch(self) -> None:
        """Begin a task; ``event`` is recorded at its end."""
        import torch

        with torch.cuda.stream(self.stream):
            self.graph.replay()
            self.event.record(self.stream)


def _pinned(words: int) -> Any:
    """int32 words of the host that the device copies to while the host goes on."""
    import torch

    return torch.empty(words, dtype=torch.int32, pin_memory=True)


def require_gated(gated: GatedModel) -> None:
    """Raises UsageError that names the kernels of a model that would run after one that was aborted: without the gate they are
    to be submitted one by one, which no chain does."""
    below = [level.kernel for level in gated.levels() if level.level is not GateLevel.CTA_GATE]
    if below:
        raise UsageError(
            f"kernels without a gate: {', '.join(below)}", "see why: tide runtime inspect; or run it in real time"
        )


def capture(body: Callable[[], Any], stream: Any) -> tuple[Any, Any]:
    """(graph, what ``body`` returned), captured on ``stream`` after a few calls on it. ``compile_gated`` of another model
    resets the compiler: this one's function cannot be called again then, its graph is what stays."""
    import torch

    stream.wait_stream(torch.cuda.current_stream())  # weights, inputs and control blocks were written there
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            body()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
        outputs = body()
    return graph, outputs
