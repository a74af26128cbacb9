"""What a model launches, captured in CUDA graphs: one where every kernel is gated, else one for each part of the chain.

A kernel without a gate would run after an aborted one as well. It is a part of its own (``wrapper.segments``), to be
submitted when everything before it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .compile import GatedModel
from .wrapper import BOUNDARY

WARM_UPS = 3
"""Calls before a capture, on its stream: libraries allocate and choose at the first ones (torch.cuda.graph)."""
MODE = "thread_local"
"""Captures must not fail for what another thread of the process does meanwhile (cudaStreamCaptureModeThreadLocal)."""


@dataclass(frozen=True, slots=True)
class ChainPart:
    """``first``: index of its first launch in the chain."""

    graph: Any
    gated: bool
    first: int


def warm_up(body: Callable[[], Any], stream: Any) -> None:
    """A few calls on ``stream``, waited for."""
    import torch

    stream.wait_stream(torch.cuda.current_stream())  # weights, inputs and control blocks were written there
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            body()
    stream.synchronize()


def capture(body: Callable[[], Any], stream: Any, keep: bool = False) -> tuple[Any, Any]:
    """(graph, what ``body`` returned), captured on ``stream``; ``keep``: its nodes can be looked at. ``compile_gated`` of another
    model resets the compiler: this one's function cannot be called again then, its graph is what stays."""
    import torch

    graph = torch.cuda.CUDAGraph(keep_graph=True) if keep else torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream, capture_error_mode=MODE):
        outputs = body()
    if keep:
        graph.instantiate()  # else the first replay would
    return graph, outputs


def capture_parts(
    gated: GatedModel, inputs: tuple[Any, ...], stream: Any, head: Callable[[], None], tail: Callable[[], None]
) -> tuple[list[ChainPart], Any]:
    """(parts in order, the model's outputs), with the control block that ``gated`` is bound to. ``head`` and ``tail`` are
    captured at the beginning and the end of each gated part."""
    import torch

    recorder = PartRecorder(_new_graph(torch), head, tail)
    with torch.no_grad(), torch.cuda.stream(stream), _boundaries(gated.modules, recorder.boundary):
        recorder.begin(1, True)
        try:
            outputs = gated.function(*inputs)
        except BaseException:
            recorder.end()  # a stream that is left in a capture is of no more use
            raise
        recorder.end()
    return recorder.parts, outputs


class PartRecorder:
    """Cuts a capture at boundaries. ``new_graph`` begins one and returns it; its ``capture_end`` is called."""

    def __init__(self, new_graph: Callable[[], Any], head: Callable[[], None], tail: Callable[[], None]) -> None:
        self._new_graph, self._head, self._tail = new_graph, head, tail
        self._graph: Any = None
        self._first, self._gated = 1, True
        self.parts: list[ChainPart] = []

    def begin(self, index: int, gated: bool) -> None:
        """A part begins with launch ``index``."""
        self._graph, self._first, self._gated = self._new_graph(), index, gated
        if gated:
            self._head()

    def boundary(self, index: int, gated: bool) -> None:
        """Launches from ``index`` on are gated, or not. A gated part without launches, between two that are not, is dropped."""
        self._close(empty=self._gated and index == self._first)
        self.begin(index, gated)

    def end(self) -> None:
        """No more launches. The last part is kept also where it is empty, behind a launch without a gate: it costs a
        microsecond, and its report says that the chain is complete."""
        self._close(empty=False)

    def _close(self, empty: bool) -> None:
        if self._gated and not empty:
            self._tail()
        self._graph.capture_end()
        if not empty:
            self.parts.append(ChainPart(self._graph, self._gated, self._first))


def _new_graph(torch: Any) -> Callable[[], Any]:
    pool = torch.cuda.graph_pool_handle()

    def begin() -> Any:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode=MODE)
        return graph

    return begin


@contextmanager
def _boundaries(modules: Iterable[Any], boundary: Callable[[int, bool], None]) -> Iterator[None]:
    """The wrappers call ``boundary`` around what is not gated."""
    found = [(module, getattr(module, BOUNDARY)) for module in modules]
    for module, _ in found:
        setattr(module, BOUNDARY, boundary)
    try:
        yield
    finally:
        for module, before in found:
            setattr(module, BOUNDARY, before)
