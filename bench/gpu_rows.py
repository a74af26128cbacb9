"""What the rows of ``gpu_disb`` run: networks captured in each way, the slow-downs of padding, and each row by turns.

A network is captured in all its ways before the next one is compiled: the compiler forgets it then.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gpu_disb
from gpu_timing import request_us
from tidewright.base.errors import TideError
from tidewright.runtime.cuda import device as dev
from tidewright.runtime.cuda.capture import capture, warm_up
from tidewright.runtime.cuda.compile import GatedModel, compile_gated, compile_plain
from tidewright.runtime.cuda.kernels import GraphKernels
from tidewright.runtime.cuda.shares import ShareStreams
from tidewright.runtime.cuda.throttle import RealTimeProgress, ThrottledChain
from tidewright.runtime.padding.nvidia_rule import GPU_SHARES

SAMPLES, BOUND, LARGEST_GRID = 60, 0.02, 65_536
Network = Callable[[str], tuple[Any, tuple[Any, ...]]]


@dataclass
class Captured:
    """All networks of a workload. ``graphs``: real-time, by whether they close gates. ``lanes``: of a best-effort chain, by its
    multiprocessors. ``be_kernels`` are empty where kernels cannot be launched one by one; ``notes`` say why."""

    controls: dev.ControlBlocks
    beside: dev.ControlBlocks
    graphs: dict[bool, dict[str, Any]] = field(default_factory=lambda: {True: {}, False: {}})
    chains: list[Any] = field(default_factory=list)
    lanes: list[dict[int, Any]] = field(default_factory=list)
    rt_kernels: dict[str, list[Any]] = field(default_factory=dict)
    be_kernels: list[tuple[GraphKernels, Any]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    shares: dict[int, ShareStreams] = field(default_factory=dict)
    """Kept because lanes run on their streams."""


def capture_all(
    network: Network, real_time: Sequence[str], best_effort: Sequence[str], shares: Sequence[int] = GPU_SHARES
) -> Captured:
    """The networks of these names, best-effort ones on each of ``shares`` as well."""
    queues = len(best_effort)
    found = Captured(dev.ControlBlocks(queues, LARGEST_GRID), dev.ControlBlocks(queues, LARGEST_GRID))
    found.shares = streams = _shares(found, shares)
    for queue, name in enumerate(best_effort):
        print(f"{name}: compiling with gates ...", flush=True)
        model, inputs = network(name)

        def plain(function: Any, name: str = name, inputs: tuple[Any, ...] = inputs) -> None:
            if name in real_time:
                _real_time(found, name, function, inputs)
            _one_by_one(found, function, inputs)

        _best_effort(found, queue, compile_gated(model, inputs, plain), inputs, streams)
    for name in real_time:
        if name not in best_effort:
            print(f"{name}: compiling ...", flush=True)
            model, inputs = network(name)
            _real_time(found, name, compile_plain(model, inputs), inputs)
    return found


def _shares(found: Captured, wanted: Sequence[int]) -> dict[int, ShareStreams]:
    streams = {}
    for sms in wanted:
        try:
            streams[sms] = ShareStreams(sms)
        except TideError as error:
            found.notes[f"padding on {sms}"] = str(error)
    return streams


def _best_effort(
    found: Captured, queue: int, gated: GatedModel, inputs: tuple[Any, ...], shares: dict[int, ShareStreams]
) -> None:
    stream = _stream(dev.BEST_EFFORT)
    chain = dev.GatedChain(gated, inputs, found.controls.row(queue), stream)
    found.chains.append(chain)
    found.lanes.append({})
    if all(part.gated for part in chain.lanes[0].parts):
        row = found.beside.row(queue)
        found.lanes[queue] = {sms: chain.add_lane(row, streams.take()) for sms, streams in shares.items()}


def _real_time(found: Captured, name: str, function: Any, inputs: tuple[Any, ...]) -> None:
    for raises, graphs in found.graphs.items():
        controls = found.controls if raises else None
        graphs[name] = dev.RealTimeGraph(function, inputs, controls, _stream(dev.REAL_TIME), keep=not raises)
    plain = found.graphs[False][name]
    kernels = _taken_apart(found, plain.graph, function, plain.stream)
    found.rt_kernels[name] = kernels.facts if kernels else []


def _one_by_one(found: Captured, function: Any, inputs: tuple[Any, ...]) -> None:
    stream = _stream(dev.BEST_EFFORT)
    warm_up(lambda: function(*inputs), stream)
    graph, _ = capture(lambda: function(*inputs), stream, keep=True)
    kernels = _taken_apart(found, graph, function, stream)
    if kernels:
        found.be_kernels.append((kernels, stream))


def _taken_apart(found: Captured, graph: Any, function: Any, stream: Any) -> GraphKernels | None:
    try:
        kernels = GraphKernels(graph, keep=function)
        kernels.time(stream)
        return kernels
    except TideError as error:
        found.notes["kernels one by one"] = str(error)
        return None


# -- padding ------------------------------------------------------------------------------------------------------------


def slowdowns(found: Captured, real_time: Sequence[str], best_effort: Sequence[str]) -> list[dict[str, Any]]:
    """What each chain on each share adds to the slower requests (p90) of each real-time network, by turns with and without."""
    table = []
    for number, be in enumerate(best_effort):
        for sms, lane in found.lanes[number].items():
            for rt in real_time:
                slowdown = _slowdown(found.graphs[True][rt], found.chains[number], lane)
                table.append({"rt": rt, "be": be, "sms": sms, "slowdown": slowdown})
    return table


def _slowdown(graph: Any, chain: Any, lane: Any) -> float:
    """With the chain kept busy in its lane."""
    alone, beside = [], []
    for _ in range(3):
        alone += [request_us(graph) for _ in range(SAMPLES // 3)]
        beside += [
            request_us(graph, meanwhile=lambda: chain.step() and chain.launch(lane)) for _ in range(SAMPLES // 3)
        ]
        chain.finish()
    upper = (statistics.quantiles(values, n=10)[-1] for values in (beside, alone))
    return next(upper) / next(upper) - 1


def admitted(table: Sequence[dict[str, Any]], best_effort: Sequence[str]) -> tuple[int, int]:
    """(chain, multiprocessors) that slow no real-time network down by more than the bound: of those with most multiprocessors the
    first chain; (0, 0) where there is none."""
    worst: dict[tuple[str, int], float] = {}
    for one in table:
        key = (one["be"], one["sms"])
        worst[key] = max(worst.get(key, -1.0), one["slowdown"])
    fitting = [(sms, -best_effort.index(be)) for (be, sms), slowdown in worst.items() if slowdown <= BOUND]
    sms, place = max(fitting, default=(0, 0))
    return -place, sms


# -- rows ---------------------------------------------------------------------------------------------------------------


def run_rows(
    found: Captured, table: Sequence[dict[str, Any]], best_effort: Sequence[str], every_s: float, seconds: float
) -> dict[str, dict[str, float]]:
    """Each row that can be run here, in the order of tables."""
    chains, progress = found.chains, RealTimeProgress(_sms())
    rows: dict[str, dict[str, float]] = {}

    def one(label: str, advance: gpu_disb.Advance, raises: bool = False, watched: bool = False) -> None:
        graphs = list(found.graphs[raises].values())
        clients = [
            gpu_disb.RealTimeClient(graph, every_s, at * every_s / len(graphs)) for at, graph in enumerate(graphs)
        ]
        kernels = {id(graph): found.rt_kernels[name] for name, graph in found.graphs[raises].items()}

        def launched(graph: Any) -> None:
            if watched:
                progress.begin(kernels[id(graph)])

        rows[label] = gpu_disb.run(clients, advance, seconds, launched=launched, ended=progress.end)
        print(f"{label:<12} {rows[label]}", flush=True)

    one("RT-only", gpu_disb.nothing)
    one("PRIO", gpu_disb.always(chains))
    _finish(chains)
    if len(found.be_kernels) == len(best_effort):
        for label, by_profile in (("REEF-N", False), ("Orion", True)):
            singly = [_throttled(kernels, stream, progress, by_profile) for kernels, stream in found.be_kernels]
            if not by_profile:  # how much of it is the price of launching one by one from Python
                alone = gpu_disb.run([], gpu_disb.one_by_one(singly), min(seconds, 5.0))
                found.notes["REEF-N without requests"] = f"{alone['be_per_s']:.0f} best-effort tasks a second"
            one(label, gpu_disb.one_by_one(singly), watched=True)
            _pump_out(singly)
    one("ours", gpu_disb.between(chains), raises=True)
    _finish(chains)
    queue, sms = admitted(table, best_effort)
    if sms:
        side = _stream(-1)
        padded = gpu_disb.Padded(chains, queue, found.lanes[queue][sms], _gate_of(found.beside, queue, side))
        one("ours+padding", padded, raises=True)
        padded.close(False)
        _finish(chains)
    return rows


def _throttled(kernels: GraphKernels, stream: Any, progress: RealTimeProgress, by_profile: bool) -> ThrottledChain:
    chain = ThrottledChain(kernels.facts, lambda at: kernels.start(at, stream), progress)
    chain.by_profile = by_profile
    chain.begin()
    return chain


def _gate_of(blocks: dev.ControlBlocks, queue: int, side: Any) -> Callable[[bool], None]:
    import torch

    def close(closed: bool) -> None:
        with torch.cuda.stream(side):
            blocks.stop(queue, closed)

    return close


def _finish(chains: Sequence[Any]) -> None:
    import torch

    torch.cuda.synchronize()
    for chain in chains:
        chain.finish()


def _pump_out(chains: Sequence[ThrottledChain]) -> None:
    while sum(not chain.pump(True) for chain in chains):
        pass


def _stream(priority: int) -> Any:
    import torch

    return torch.cuda.Stream(priority=priority)


def _sms() -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).multi_processor_count)
