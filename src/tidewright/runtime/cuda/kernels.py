"""The kernels of a captured graph, one by one: launched singly, and what is known of each. For the ways to share a GPU that
launch kernel by kernel, to compare with (REEF-N, OSDI'22; Orion, EuroSys'24).

Source: CUDA Driver API, "Graph Management". Needs the package cuda-bindings. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from typing import Any

from ...base.errors import UsageError, WorldError
from ..padding.nvidia_rule import GridKernel, Roofline

GENERATED = ("triton_poi", "triton_red", "triton_per")
"""Inductor's kernels that are no templates. What is fused in them is part of their names, convolutions before them, too."""
COMPUTING = ("_tem_", "_mm", "conv", "gemm", "cutlass", "cudnn", "attention", "flash")
MOVING = ("elementwise", "reduce", "copy", "softmax", "norm")
"""Parts of names: of Inductor's templates and of libraries' products, and of PyTorch's own kernels."""
TIMED_AT_ONCE = 64
_HELD_CYCLES = 4_000_000
"""For which the device is held while so many launches are queued, so that their times are not the host's: 2 ms at 2 GHz."""


def bound_of(name: str) -> Roofline:
    """What bounds a kernel, by its name: no counters are read. A guess, as Orion's classes are where they were not profiled."""
    if name.startswith(GENERATED):
        return Roofline.MEMORY
    if any(part in name for part in COMPUTING):
        return Roofline.COMPUTE
    return Roofline.MEMORY if any(part in name for part in MOVING) else Roofline.UNKNOWN


def scaled(times: Sequence[int], whole: int) -> list[int]:
    """Nanoseconds of kernels that were timed one by one, launches and all, so that they add up to those of the whole graph."""
    factor = min(1.0, whole / max(1, sum(times)))
    return [max(1, round(one * factor)) for one in times]


@dataclass(frozen=True, slots=True)
class GraphKernel:
    """One node. ``launch`` puts it on a stream. Of a copy or a fill ``facts`` has no CTAs to speak of: one, bound by memory."""

    name: str
    facts: GridKernel
    launch: Callable[[Any], None]


def driver_api() -> Any:
    """``cuda.bindings.driver``. Raises UsageError where it is missing."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UsageError(
            f"launching kernel by kernel needs the package {error.name}", "pip install cuda-bindings"
        ) from None


class GraphKernels:
    """Of ``graph`` (a torch.cuda.CUDAGraph with keep_graph, one straight line of nodes), in order. It keeps the graph, and with
    it the memory in which the kernels compute, and ``keep``, what holds their weights. Raises UsageError for other graphs,
    WorldError for what the driver refuses."""

    def __init__(self, graph: Any, api: Any = None, keep: Any = None) -> None:
        self._graph, self._keep = graph, keep
        self._api = api or driver_api()
        self._made: list[tuple[Any, Any]] = []
        self._context = self._call("cuCtxGetCurrent")[0]
        try:
            self.kernels = [self._single(node) for node in self._line(graph.raw_cuda_graph())]
        except BaseException:
            self.release()
            raise

    @property
    def facts(self) -> list[GridKernel]:
        """Of each kernel, in order."""
        return [one.facts for one in self.kernels]

    def start(self, at: int, stream: Any) -> Callable[[], bool]:
        """Launch kernel ``at`` on a stream. Returns what is asked whether it has ended."""
        import torch

        event: Any = torch.cuda.Event()
        self.kernels[at].launch(stream)
        event.record(stream)
        return event.query  # type: ignore[no-any-return]

    def release(self) -> None:
        """Free what was made. Nothing of it is on the device."""
        for graph, executable in self._made:
            if executable is not None:
                self._api.cuGraphExecDestroy(executable)
            self._api.cuGraphDestroy(graph)
        self._made.clear()
        self.kernels = []
        self._graph = self._keep = None

    def time(self, stream: Any, rounds: int = 5) -> None:
        """Run all of them a few times and keep the shortest time of each, alone on the device: its part of the time of the whole
        graph, in which no launch comes between two kernels."""
        best = [2**62] * len(self.kernels)
        for _ in range(rounds):
            for at, nanoseconds in enumerate(self._timed(stream)):
                best[at] = min(best[at], nanoseconds)
        whole = min(self._whole(stream) for _ in range(rounds))
        best = scaled(best, whole)
        self.kernels = [
            replace(one, facts=replace(one.facts, total_ns=took, cta_ns=took))
            for one, took in zip(self.kernels, best, strict=True)
        ]

    def _whole(self, stream: Any) -> int:
        import torch

        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(_HELD_CYCLES)
            first.record(stream)
            self._graph.replay()
            last.record(stream)
        stream.synchronize()
        return max(1, round(1e6 * float(first.elapsed_time(last))))

    def _timed(self, stream: Any) -> Iterator[int]:
        import torch

        for first in range(0, len(self.kernels), TIMED_AT_ONCE):
            some = self.kernels[first : first + TIMED_AT_ONCE]
            events = [torch.cuda.Event(enable_timing=True) for _ in range(len(some) + 1)]
            with torch.cuda.stream(stream):
                torch.cuda._sleep(_HELD_CYCLES)
                events[0].record(stream)
                for one, event in zip(some, events[1:], strict=True):
                    one.launch(stream)
                    event.record(stream)
            stream.synchronize()
            for before, after in pairwise(events):
                yield max(1, round(1e6 * before.elapsed_time(after)))

    # -- the driver -------------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        status, *results = getattr(self._api, name)(*arguments)
        if int(status):
            raise WorldError(f"{name}: {getattr(status, 'name', status)}")
        return tuple(results)

    def _some(self, name: str, of: Any) -> list[Any]:
        """A list of nodes: asked for its length first. Between the nodes and their number newer drivers give edges' data."""
        count = int(self._call(name, of, 0)[-1])
        return list(self._call(name, of, count)[0])[:count] if count else []

    def _line(self, graph: Any) -> Iterator[Any]:
        following = self._some("cuGraphGetRootNodes", graph)
        while following:
            if len(following) > 1:
                raise UsageError("the graph of the model has branches", "use another way to stop best-effort work")
            yield following[0]
            following = self._some("cuGraphNodeGetDependentNodes", following[0])

    def _single(self, node: Any) -> GraphKernel:
        """A node as a graph of its own."""
        (kind,) = self._call("cuGraphNodeGetType", node)
        copies = {
            "CU_GRAPH_NODE_TYPE_KERNEL": self._kernel,
            "CU_GRAPH_NODE_TYPE_MEMCPY": self._memcpy,
            "CU_GRAPH_NODE_TYPE_MEMSET": self._memset,
        }
        if kind.name not in copies:
            raise UsageError(f"the graph of the model has a node of type {kind.name}", "use another way to stop it")
        (graph,) = self._call("cuGraphCreate", 0)
        self._made.append((graph, None))
        name, facts = copies[kind.name](graph, node)
        (executable,) = self._call("cuGraphInstantiate", graph, 0)
        self._made[-1] = (graph, executable)

        def launch(stream: Any) -> None:
            self._call("cuGraphLaunch", executable, stream.cuda_stream)

        return GraphKernel(name, facts, launch)

    def _kernel(self, graph: Any, node: Any) -> tuple[str, GridKernel]:
        (given,) = self._call("cuGraphKernelNodeGetParams", node)
        (copy,) = self._call("cuGraphAddKernelNode", graph, None, 0, given)
        self._call("cuGraphKernelNodeCopyAttributes", copy, node)
        function = given.func
        if not int(function):  # it was launched by the handle of its library
            (function,) = self._call("cuKernelGetFunction", given.kern)
        (name,) = self._call("cuFuncGetName", function)
        threads = given.blockDimX * given.blockDimY * given.blockDimZ
        (resident,) = self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, given.sharedMemBytes)
        text = name.decode() if isinstance(name, bytes) else str(name)
        ctas = given.gridDimX * given.gridDimY * given.gridDimZ
        return text, GridKernel(ctas, max(1, resident), 0, 0, bound_of(text))

    def _memcpy(self, graph: Any, node: Any) -> tuple[str, GridKernel]:
        (given,) = self._call("cuGraphMemcpyNodeGetParams", node)
        self._call("cuGraphAddMemcpyNode", graph, None, 0, given, self._context)
        return "memcpy", GridKernel(1, 1, 0, 0, Roofline.MEMORY)

    def _memset(self, graph: Any, node: Any) -> tuple[str, GridKernel]:
        (given,) = self._call("cuGraphMemsetNodeGetParams", node)
        self._call("cuGraphAddMemsetNode", graph, None, 0, given, self._context)
        return "memset", GridKernel(1, 1, 0, 0, Roofline.MEMORY)
