"""DISB A and D on a GPU in one process that polls: what the runtime's worker does, without its daemon, so that it runs where only
PyTorch and Triton are. Rows: RT-only, PRIO (priority of the stream alone), REEF-N and Orion (those policies, written again),
ours and ours with padding; all with the same kernels.

DISB's semantics: a client has one request outstanding, and a launch that comes while it waits is dropped and counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_timing import quantile

P50_BAR, P99_BAR, THROUGHPUT_BAR, THROTTLED_BAR = 0.02, 0.10, 3.0, 1.5


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


Advance = Callable[[bool], int]
"""Best-effort work of one turn, told whether real-time work is under way. Returns how many tasks were complete."""


def run(
    clients: Sequence[RealTimeClient],
    advance: Advance,
    seconds: float,
    *,
    launched: Callable[[Any], None] = lambda graph: None,
    ended: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Requests for so long, and best-effort work all the time. ``launched`` and ``ended``: of each request."""
    advance(False)  # what was left from before counts for nothing
    began = clock()
    due = [began + client.delay_s for client in clients]
    waiting: deque[tuple[RealTimeClient, float]] = deque()
    running: tuple[RealTimeClient, float] | None = None
    complete = 0
    while (now := clock()) - began < seconds or running or waiting:
        if running is not None and running[0].graph.event.query():
            client, asked = running
            client.latencies_us.append(1e6 * (clock() - asked))
            client.outstanding, running = False, None
            ended()
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
            launched(running[0].graph)
        if now - began < seconds:
            complete += advance(running is not None)
    return _figures(clients, complete, seconds)


# -- best-effort work of each row -----------------------------------------------------------------------------------------


def nothing(real_time: bool) -> int:
    """RT-only."""
    return 0


def always(chains: Sequence[Any]) -> Advance:
    """PRIO: chains are launched whatever else runs."""
    return lambda real_time: sum(map(advance_chain, chains))


def between(chains: Sequence[Any]) -> Advance:
    """Ours: none is launched while a request, which has closed their gates, is under way."""
    return lambda real_time: 0 if real_time else sum(map(advance_chain, chains))


class Padded:
    """Ours with padding: the chain at ``index`` goes on in ``lane`` while requests are under way; ``close`` closes its gate
    there, or no longer. The lane does not look at the flag of real-time work."""

    def __init__(self, chains: Sequence[Any], index: int, lane: Any, close: Callable[[bool], None]) -> None:
        self.chains, self.index, self.lane, self.close = chains, index, lane, close
        self.beside = self.closed = False

    def __call__(self, real_time: bool) -> int:
        others = [chain for at, chain in enumerate(self.chains) if at != self.index]
        done = 0 if real_time else sum(map(advance_chain, others))
        return done + self._guest(self.chains[self.index], real_time)

    def _guest(self, chain: Any, real_time: bool) -> int:
        if not chain.step():
            if self.beside and not real_time and not self.closed:
                self._close(True)
            return 0
        done = bool(chain.complete)
        self._close(False)
        self.beside = real_time
        chain.launch(self.lane if real_time else chain.lanes[0])
        return int(done)

    def _close(self, closed: bool) -> None:
        if closed != self.closed:
            self.closed = closed
            self.close(closed)


def one_by_one(chains: Sequence[Any]) -> Advance:
    """REEF-N and Orion: kernels are launched one by one; a chain (``ThrottledChain``) holds back what may not be launched."""

    def advance(real_time: bool) -> int:
        done = 0
        for chain in chains:
            chain.pump(False)
            if chain.complete:
                done += 1
                chain.begin()
        return done

    return advance


def advance_chain(chain: Any) -> bool:
    """Launch a chain again when it has drained. Returns whether a task of it was complete."""
    if not chain.step():
        return False
    done = chain.complete
    chain.launch(chain.lanes[0])
    return bool(done)


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
    """With what the last of our rows adds to the latency of real-time work alone, and the bars that it missed; 0: no bar for
    throughput over real-time work alone."""
    alone, ours = rows["RT-only"], rows[next(row for row in reversed(rows) if row.startswith("ours"))]
    p50, p99 = (ours[name] / alone[name] - 1 for name in ("rt_p50_us", "rt_p99_us"))
    total = _requests(ours) / alone["rt_per_s"]
    throttled = _requests(ours) / _requests(rows["REEF-N"]) if "REEF-N" in rows else None
    missed = [
        f"{name} {found:+.1%}" for name, found, bar in (("p50", p50, P50_BAR), ("p99", p99, P99_BAR)) if found > bar
    ]
    missed += [f"throughput {total:.2f} x"] if total < throughput_bar else []
    missed += [f"over REEF-N {throttled:.2f} x"] if throttled is not None and throttled < THROTTLED_BAR else []
    print(
        f"real-time p50 {p50:+.1%} (bar {P50_BAR:.0%}), p99 {p99:+.1%} (bar {P99_BAR:.0%}), "
        f"requests in all {total:.2f} x those of real-time work alone"
        + (f" (bar {throughput_bar:g})" if throughput_bar else "")
        + (f", {throttled:.2f} x REEF-N's (bar {THROTTLED_BAR:g})" if throttled is not None else "")
    )
    found = {"p50_increase": p50, "p99_increase": p99, "throughput_over_rt_only": total, "over_reef_n": throttled}
    return {"rows": rows, **found, "bars": [P50_BAR, P99_BAR, throughput_bar, THROTTLED_BAR], "missed": missed}


def _requests(row: dict[str, float]) -> float:
    return row["rt_per_s"] + row["be_per_s"]
