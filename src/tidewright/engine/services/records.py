"""What the book holds of services: what was deployed, how many replicas are wanted, and the jobs that they are."""

from __future__ import annotations

from msgspec import Struct

from ...model.cause import Cause, Code
from ...model.service import ReclaimTerms, ServiceSpec
from ...plan.reasons import Reason


class ReplicaEnd(Struct, frozen=True):
    """How a replica ended by itself, and when."""

    job: int
    at: int
    why: Cause


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
    restarts: int = 0
    """Replicas of this version that ended by themselves, each of which another one follows."""
    last_restart: ReplicaEnd | None = None
    """The end of the last of these."""
    pause_until: int = 0
    """No replica is made before this."""
    image_job: int = 0
    """Of the replicas, the one that is held as the image that others start from, or is being suspended to be it; 0: none."""
    image_tries: int = 0
    """Images of this version that could not be taken, or were of no use."""
    image_failures: int = 0
    """Replicas started from the present one that could not be, or ended soon."""
    image_error: Cause | None = None
    """What was wrong with the last one of these."""
    deleted: bool = False
    """It is gone once its replicas have ended."""


def is_ready(record: ServiceRecord, job: int, attempt: int) -> bool:
    """Whether a replica that runs answers requests, as far as is known."""
    return not record.spec.reports_ready or record.ready.get(job) == attempt


def alive(record: ServiceRecord) -> list[int]:
    """Replicas that are wanted, as far as is known; the image that they start from is none."""
    return [job for job in record.replicas if job not in record.retired and job != record.image_job]


def reclaim_terms(record: ServiceRecord) -> ReclaimTerms:
    """What the service may claim, as planners see it."""
    spec = record.spec
    return ReclaimTerms(
        service=spec.name, deadline_us=spec.reclaim_us, tier=int(spec.replica.tier_rank), devices=spec.replica.devices,
        kinds=spec.replica.device_types, most=spec.max_replicas,
        replicas=tuple(alive(record)),
    )  # fmt: skip


class ServiceBook:
    """All services by name, and those that need another look."""

    def __init__(self, records: dict[str, ServiceRecord] | None = None) -> None:
        self.records = records or {}
        self.changed: dict[str, bool] = {}

    def of_replica(self, service: str) -> ServiceRecord | None:
        """The record behind ``JobSpec.service``; None for a job that is no replica."""
        return self.records.get(service) if service else None

    def reclaims(self) -> tuple[ReclaimTerms, ...]:
        """What services with a reclaim deadline may claim."""
        records = self.records.values()
        return tuple(reclaim_terms(one) for one in records if one.spec.reclaim_us and not one.deleted)

    def is_image(self, service: str, job: int) -> bool:
        """Whether a replica is, or is becoming, the image that others start from."""
        record = self.of_replica(service)
        return record is not None and record.image_job == job

    def held_because(self, service: str, job: int, by: str) -> tuple[Reason, Cause]:
        """Why a job is held until that is ended: for a user, who keeps it from starting (``by``) or suspended it, or for its
        service."""
        if self.is_image(service, job):
            return Reason.SERVICE_IMAGE, Code.IS_SERVICE_IMAGE(service)
        return Reason.USER_HOLD, Code.HELD_BY(by) if by else Code.HELD_BY_USER()
