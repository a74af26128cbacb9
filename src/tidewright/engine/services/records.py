"""What the book holds of services: what was deployed, how many replicas are wanted, and the jobs that they are."""

from __future__ import annotations

from msgspec import Struct

from ...model.service import ServiceSpec


class ServiceRecord(Struct, omit_defaults=True):
    """Times are absolute microseconds."""

    spec: ServiceSpec
    wanted: int
    """Replicas that it is scaled to."""
    deployed: int
    """When it was first deployed."""
    version: int = 1
    """Raised when what a replica runs changes; replicas of lower versions are replaced one after the other."""
    made: int = 0
    """Replicas made so far, the number of the last one."""
    replicas: dict[int, int] = {}
    """Job of each replica that has not ended, and its version."""
    retired: dict[int, bool] = {}
    """Of these, those that were stopped because they are not needed any more."""
    ready: dict[int, int] = {}
    """Attempt of each replica that was last reported to be ready."""
    ends: int = 0
    """Replicas in a row that ended by themselves soon after one another."""
    last_end: int = 0
    pause_until: int = 0
    """No replica is made before this."""
    deleted: bool = False
    """It is gone once its replicas have ended."""


def is_ready(record: ServiceRecord, job: int, attempt: int) -> bool:
    """Whether a replica that runs answers requests, as far as is known."""
    return not record.spec.reports_ready or record.ready.get(job) == attempt


class ServiceBook:
    """All services by name, and those that need another look."""

    def __init__(self, records: dict[str, ServiceRecord] | None = None) -> None:
        self.records = records or {}
        self.changed: dict[str, bool] = {}
