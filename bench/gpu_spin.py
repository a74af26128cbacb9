"""How long real-time work waits for best-effort CTAs of a known length: the first kernel of a request beside kernels that fill
the device with CTAs of 5 to 500 µs, with gates and by priority alone. What runs is never killed, so the slope over the length of
a CTA is what a design can be held to (docs/why/no-kill-on-nvidia.md).
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_timing import keep_busy, quantiles, request_us
from tidewright.runtime.cuda import device as dev
from tidewright.runtime.cuda.compile import GatedModel
from tidewright.runtime.cuda.control import ControlBlock
from tidewright.runtime.cuda.gate import CONTROL, gate_source
from tidewright.runtime.cuda.wrapper import BOUNDARY, BUFFER

SOURCES = ("bench/gpu_spin.py", "bench/gpu_timing.py", "src/tidewright/runtime/cuda/*.py")
LENGTHS_US = (5, 20, 50, 100, 200, 500)
KERNELS, THREADS, WAVES, SAMPLES = 16, 1024, 4, 200
SOURCE = """
import triton
import triton.language as tl


@triton.jit
def spin(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    for _ in range(n):
        value = value * 0.999 + 0.5
    tl.store(x + at, value)
"""


def cta_length() -> dict[str, Any]:
    """Quantiles in microseconds by the length of a CTA, and the slope of p99 over it."""
    rows = [_one(length) for length in LENGTHS_US]
    lengths = [row["cta_us"] for row in rows]
    slopes = {
        way: statistics.linear_regression(lengths, [row[way]["p99"] for row in rows]).slope
        for way in ("gate", "priority")
    }
    print(f"p99 of the first kernel over the length of a CTA: {slopes}")
    return {"rows": rows, "slopes": slopes}


def _one(length_us: int) -> dict[str, Any]:
    import torch

    chain, controls, cta_us = _chain_of(length_us)
    word = torch.zeros(1, dtype=torch.int32, device="cuda")
    row: dict[str, Any] = {"asked_us": length_us, "cta_us": cta_us}
    dice = random.Random(length_us)
    for way, flags in (("gate", controls), ("priority", None)):
        request = dev.RealTimeGraph(lambda: word.add_(1), (), flags, torch.cuda.Stream(priority=dev.REAL_TIME))
        row[way] = quantiles([_beside(chain, request, dice) for _ in range(SAMPLES)])
    chain.finish()
    print(f"CTAs of {cta_us:.0f} us: {row['gate']} with gates, {row['priority']} by priority", flush=True)
    return row


def _beside(chain: dev.GatedChain, request: dev.RealTimeGraph, dice: random.Random) -> float:
    """Microseconds of a request, launched at a random moment of a chain that keeps the device busy."""
    keep_busy(chain, dice.uniform(0.0, 0.002))
    return request_us(request)


def _chain_of(length_us: int) -> tuple[dev.GatedChain, dev.ControlBlocks, float]:
    """A chain whose CTAs, two on each multiprocessor, take about so long, its control blocks, and how long they do take."""
    import torch

    resident = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    grid = WAVES * resident
    x = torch.zeros(grid * THREADS, device="cuda")
    open_block = torch.tensor(ControlBlock(1).words, dtype=torch.int32, device="cuda")
    module = SimpleNamespace(**{CONTROL: open_block, BOUNDARY: lambda index, gated: None, f"{BUFFER}s": {}})
    spin = _kernel()

    def launch(index: int, rounds: int, ctas: int) -> None:
        spin[(ctas,)](getattr(module, CONTROL), index, x, rounds, BLOCK=THREADS, num_warps=THREADS // 32)

    rounds, cta_us = calibrated(lambda n: _kernel_us(lambda: launch(1, n, resident)), length_us)

    def function(_: Any) -> Any:
        for index in range(1, KERNELS + 1):
            launch(index, rounds, grid)
        return x

    gated = GatedModel(function, modules=[module], largest_grid=grid, open_block=open_block)
    controls = dev.ControlBlocks(1, grid)
    stream = torch.cuda.Stream(priority=dev.BEST_EFFORT)
    return dev.GatedChain(gated, (x,), controls.row(0), stream), controls, cta_us


def calibrated(time_us: Callable[[int], float], wanted_us: float) -> tuple[int, float]:
    """(rounds with which a kernel takes about ``wanted_us``, what it takes): from its time at two numbers of rounds."""
    few, many = 100, 10_000
    low, high = time_us(few), time_us(many)
    each = max((high - low) / (many - few), 1e-6)
    rounds = max(1, round(few + (wanted_us - low) / each))
    return rounds, time_us(rounds)


def _kernel() -> Any:
    """``spin`` with its gate. Triton reads sources from files."""
    folder = tempfile.mkdtemp()
    file = Path(folder) / "tide_spin.py"
    file.write_text(gate_source(SOURCE))
    spec = importlib.util.spec_from_file_location("tide_spin", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.spin


def _kernel_us(launch: Callable[[], None]) -> float:
    """The shortest of some runs."""
    import torch

    times = []
    for _ in range(10):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000)  # so that the launch is queued when the first event comes
        first.record()
        launch()
        last.record()
        last.synchronize()
        times.append(1000 * first.elapsed_time(last))
    return float(min(times))
