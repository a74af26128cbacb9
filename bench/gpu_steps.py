"""The steps of ``bench/gpu_runtime.py``, each a function that prints what it does and returns its figures. They need PyTorch and
Triton and run from a bare checkout with a system's python3; without torchvision and transformers, on small networks.

Each compiles what it needs first; Inductor keeps its tuning in its cache, so that a later step does not tune again.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import gpu_disb
import gpu_isolation
import gpu_nvml
import gpu_rows
import gpu_spin
import gpu_splice
import gpu_suspend
from gpu_timing import keep_busy, quantiles, request_us
from tidewright.base.errors import UsageError
from tidewright.runtime.cuda import device as dev
from tidewright.runtime.cuda.compile import compile_gated, compile_plain, same_bits
from tidewright.runtime.disb.architectures import full, small
from tidewright.runtime.padding.nvidia_rule import GPU_SHARES

EXACT_PREEMPTIONS, EXACT_S, SAMPLES = 10_000, 240.0, 300
NETWORKS = ("vgg19-imagenet", "resnet152-imagenet", "densenet201-imagenet", "inceptionv3-imagenet", "distilbert")
DISB = {
    "A": (NETWORKS[:1], NETWORKS[1:2], 0.01, 30.0, GPU_SHARES),
    "D": (NETWORKS, NETWORKS, 0.05, 15.0, (16, 32)),
}
"""Workload to its real-time and best-effort networks, seconds between two requests of each real-time client, seconds of a row,
and multiprocessors on which best-effort work is tried beside real-time work: a step must end within nine minutes."""
OVERHEAD_BAR, FIRST_KERNEL_BAR_US = 0.03, 50.0


def network(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A network of DISB on the device, in half precision, and its inputs (batch 1); a small one where its library is not here."""
    import torch

    torch.manual_seed(1)
    try:
        made, whole = full(name), True
    except UsageError as error:
        print(f"{name}: {error.message}: a small network instead")
        made, whole = small(name), False
    made = _calibrated(made.cuda(), 299 if whole and "inception" in name else 224 if whole else 64).half()
    if name == "distilbert":
        tokens = torch.randint(0, 1000, (1, 64 if whole else 32), device="cuda")
        return (_hidden_state(made) if whole else made), (tokens,)
    size = 64 if not whole else 299 if "inception" in name else 224
    return made, (torch.randn(1, 3, size, size, device="cuda", dtype=torch.half),)


def _calibrated(model: Any, size: int) -> Any:
    """With statistics for its batch normalisations: with those of a new network deep ones overflow half precision."""
    import torch

    norms = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean over all batches seen
    if norms:
        model.train()
        with torch.no_grad():
            model(torch.randn(8, 3, size, size, device="cuda"))
    return model.eval()


def _hidden_state(model: Any) -> Any:
    import torch

    class HiddenState(torch.nn.Module):
        """Of its outputs the last hidden state: those of transformers are no tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any) -> Any:
            return self.model(tokens)[0]

    return HiddenState()


def probe() -> dict[str, Any]:
    """What this device and its software offer."""
    import torch
    import triton

    least, highest = torch.cuda.Stream.priority_range()
    found = {
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "sms": torch.cuda.get_device_properties(0).multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "priorities": [least, highest],
    }
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return {**found, "cuda_bindings": f"missing: {error.name}"}
    names = ("cuGreenCtxCreate", "cuStreamWriteValue32", "cuDevSmResourceSplitByCount", "cuGraphKernelNodeSetAttribute")
    return {**found, "driver_calls": {name: hasattr(driver, name) for name in names}}


def latencies() -> dict[str, Any]:
    """Microseconds of the pieces that a preemption is made of: from a call in Python to the end of an empty graph, of one that
    raises and clears the flag, and of a model's chain that is aborted at its first kernel."""
    import torch

    blocks = dev.ControlBlocks(1, 4096)
    stream = torch.cuda.Stream(priority=dev.REAL_TIME)
    word = torch.zeros(1, dtype=torch.int32, device="cuda")
    empty = dev.RealTimeGraph(lambda: word.add_(1), (), None, stream)
    flags = dev.RealTimeGraph(lambda: word.add_(1), (), blocks, stream)
    chain, control = _chain("resnet152-imagenet")
    control.raise_flag()
    torch.cuda.synchronize()
    found = {
        "one_kernel_graph_us": quantiles(_timed(empty)),
        "one_kernel_graph_with_flags_us": quantiles(_timed(flags)),
        "drain_of_a_whole_chain_us": quantiles([_drain_us(chain) for _ in range(SAMPLES)]),
    }
    control.clear_flag()
    torch.cuda.synchronize()
    chain.finish()
    print(found)
    return found


def overhead(name: str) -> dict[str, Any]:
    """Milliseconds of a network as a graph, without and with the gate, by turns; the bar is 3 %."""
    found = _compiled(name)
    plain, gated = found.plain, found.chain
    times: dict[str, list[float]] = {"plain": [], "gated": []}
    for _ in range(SAMPLES):
        times["plain"].append(_graphs_ms([plain.graph], plain.stream))
        times["gated"].append(_graphs_ms([part.graph for part in gated.lanes[0].parts], gated.stream))
    medians = {f"{kind}_ms": statistics.median(values) for kind, values in times.items()}
    ratio = medians["gated_ms"] / medians["plain_ms"] - 1
    print(f"{name}: {medians['plain_ms']:.3f} ms plain, {medians['gated_ms']:.3f} ms gated: {ratio:+.1%} (bar 3 %)")
    missed = [f"overhead {ratio:+.1%}"] if ratio > OVERHEAD_BAR else []
    return {**medians, "overhead": ratio, "bar": OVERHEAD_BAR, "missed": missed}


def preemption() -> dict[str, Any]:
    """Microseconds from a request until its first kernel has run, beside a chain that keeps the device busy, over those on an
    idle device; the bar is 50 at p99."""
    import torch

    chain, control = _chain("resnet152-imagenet")
    word = torch.zeros(1, dtype=torch.int32, device="cuda")
    request = dev.RealTimeGraph(lambda: word.add_(1), (), control, torch.cuda.Stream(priority=dev.REAL_TIME))
    idle = _timed(request)
    busy, dice = [], random.Random(1)
    for _ in range(SAMPLES):
        keep_busy(chain, dice.uniform(0.0, 0.003))
        busy.append(request_us(request))
    chain.finish()
    floor, beside = quantiles(idle), quantiles(busy)
    above = beside["p99"] - floor["p99"]
    print(f"first kernel: {above:.0f} us above the floor at p99 (bar {FIRST_KERNEL_BAR_US:.0f})")
    missed = [f"first kernel {above:.0f} us above the floor"] if above > FIRST_KERNEL_BAR_US else []
    return {"idle_us": floor, "busy_us": beside, "bar_us_over_floor_p99": FIRST_KERNEL_BAR_US, "missed": missed}


def exactness(name: str) -> dict[str, Any]:
    """Random preemptions until there are 10,000 of a network's chain. Inputs differ from task to task, so that what an earlier
    one left in memory is not right by accident; outputs are compared by their bytes."""
    import torch

    chain, control = _chain(name)
    side, dice = torch.cuda.Stream(priority=dev.REAL_TIME), random.Random(2)
    given = [tuple(_another(one, seed) for one in chain.inputs) for seed in range(4)]
    expected = [_undisturbed(chain, values) for values in given]
    if not all(torch.isfinite(one).all() for one in expected) or torch.equal(expected[0], expected[1]):
        raise SystemExit(f"{name}: its outputs are no numbers, or all the same: nothing could be compared")
    wrong, tasks, ends, before = 0, 0, time.monotonic() + EXACT_S, chain.counts.aborted
    while chain.counts.aborted - before < EXACT_PREEMPTIONS and time.monotonic() < ends:
        which = dice.randrange(len(given))
        chain.begin(*given[which])
        for _ in range(8):
            with torch.cuda.stream(side):
                torch.cuda._sleep(dice.randrange(400_000))
                control.raise_flag()
                torch.cuda._sleep(dice.randrange(20_000))
                control.clear_flag()
        chain.finish()
        torch.cuda.synchronize()
        wrong += not same_bits(chain.outputs, expected[which])
        tasks += 1
    aborted = chain.counts.aborted - before
    print(f"{name}: {aborted} preemptions in {tasks} tasks, {wrong} wrong")
    missed = [f"{wrong} tasks with wrong results"] if wrong else []
    missed += [f"{aborted} preemptions"] if aborted < EXACT_PREEMPTIONS else []
    counts = {"tasks": tasks, "preemptions": aborted, "wrong": wrong}
    return {**counts, "bar": EXACT_PREEMPTIONS, "missed": missed}


def disb(workload: str) -> dict[str, Any]:
    """DISB A (VGG-19, 100 requests a second, beside ResNet-152) or D (the five, 20 a second each, beside the five)."""
    real_time, best_effort, every_s, seconds, shares = DISB[workload]
    seconds = float(os.environ.get("TIDEWRIGHT_GPU_ROW_S", seconds))
    found = gpu_rows.capture_all(network, real_time, best_effort, shares)
    table = gpu_rows.slowdowns(found, real_time, best_effort)
    rows = gpu_rows.run_rows(found, table, best_effort, every_s, seconds)
    for what, said in found.notes.items():
        print(f"{what}: {said}")
    bar = gpu_disb.THROUGHPUT_BAR if workload == "A" else 0.0
    return {**gpu_disb.judged(rows, bar), "row_s": seconds, "slowdowns": table, "notes": found.notes}


def hint() -> dict[str, Any]:
    """Microseconds of a request for VGG-19 whose inputs come from page-locked memory, beside a chain that keeps the device busy:
    with the gates closed before the inputs are copied, and by the graph alone."""
    import torch

    chain, control = _chain("resnet152-imagenet")
    model, inputs = network("vgg19-imagenet")
    function, dice = compile_plain(model, inputs), random.Random(3)
    given = tuple(torch.zeros_like(one, device="cpu").pin_memory() for one in inputs)
    graphs = {
        label: dev.RealTimeGraph(function, inputs, control, torch.cuda.Stream(priority=dev.REAL_TIME), hint_bytes)
        for label, hint_bytes in (("hint", 0), ("graph", 2**62))
    }
    times: dict[str, list[float]] = {label: [] for label in graphs}
    for _ in range(SAMPLES):
        for label, graph in graphs.items():
            keep_busy(chain, dice.uniform(0.0, 0.003))
            times[label].append(request_us(graph, given))
    chain.finish()
    found = {f"{label}_us": quantiles(values) for label, values in times.items()}
    print(f"inputs of {sum(one.nbytes for one in given)} bytes: {found}")
    return found


# -- pieces -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """A network with control blocks of its own, and as a graph without gates."""

    chain: dev.GatedChain
    controls: dev.ControlBlocks
    plain: dev.RealTimeGraph


def _chain(name: str) -> tuple[dev.GatedChain, dev.ControlBlocks]:
    found = _compiled(name)
    return found.chain, found.controls


@cache
def _compiled(name: str) -> Compiled:
    """Steps that run together share it."""
    import torch

    print(f"{name}: compiling with gates ...", flush=True)
    model, inputs = network(name)
    graphs: list[dev.RealTimeGraph] = []

    def keep(function: Any) -> None:
        graphs.append(dev.RealTimeGraph(function, inputs, None, torch.cuda.Stream(priority=dev.BEST_EFFORT)))

    gated = compile_gated(model, inputs, keep)
    controls = dev.ControlBlocks(1, gated.largest_grid)
    stream = torch.cuda.Stream(priority=dev.BEST_EFFORT)
    return Compiled(dev.GatedChain(gated, inputs, controls.row(0), stream), controls, graphs[0])


def _timed(graph: dev.RealTimeGraph) -> list[float]:
    for _ in range(20):
        request_us(graph)
    return [request_us(graph) for _ in range(SAMPLES)]


def _drain_us(chain: dev.GatedChain) -> float:
    began = time.perf_counter_ns()
    chain.launch()
    while not chain.step():
        pass
    return (time.perf_counter_ns() - began) / 1000


def _graphs_ms(graphs: list[Any], stream: Any) -> float:
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        first.record(stream)
        for graph in graphs:
            graph.replay()
        last.record(stream)
    last.synchronize()
    return float(first.elapsed_time(last))


def _another(tensor: Any, seed: int) -> Any:
    """Of the same form, with other values."""
    import torch

    source = torch.Generator(device="cuda").manual_seed(seed)
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, generator=source, device="cuda").to(tensor.dtype)
    return torch.randint(0, 1000, tensor.shape, generator=source, device="cuda", dtype=tensor.dtype)


def _undisturbed(chain: dev.GatedChain, values: tuple[Any, ...]) -> Any:
    import torch

    chain.begin(*values)
    chain.finish()
    torch.cuda.synchronize()
    return chain.outputs.clone()


STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "probe": probe,
    "latencies": latencies,
    "preemption": preemption,
    "hint": hint,
    "cta-length": gpu_spin.cta_length,
    **{f"overhead-{name}": partial(overhead, name) for name in NETWORKS},
    **{f"exactness-{name}": partial(exactness, name) for name in NETWORKS},
    **{f"disb-{name}": partial(disb, name) for name in DISB},
    "nvml": gpu_nvml.nvml,
    "checkpoint": gpu_suspend.checkpoint,
    **gpu_splice.STEPS,
    "isolation": gpu_isolation.isolation,
    "criu": gpu_suspend.criu,
}
"""In the order in which they are run. Their figures have an entry ``missed``: the bars that were, in words; of a step that lacks
something ``skipped``: what."""
