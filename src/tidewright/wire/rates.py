"""Messages about rates: what is in force, and what is to be forgotten."""

from __future__ import annotations

from msgspec import Struct

from .answers import SCHEMA


class RateRow(Struct, frozen=True, kw_only=True):
    """Samples per second of a workload on ``devices`` devices of one kind, on ``nodes`` nodes (0: wherever they lie); 0: it
    cannot run there. Of a goodput model ``devices`` is 0, and ``step_s`` are the seconds of its step times by name."""

    workload: str
    kind: str
    devices: int = 0
    nodes: int = 0
    per_s: float = 0.0
    step_s: dict[str, float] = {}
    learnt: bool = False
    """From jobs that ran here, not declared."""
    declared_per_s: float = 0.0
    """Of a learnt row: what is declared of the same devices, and is not in force; 0: nothing."""


class RatesReply(Struct, frozen=True, kw_only=True):
    """What is in force of rates, by workload."""

    rows: tuple[RateRow, ...]
    now: int
    schema: str = SCHEMA


class ForgetRatesRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Forget what was learnt of a workload."""

    workload: str
    op_id: str = ""
