"""A service: so many replicas of one job, kept running until it is deleted."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ..base.ids import valid_name
from ..base.units import DAY, HOUR, MINUTE, MS, SECOND, format_duration
from .job import JobSpec
from .job import problems as problems_of_job

MAX_REPLICAS = 10_000
SHORTEST_SCALE_DOWN_US, LONGEST_SCALE_DOWN_US = SECOND, DAY
SHORTEST_RECLAIM_US, LONGEST_RECLAIM_US = 100 * MS, HOUR
MAX_SERVICE_NAME = 100
"""Replicas are named after their service and numbered."""


class ReclaimTerms(Struct, frozen=True, kw_only=True):
    """What a service with a reclaim deadline may claim: ``most`` replicas of ``devices`` each, of these ``kinds`` (none: of any).
    ``replicas``: the jobs of those that there are."""

    service: str
    deadline_us: int
    tier: int
    devices: int
    kinds: tuple[str, ...]
    most: int
    replicas: tuple[int, ...]


class ServiceSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A service as deployed. Each replica is a job of its own, a gang of ``replica.ranks``, placed and preempted as any other."""

    name: str
    replica: JobSpec
    """What each replica runs."""
    min_replicas: int = 1
    """Fewest that it may be scaled to; 0: to none."""
    max_replicas: int = 1
    scale_down_us: int = MINUTE
    """How long replicas that a peak needed are kept after it. Microseconds."""
    reclaim_us: int = 0
    """Devices that it has lent are to be released to its replicas within so many microseconds; 0: by the policy's usual rules."""
    reports_ready: bool = False
    """Whether the gateway reports replicas that are ready; until then one that runs does not count as one."""
    from_image: bool = False
    """Whether further replicas start from a full image of the first that is warmed up, where nodes take such images."""


def replica_spec(service: ServiceSpec, number: int) -> JobSpec:
    """The job that is the service's replica of this number."""
    return replace(service.replica, name=f"{service.name}-{number}", service=service.name, kind="service")


def problems_of_number(replicas: int) -> list[str]:
    """What is wrong with a number of replicas of any service, in words."""
    return [] if 0 <= replicas <= MAX_REPLICAS else [f"replicas: {replicas} is not between 0 and {MAX_REPLICAS}"]


def problems(service: ServiceSpec) -> list[str]:
    """Everything wrong with a service, in words; empty when it is sound."""
    found: list[str] = []
    if not valid_name(service.name) or len(service.name) > MAX_SERVICE_NAME or service.name.isdigit():
        found.append(
            f"name: {service.name!r} may hold letters, digits and . _ - only, up to {MAX_SERVICE_NAME}, and not digits alone"
        )
    if not 0 <= service.min_replicas <= service.max_replicas or not 1 <= service.max_replicas <= MAX_REPLICAS:
        asked = f"{service.min_replicas}:{service.max_replicas}"
        found.append(f"replicas: {asked} is not MIN:MAX with 0 <= MIN <= MAX and 1 <= MAX <= {MAX_REPLICAS}")
    if not SHORTEST_SCALE_DOWN_US <= service.scale_down_us <= LONGEST_SCALE_DOWN_US:
        found.append(f"scale_down_delay: {format_duration(service.scale_down_us)} is not between 1 s and a day")
    if service.reclaim_us and not SHORTEST_RECLAIM_US <= service.reclaim_us <= LONGEST_RECLAIM_US:
        found.append(f"reclaim: {format_duration(service.reclaim_us)} is not between 100 ms and an hour")
    spec = service.replica
    if spec.array is not None or spec.after:
        found.append("replica: of no array, and after no other job; leave out array and after")
    if service.from_image and (spec.ranks > 1 or spec.runtime or not service.reports_ready):
        found.append("from_image: of models only (--model), and of replicas of one rank with devices of their own")
    if spec.kind == "runtime":
        found.append("replica: a device runtime cannot be one; start it with tide runtime start")
    found += [
        f"{field.removesuffix('_us')}: a replica runs until it is not needed any more; leave it out"
        for field in ("max_duration_us", "expected_us", "deadline_us") if getattr(spec, field)
    ]  # fmt: skip
    return found + problems_of_job(spec)
