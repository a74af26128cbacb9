"""Services in the HTTP API: what is deployed, and their replicas. Times are microseconds of the wall clock in answers."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import quote

from msgspec import Struct

from ..base.errors import NotFound
from ..base.ids import new_op_id
from ..base.units import MINUTE
from ..model.service import ServiceSpec
from .api import SCHEMA, ActionReply, ActionRequest
from .calls.asks import Asks

T = TypeVar("T")
SERVICES = "/v1/services"


class DeployRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deploy a service, or another version of one."""

    service: ServiceSpec
    op_id: str = ""


class ScaleServiceRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many replicas, within the bounds that the service is deployed with."""

    replicas: int
    op_id: str = ""


class ReplicaReadyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attempt of a replica answers requests."""

    job: int
    attempt: int
    op_id: str = ""


class ServiceImageRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This attempt of a replica is warmed up and holds no connection: further replicas are to start from its image."""

    job: int
    attempt: int
    op_id: str = ""


class ReplicaView(Struct, frozen=True, kw_only=True):
    """One replica: its job, and whether it is of the present version or being replaced."""

    job: int
    name: str
    state: str
    version: int
    ready: bool = True
    """Whether it answers requests, as far as is known: of a model, once the gateway has reported it."""
    retired: bool = False
    """It is being stopped and is not replaced."""


class ServiceView(Struct, frozen=True, kw_only=True):
    """A service. ``state`` is ``ready`` (all replicas that are wanted run), ``updating``, ``starting``, ``idle`` (none are
    wanted) or ``deleting``."""

    name: str
    state: str
    version: int
    wanted: int
    running: int
    """Replicas of the present version that run and are ready."""
    min_replicas: int
    max_replicas: int
    scale_down_us: int = MINUTE
    """How long replicas that a peak needed are kept after it."""
    tier: str
    devices: int
    """Of each replica."""
    since: int
    """When it was first deployed."""
    image: str = ""
    """Of the image that replicas start from: ``wanted`` (of the next one that is warmed up), ``making``, ``ready``, ``failed``;
    empty: the service is deployed without."""
    image_job: int = 0
    """The job that is this image; none of ``replicas``."""
    image_error: str = ""
    """What was wrong with the last image that failed."""
    ends: int = 0
    """Replicas in a row that ended by themselves soon after one another."""
    restarts: int = 0
    """Replicas of the present version that ended by themselves and were made anew."""
    last_end: str = ""
    """Why the last of these ended."""
    last_end_job: int = 0
    last_end_at: int = 0
    replicas: tuple[ReplicaView, ...] = ()
    command: str = ""
    user: str = ""


class ServiceList(Struct, frozen=True, kw_only=True):
    """All services, by name."""

    services: tuple[ServiceView, ...]
    now: int
    schema: str = SCHEMA


class ServiceCalls:
    """The calls about services of a client."""

    def services(self: Asks) -> ServiceList:
        """Every service and its replicas."""
        return self._ask("GET", SERVICES, ServiceList)

    def deploy(self: Asks, service: ServiceSpec) -> ActionReply:
        """A new service, or another version of one, whose replicas are then replaced one after the other."""
        return self._ask("POST", SERVICES, ActionReply, DeployRequest(service=service, op_id=new_op_id()))

    def scale_service(self: Asks, name: str, replicas: int) -> ActionReply:
        """So many replicas from now on, within the service's bounds. Raises NotFound, UsageError beyond the bounds."""
        body = ScaleServiceRequest(replicas=replicas, op_id=new_op_id())
        return self._ask("POST", _path(name, "/scale"), ActionReply, body)

    def replica_ready(self: Asks, name: str, job: int, attempt: int) -> ActionReply:
        """A replica of a service answers requests. Raises NotFound."""
        body = ReplicaReadyRequest(job=job, attempt=attempt, op_id=new_op_id())
        return self._ask("POST", _path(name, "/ready"), ActionReply, body)

    def take_service_image(self: Asks, name: str, job: int, attempt: int) -> ActionReply:
        """A replica waits to be made the image of its service. Raises NotFound, Conflict when no image is wanted."""
        body = ServiceImageRequest(job=job, attempt=attempt, op_id=new_op_id())
        return self._ask("POST", _path(name, "/image"), ActionReply, body)

    def delete_service(self: Asks, name: str) -> ActionReply:
        """End a service and its replicas. Raises NotFound."""
        return self._ask("POST", _path(name, "/delete"), ActionReply, ActionRequest(op_id=new_op_id()))


def _path(name: str, tail: str) -> str:
    if not name:
        raise NotFound("an empty name of a service", "list them with tide serve ls")
    return f"{SERVICES}/{quote(name, safe='')}{tail}"
