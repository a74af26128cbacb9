"""What a runtime has done, for ``tide runtime top``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..disb.result import QUANTILES, quantile
from ..ladder import level_name
from ..models import ModelPool
from ..scheduler.machine import Scheduler
from .session import ClientSession
from .settings import RuntimeSettings


def collect(
    settings: RuntimeSettings,
    facts: dict[str, Any],
    scheduler: Scheduler,
    pool: ModelPool,
    sessions: Sequence[ClientSession],
    acknowledged_ns: Sequence[int],
    began_ns: int,
) -> dict[str, Any]:
    """Totals since it began, and one entry for each client. Times in seconds and microseconds, as named."""
    up_s = (time.monotonic_ns() - began_ns) / 1e9
    counters = asdict(scheduler.counters)
    return {
        "pid": os.getpid(),
        **facts,
        "cores": list(settings.cores),
        "stop": level_name(settings.device, settings.stop),
        "fifo": settings.fifo,
        "up_s": round(up_s, 3),
        **counters,
        "preemptions_per_s": round(counters["preemptions"] / up_s, 3) if up_s else 0.0,
        "memory_bytes": pool.used_bytes,
        "capacity_bytes": pool.capacity,
        "stop_acknowledged_us": _percentiles(acknowledged_ns),
        "worker_cpu_s": sum(session.worker.cpu_s() for session in sessions),
        "clients": [_client(session, scheduler, pool) for session in sessions],
    }


def _client(session: ClientSession, scheduler: Scheduler, pool: ModelPool) -> dict[str, Any]:
    queue = scheduler.best_effort.get(session.queue)
    return {
        "queue": session.queue,
        "name": session.name,
        "class": session.hello.kind,
        "pid": session.pid,
        "up_s": round((time.monotonic_ns() - session.began_ns) / 1e9, 3),
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


def _percentiles(values_ns: Sequence[int]) -> dict[str, Any]:
    """µs of the latest stops; empty where there are none. ``quantiles`` are those of disb.result.QUANTILES."""
    if not values_ns:
        return {}
    ordered = sorted(value / 1000 for value in values_ns)
    return {
        "n": len(ordered),
        "mean": sum(ordered) / len(ordered),
        "p50": quantile(ordered, 0.5),
        "p99": quantile(ordered, 0.99),
        "p999": quantile(ordered, 0.999),
        "max": ordered[-1],
        "quantiles": [quantile(ordered, share) for share in QUANTILES],
    }
