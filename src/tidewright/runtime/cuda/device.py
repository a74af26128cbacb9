"""Chains on a CUDA device: best-effort models as gated graphs, real-time ones as graphs that raise the flag first and clear it
last. One process, one context; the caller polls.

``make bench-gpu`` and the ring ``gpu`` show what it does on a GPU (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...base.errors import Conflict, UsageError
from .capture import ChainPart, capture, capture_parts, warm_up
from .compile import GatedModel
from .control import ABORTED, CLOSED, GATE, MARKS, RT_ACTIVE, START, words_needed

REAL_TIME, BEST_EFFORT = -5, 0
"""Priorities of streams; PyTorch takes the highest that it has itself for any that is higher (torch.cuda.Stream)."""
_HALVES = 2
HINT_BYTES = 64 * 1024
"""Of inputs, from which the gates are closed before they are copied: some 4 µs at 16 GB/s, what a launch more costs."""


class ControlBlocks:
    """The control blocks of ``queues`` best-effort queues, one row each of an int32 tensor on the device, so that one strided
    write raises or clears the flag of all.

    The flag word has two writers that know nothing of each other: real-time work, one request at a time, writes its lower half
    in all rows; stops of a single queue write the upper half of its row. The gate is closed while either is not 0.
    """

    def __init__(self, queues: int, largest_grid: int, device: str = "cuda") -> None:
        import torch

        # The gate reads words 0 and 1 as one aligned 64-bit word: rows begin on even words.
        words = words_needed(largest_grid)
        self.blocks = torch.zeros((queues, words + words % 2), dtype=torch.int32, device=device)
        self.blocks[:, ABORTED] = CLOSED
        halves = self.blocks.view(torch.int16)  # of a little-endian word: the lower one first
        self._real_time, self._stopped = halves[:, _HALVES * RT_ACTIVE], halves[:, _HALVES * RT_ACTIVE + 1]

    def raise_flag(self) -> None:
        """Real-time work begins, in the order of the present stream."""
        self._real_time.fill_(1)

    def clear_flag(self) -> None:
        """It ends."""
        self._real_time.fill_(0)

    def stop(self, queue: int, stopped: bool) -> None:
        """Close the gate of one queue, or no longer, in the order of the present stream."""
        self._stopped[queue].fill_(int(stopped))

    def reset(self, queue: int) -> None:
        """The block of a queue as it was at first. Nothing of the queue is on the device."""
        row = self.row(queue)
        row.zero_()
        row[ABORTED] = CLOSED

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


@dataclass(slots=True)
class ChainLane:
    """One capture of a chain: its stream, and the control block that its gates look at."""

    control: Any
    stream: Any
    parts: list[ChainPart]


class GatedChain:
    """A gated model captured on a stream, in one graph or in parts: the head of each gated part opens the gate where the launch
    before was cut short, its tail reports how far this one came. A part without a gate is launched when all before it is
    complete, and runs to its end.

    ``outputs`` are overwritten by each task. ``step`` does not wait, and is what learns that a launch has drained. ``launch``
    goes on with the next part: who launches decides whether this is the time for one that cannot be stopped.
    """

    def __init__(self, gated: GatedModel, inputs: tuple[Any, ...], control: Any, stream: Any) -> None:
        import torch

        if len(control) < words_needed(gated.largest_grid):
            raise UsageError(
                f"a control block of {len(control)} words for grids of {gated.largest_grid}",
                "open the device for the largest grid of its models",
            )
        self._gated, self.inputs = gated, inputs
        self.counts = ChainCounts()
        self._report = _pinned(MARKS)
        self._report[ABORTED] = CLOSED
        self._event: Any = torch.cuda.Event()
        self._busy = self._discarding = False
        # Made before the capture: what is made in it goes to the graph's pool again at once, and the head of a relaunch would
        # write over results of kernels that were complete.
        self._closed, self._zero, self._start = (
            torch.full((), value, dtype=torch.int32, device=control.device) for value in (CLOSED, 0, 0)
        )
        self._fresh = torch.zeros((), dtype=torch.bool, device=control.device)
        self.outputs: Any = None
        self.lanes: list[ChainLane] = []
        self._lane = self.add_lane(control, stream)
        self._next = len(self._lane.parts)
        """The part that is launched next, or is on the device."""

    @property
    def control(self) -> Any:
        """The control block of the lane in use."""
        return self._lane.control

    @property
    def stream(self) -> Any:
        """Its stream."""
        return self._lane.stream

    def add_lane(self, control: Any, stream: Any) -> ChainLane:
        """Capture the chain once more, for another stream (one of a share of the SMs, say) and another control block. The model
        computes in the same memory in all lanes, so that a task that was cut short in one can go on in another."""
        if self.lanes and not all(part.gated for part in self.lanes[0].parts):
            # What a library allocates is new in each capture.
            raise UsageError("a chain with kernels that have no gate has one lane", "run it in that one")
        if self.lanes and len(control) != len(self.lanes[0].control):
            raise UsageError("control blocks of two sizes", "open both for the same largest grid")
        lane = ChainLane(control, stream, [])
        # Calls that are not captured find the gate open and leave no marks in a block that may be in use.
        self._gated.bind_open()
        warm_up(lambda: self._gated.function(*self.inputs), stream)
        self._gated.bind(control)

        def tail() -> None:
            self._report.copy_(control[:MARKS], non_blocking=True)

        head = partial(self._open_gate, control)
        lane.parts, self.outputs = capture_parts(self._gated, self.inputs, stream, head, tail)
        self.lanes.append(lane)
        return lane

    def _open_gate(self, control: Any) -> None:
        """Start where the launch before was aborted, or at the beginning. In this order: the gate opens last."""
        import torch

        aborted = control[ABORTED]
        torch.eq(aborted, self._closed, out=self._fresh)
        torch.where(self._fresh, self._zero, aborted, out=self._start)
        control[START].copy_(self._start)
        control[ABORTED].copy_(self._closed)
        control[GATE].copy_(self._start)

    def begin(self, *values: Any, lane: ChainLane | None = None) -> None:
        """A new task with these inputs (tensors like the captured ones), after what the caller's stream has been given; ``lane``:
        as for ``launch``. Raises Conflict while one is under way, UsageError for other tensors."""
        import torch

        if not (self.step() and self.complete):
            raise Conflict("the chain has a task that is not complete", "run it to its end, or discard it")
        wanted, given = ([(one.shape, one.dtype) for one in each] for each in (self.inputs, values))
        if wanted != given:
            raise UsageError(f"inputs {given}", f"the model takes {wanted}")
        self._use(lane)
        if any(value.is_cuda for value in values):
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for place, value in zip(self.inputs, values, strict=True):
                place.copy_(value, non_blocking=True)
                if value.is_cuda:
                    value.record_stream(self.stream)  # it is not reused before it has been copied
        self.launch()

    def launch(self, lane: ChainLane | None = None) -> None:
        """Run the next part of the task, or what is left of it, in the order of a lane's stream: the one in use, if none is
        given. A task that is complete is run again from its beginning. Raises Conflict where a launch has not drained."""
        import torch

        if not self.step():
            raise Conflict("the chain is on the device", "wait until it has drained")
        if self.complete:
            self._next = 0
        self._use(lane)
        with torch.cuda.stream(self.stream):
            self._lane.parts[self._next].graph.replay()
            self._event.record(self.stream)
        self._busy = True

    def _use(self, lane: ChainLane | None) -> None:
        """Go on in another lane: it takes over where the task stands. The chain has drained."""
        import torch

        if lane is None or lane is self._lane:
            return
        before, self._lane = self._lane, lane
        if lane.control.data_ptr() == before.control.data_ptr():
            return  # lanes of one control block: it says where the task stands
        with torch.cuda.stream(lane.stream):
            lane.control[ABORTED].copy_(before.control[ABORTED])
            lane.control[MARKS:].copy_(before.control[MARKS:])
            before.control[MARKS:].zero_()
            before.control[ABORTED].copy_(self._closed)

    def step(self) -> bool:
        """Whether the launch has drained; its outcome is counted once."""
        if self._busy and self._event.query():
            self._busy = False
            if self._discarding:
                self._discarding = False
                self._next = len(self._lane.parts)
                return True
            done = not self._lane.parts[self._next].gated or int(self._report[ABORTED]) == CLOSED
            self._next += done
            self.counts.complete += done
            self.counts.aborted += not done
        return not self._busy

    @property
    def complete(self) -> bool:
        """Whether nothing of the task is left to run."""
        return not self._busy and self._next == len(self._lane.parts)

    def finish(self) -> None:
        """Launch what is left of the task until it is complete, and wait for it."""
        while not (self.step() and self.complete):
            if self.step():
                self.launch()

    def discard(self) -> None:
        """Forget a task that was cut short; it is forgotten when this has drained. Raises Conflict before its launch has."""
        import torch

        if not self.step():
            raise Conflict("the chain is on the device", "wait until it has drained")
        with torch.cuda.stream(self.stream):
            self.control[MARKS:].zero_()
            self.control[ABORTED].copy_(self._closed)
            self._event.record(self.stream)
        self._report[ABORTED] = CLOSED
        self._busy = self._discarding = True

    def release(self) -> None:
        """It is not used any more: free its memory. The compiler keeps the model's code for good."""
        self.lanes.clear()
        self.outputs = None
        self._gated.release()


class RealTimeGraph:
    """A model in one graph on a stream of high priority, between raising and clearing the flag of all best-effort queues;
    ``controls`` None: it leaves the flag alone. ``keep``: the graph's nodes can be looked at.

    Inputs of ``hint_bytes`` or more are copied with the flag raised already, so that best-effort work drains meanwhile
    (GPreempt's early hint, USENIX ATC'25). The hint goes the way of the graph, on its stream: one on another stream could come
    late, after the flag was cleared, and would close the gates for good."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: tuple[Any, ...],
        controls: ControlBlocks | None,
        stream: Any,
        hint_bytes: int = HINT_BYTES,
        keep: bool = False,
    ) -> None:
        import torch

        self.inputs, self.stream = inputs, stream
        large = sum(one.nbytes for one in inputs) >= hint_bytes
        self._hinted = controls if large else None
        self.function: Any = function
        """Holds the weights, which the graph reads."""
        self.event: Any = torch.cuda.Event()

        def body() -> Any:
            if controls is not None:
                controls.raise_flag()
            outputs = function(*inputs)
            if controls is not None:
                controls.clear_flag()
            return outputs

        # Without the flag: other real-time work may be under way, and has its own use of it.
        warm_up(lambda: function(*inputs), stream)
        self.graph, self.outputs = capture(body, stream, keep)

    def launch(self, values: Sequence[Any] = (), into: Sequence[tuple[Any, Any]] = ()) -> None:
        """Begin a task, with other ``values`` for its inputs; ``into``: (target, output) to copy when it is done. ``event`` is
        recorded at its end."""
        import torch

        with torch.cuda.stream(self.stream):
            if values and self._hinted is not None:
                self._hinted.raise_flag()
            for place, value in zip(self.inputs, values, strict=False):
                place.copy_(value, non_blocking=True)
            self.graph.replay()
            for target, output in into:
                target.copy_(output, non_blocking=True)
            self.event.record(self.stream)

    def release(self) -> None:
        """It is not used any more: free its memory."""
        self.graph = self.function = self.outputs = None
        self.inputs = ()


def _pinned(words: int) -> Any:
    """int32 words of the host that the device copies to while the host goes on."""
    import torch

    return torch.empty(words, dtype=torch.int32, pin_memory=True)
