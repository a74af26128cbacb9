"""What the steps of ``gpu_runtime`` time with: requests, chains that keep the device busy, quantiles. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of at least one value, ascending."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """n, p50, p99 and the largest."""
    ordered = sorted(values)
    at = {name: quantile(ordered, share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {"n": float(len(ordered)), **at, "max": ordered[-1]}


def request_us(graph: Any, values: Sequence[Any] = (), meanwhile: Callable[[], object] = lambda: None) -> float:
    """Microseconds from the launch of a real-time graph until it has ended; ``meanwhile`` is called as long as it runs."""
    began = time.perf_counter_ns()
    graph.launch(values)
    while not graph.event.query():
        meanwhile()
    return (time.perf_counter_ns() - began) / 1000


def keep_busy(chain: Any, seconds: float) -> None:
    """Keep a chain on the device for so long, and leave it there."""
    ends = time.perf_counter() + seconds
    while True:
        if chain.step():
            chain.launch()
        if time.perf_counter() >= ends:
            return
