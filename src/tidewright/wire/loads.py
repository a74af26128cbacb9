"""Messages of the HTTP API that sum up: what was used by whom, and what the pool does right now."""

from __future__ import annotations

from msgspec import Struct

from .answers import SCHEMA, CalibrationView, StateName


class UsageRow(Struct, frozen=True, kw_only=True):
    """Sums over running and ended jobs of one team, user or tier."""

    key: str
    jobs: int
    live: int
    held_gpu_s: float
    delivered_gpu_s: float
    fraction: float
    """Mean delivered GPU fraction of its jobs."""
    preemptions: int


class UsageReply(Struct, frozen=True, kw_only=True):
    """``by`` is team, user or tier."""

    by: str
    rows: tuple[UsageRow, ...]
    now: int
    schema: str = SCHEMA


class JobLoad(Struct, frozen=True, kw_only=True):
    """What a running job does right now, as its agent measured it."""

    job: int
    name: str
    tier: str
    team: str
    state: StateName
    devices: int
    cpu_percent: float = 0.0
    memory: int = 0
    steps: int = -1
    fraction: float = 0.0


class DeviceLoad(Struct, frozen=True, kw_only=True):
    """One device right now; ``utilisation`` is percent, -1 when it cannot be measured."""

    node: str
    device: int
    utilisation: float = -1.0
    memory_used: int = -1
    jobs: tuple[int, ...] = ()


class TopView(Struct, frozen=True, kw_only=True):
    """The pool at a glance."""

    now: int
    devices: int
    held: int
    queued: int
    running: int
    suspended: int
    ended: int
    jobs: tuple[JobLoad, ...] = ()
    loads: tuple[DeviceLoad, ...] = ()
    calibration: CalibrationView | None = None
    """How often forecasts of starts have held of late; None before there are enough of them."""
    schema: str = SCHEMA
