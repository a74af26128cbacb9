"""What a runtime has done, for ``tide runtime top``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ..ladder import NAMES
from ..models import ModelPool
from ..scheduler.machine import Scheduler
from .session import ClientSession
from .settings import RuntimeSettings


def collect(
    settings: RuntimeSettings,
    scheduler: Scheduler,
    pool: ModelPool,
    sessions: Iterable[ClientSession],
    acknowledged_ns: Sequence[int],
    began_ns: int,
) -> dict[str, Any]:
    """Totals since it began, and one entry for each client. Times in seconds and microseconds, as named."""
    up_s = (time.monotonic_ns() - began_ns) / 1e9
    counters = asdict(scheduler.counters)
    return {
        "device": "cpu",
        "cores": list(settings.cores),
        "stop": NAMES[settings.stop],
        "fifo": settings.fifo,
        "up_s": round(up_s, 3),
        **counters,
        "preemptions_per_s": round(counters["preemptions"] / up_s, 3) if up_s else 0.0,
        "memory_bytes": pool.used_bytes,
        "capacity_bytes": pool.capacity,
        "stop_acknowledged_us": _percentiles(acknowledged_ns),
        "clients": [_client(session, scheduler, pool) for session in sessions],
    }


def _client(session: ClientSession, scheduler: Scheduler, pool: ModelPool) -> dict[str, Any]:
    queue = scheduler.best_effort.get(session.queue)
    return {
        "queue": session.queue,
        "name": session.name,
        "class": session.hello.kind,
        "pid": session.pid,
        "worker_pid": session.worker.pid,
        "weight": queue.weight if queue is not None else 1,
        "stream": queue.stream.value if queue is not None else "",
        "outstanding": len(session.outstanding),
        "done": session.done,
        "failed": session.failed,
        "cancelled": session.cancelled,
        "preemptions": session.preemptions,
        "device_s": round(queue.service_ns / 1e9, 6) if queue is not None else None,
        "broken": session.broken,
        "models": [
            {
                "id": model.id,
                "name": model.name,
                "state": model.state.value,
                "bytes": model.nbytes,
                "run_us": model.run_ns // 1000,
            }
            for model in pool.of(session.queue)
        ],
    }


def _percentiles(values_ns: Sequence[int]) -> dict[str, float]:
    """p50, p99 and the maximum, µs; empty where there are none."""
    if not values_ns:
        return {}
    ordered = sorted(values_ns)
    last = len(ordered) - 1
    return {
        "n": len(ordered),
        "p50": ordered[round(0.5 * last)] / 1000,
        "p99": ordered[round(0.99 * last)] / 1000,
        "max": ordered[-1] / 1000,
    }
