"""DISB A and D on a GPU in one process that polls: what the runtime's worker does, without its daemon, so that it runs where only
PyTorch and Triton are. Rows: RT-only, PRIO (priority of the stream alone) and ours; all with the same kernels.

DISB's semantics: a client has one request outstanding, and a launch that comes while it waits is dropped and counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

ROWS = ("RT-only", "PRIO", "ours")
P50_BAR, P99_BAR, THROUGHPUT_BAR = 0.02, 0.10, 3.0


@dataclass(slots=True)
class RealTimeClient:
    """Asks every ``every_s`` seconds, the first time after ``delay_s``. ``graph`` has launch() and event."""

    graph: Any
    every_s: float
    delay_s: float = 0.0
    outstanding: bool = False
    launched: int = 0
    dropped: int = 0
    latencies_us: list[float] = field(default_factory=list)


def run(
    clients: Sequence[RealTimeClient],
    chains: Sequence[Any],
    seconds: float,
    *,
    stops: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Requests for so long, and best-effort chains all the time; ``stops``: none is launched while a request is under way."""
    began = clock()
    due = [began + client.delay_s for client in clients]
    waiting: deque[tuple[RealTimeClient, float]] = deque()
    running: tuple[RealTimeClient, float] | None = None
    complete = 0
    for chain in chains:
        chain.launch()
    while (now := clock()) - began < seconds or running or waiting:
        if running is not None and running[0].graph.event.query():
            client, asked = running
            client.latencies_us.append(1e6 * (clock() - asked))
            client.outstanding, running = False, None
        for at, client in enumerate(clients):
            if now >= due[at] and now - began < seconds:
                client.dropped += client.outstanding
                if not client.outstanding:
                    client.outstanding = True
                    client.launched += 1
                    waiting.append((client, due[at]))
                due[at] += client.every_s
        if running is None and waiting:
            running = waiting.popleft()
            running[0].graph.launch()
        if running is None or not stops:
            complete += sum(map(_advance, chains)) if now - began < seconds else 0
    for chain in chains:
        chain.finish()
    return _figures(clients, complete, seconds)


def _advance(chain: Any) -> bool:
    """Launch the chain again when it has drained. Returns whether a task of it was complete."""
    if not chain.step():
        return False
    done = chain.complete
    chain.launch()
    return bool(done)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of at least one value, ascending."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _figures(clients: Sequence[RealTimeClient], complete: int, seconds: float) -> dict[str, float]:
    ordered = sorted(us for client in clients for us in client.latencies_us) or [0.0]
    count = sum(len(client.latencies_us) for client in clients)
    return {
        "rt_per_s": count / seconds,
        "be_per_s": complete / seconds,
        "dropped": float(sum(client.dropped for client in clients)),
        "rt_p50_us": quantile(ordered, 0.5),
        "rt_p99_us": quantile(ordered, 0.99),
        "rt_p999_us": quantile(ordered, 0.999),
        "rt_max_us": ordered[-1],
    }


def judged(rows: dict[str, dict[str, float]], throughput_bar: float) -> dict[str, Any]:
    """With what ours adds to the latency of real-time work alone, and the bars that it missed; 0: no bar for throughput."""
    alone, ours = rows["RT-only"], rows["ours"]
    p50, p99 = (ours[name] / alone[name] - 1 for name in ("rt_p50_us", "rt_p99_us"))
    total = (ours["rt_per_s"] + ours["be_per_s"]) / alone["rt_per_s"]
    missed = [
        f"{name} {found:+.1%}" for name, found, bar in (("p50", p50, P50_BAR), ("p99", p99, P99_BAR)) if found > bar
    ]
    missed += [f"throughput {total:.2f} x"] if total < throughput_bar else []
    print(
        f"real-time p50 {p50:+.1%} (bar {P50_BAR:.0%}), p99 {p99:+.1%} (bar {P99_BAR:.0%}), "
        f"requests in all {total:.2f} x those of real-time work alone"
        + (f" (bar {throughput_bar:g})" if throughput_bar else "")
    )
    increase = {"p50_increase": p50, "p99_increase": p99, "throughput_over_rt_only": total}
    return {"rows": rows, **increase, "bars": [P50_BAR, P99_BAR, throughput_bar], "missed": missed}
