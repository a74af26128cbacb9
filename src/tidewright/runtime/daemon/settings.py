"""What a runtime is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..ladder import StopLevel
from ..scheduler.machine import SchedulerSettings


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """``socket``: where clients connect. ``cores``: those of the device. ``capacity``: bytes for models; 0: not limited.

    ``load_timeout_s``: after which the worker of a device that still makes a model is killed.

    ``task_timeout_s``: device time after which a task's worker is killed. ``worker_memory``: resident bytes beyond what its
    models take after which a worker is killed; 0: not limited. ``fifo``: real-time workers in SCHED_FIFO, if allowed.

    ``padding``: never, always, or the file of a slow-down table, of which pairs at or below ``padding_bound`` are admitted.
    ``padding_share``: with always, cores or multiprocessors for best-effort work beside real-time work."""

    socket: Path
    cores: tuple[int, ...]
    device: Literal["cpu", "cuda"] = "cpu"
    stop: StopLevel = StopLevel.SIGNAL
    fifo: bool = True
    rt_threads: int = 1
    be_threads: int = 1
    capacity: int = 0
    task_timeout_s: float = 60.0
    load_timeout_s: float = 3600.0
    worker_memory: int = 0
    padding: str = "never"
    padding_share: int = 0
    shares: tuple[int, ...] = ()
    """All that ``padding`` may give to best-effort work of a GPU: their lanes are made with each model."""
    padding_bound: float = 0.02
    most_clients: int = 256
    take_over: bool = False
    """Listen also where another one does: a job's daemon comes back while that of its last attempt is still on a lost node."""
    device_worker: tuple[str, ...] = ("-m", "tidewright.runtime.cuda.worker")
    """Arguments of the interpreter for the worker of a device that is not the host's cores."""
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
