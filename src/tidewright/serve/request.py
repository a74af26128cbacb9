"""What travels between a gateway (or the simulator) and the policies: requests, batches to run, refusals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NO_DEADLINE = 1 << 62
"""Deadline of best-effort requests, microseconds: later than any time."""


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One request for one model. Times are microseconds of the caller's clock; ``id`` is unique and rises with arrival.

    ``best_effort``: it fills gaps between real-time requests, and ``deadline_us`` is NO_DEADLINE. ``bytes``: of its inputs.
    ``items``: what it counts for in a batch, which holds it whole or not at all.
    """

    id: int
    model: str
    arrived_us: int
    deadline_us: int = NO_DEADLINE
    best_effort: bool = False
    bytes: int = 0
    items: int = 1


class RefusalCode(StrEnum):
    """Why a request is not served."""

    DEADLINE = "deadline"
    """It would complete after its deadline (Clockwork, OSDI'20)."""
    OVERLOAD = "overload"
    """It would complete in time at the head of a batch too small for the load (early drop: Nexus, SOSP'19, section 6.3)."""
    LATE = "late"
    """It waited until it could no longer complete in time."""
    QUEUE_FULL = "queue_full"
    QUEUE_BYTES = "queue_bytes"
    NO_REPLICA = "no_replica"
    """There is no replica that could complete it in time, and the first has yet to start."""
    TOO_LONG = "too_long"
    """Best effort, and the smallest batch would hold a replica for longer than real-time requests can wait."""


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """``retry_after_s``: whole seconds after which the request would be admitted if nothing else came (RFC 9110, 10.2.3)."""

    request: InferenceRequest
    code: RefusalCode
    retry_after_s: int


@dataclass(frozen=True, slots=True)
class BatchDispatch:
    """Run ``requests``, all of ``model``, as one batch on ``replica``, now. ``predicted_us``: when it should have completed."""

    replica: int
    model: str
    requests: tuple[InferenceRequest, ...]
    started_us: int
    predicted_us: int
    best_effort: bool = False

    @property
    def items(self) -> int:
        """Size of the batch."""
        return sum(request.items for request in self.requests)


@dataclass(frozen=True, slots=True)
class RoutingStep:
    """What to do now. ``wake_us``: when to ask again if nothing arrives or completes before; None: no need to."""

    dispatches: tuple[BatchDispatch, ...] = ()
    refused: tuple[RequestRefusal, ...] = ()
    wake_us: int | None = None
