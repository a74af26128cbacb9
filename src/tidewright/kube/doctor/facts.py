"""What ``tide kube doctor`` looks at and what it says. Pure.

Sources: authorization.k8s.io/v1 (SelfSubjectAccessReview), the calls of this room (site, binder, lease), KEP-4009 (CDI devices
in the device plugin API), the names that gpushare, HAMi and NVIDIA's device plugin give to their objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...base.errors import UsageError
from ..objects import names
from ..objects.gpu_inventory import GpuInventory, read_gpu_inventory, unhealthy_by_node
from ..objects.metadata import ENDED, Json, annotations_of, phase, title
from ..objects.pod_request import requests_memory
from ..objects.schema import ConfigMap, Node, Pod, validated

OK, NOTE, BAD = "ok", "note", "bad"
SYSTEM = names.UNHEALTHY_NAMESPACE


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing looked at. ``level``: ok, note or bad; ``next``: what to do about it, empty when it is ok."""

    what: str
    level: str
    text: str
    next: str = ""


@dataclass(frozen=True, slots=True, order=True)
class AccessRight:
    """One verb on one resource; ``namespace`` empty: in all. ``name``: of the one object it is needed for."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    def attributes(self) -> dict[str, str]:
        """resourceAttributes of an access review."""
        resource, _, sub = self.resource.partition("/")
        found = {"verb": self.verb, "group": self.group, "resource": resource, "subresource": sub,
                 "namespace": self.namespace, "name": self.name}  # fmt: skip
        return {key: value for key, value in found.items() if value}

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}{place}"


LEASES = "coordination.k8s.io"
EXTENDER_RIGHTS = (
    *(AccessRight(verb, "nodes") for verb in ("list", "watch")),
    *(AccessRight(verb, "pods") for verb in ("get", "list", "watch", "patch")),
    AccessRight("create", "pods/binding"),
    *(AccessRight(verb, "configmaps", namespace=SYSTEM) for verb in ("list", "watch")),
    AccessRight("create", "leases", LEASES, SYSTEM),
    *(AccessRight(verb, "leases", LEASES, SYSTEM, "tidewright-extender") for verb in ("get", "update")),
)
"""Every call that ``tide kube extender`` makes."""
PLUGIN_RIGHTS = (
    AccessRight("get", "nodes"),
    AccessRight("patch", "nodes/status"),
    *(AccessRight(verb, "pods") for verb in ("list", "watch", "patch")),
    AccessRight("create", "pods/eviction"),
    AccessRight("create", "events"),
    *(AccessRight(verb, "configmaps", namespace=SYSTEM) for verb in ("get", "create", "patch")),
)
"""Every call that ``tide kube device-plugin`` makes."""


DRA = "resource.k8s.io"
DRA_RIGHTS = (
    *(AccessRight(verb, "resourceslices", DRA) for verb in ("list", "watch", "create", "update", "delete")),
    AccessRight("get", "resourceclaims", DRA),
    *(AccessRight(verb, "pods") for verb in ("list", "watch")),
    AccessRight("get", "nodes"),
    AccessRight("patch", "nodes/status"),
    AccessRight("create", "events"),
    AccessRight("create", "pods/eviction"),
)
"""Every call that ``tide kube dra`` makes."""
WEBHOOK_RIGHTS = tuple(AccessRight(verb, "resourceclaimtemplates", DRA) for verb in ("get", "create"))
"""Every call that ``tide kube webhook`` makes."""


@dataclass(frozen=True, slots=True)
class ProgramRole:
    """What one of our programs must be allowed. ``manifest``: where that is granted, below deploy/kubernetes."""

    program: str
    rights: tuple[AccessRight, ...]
    manifest: str


SCHEDULER_RIGHTS = (
    *(AccessRight(verb, "nodes") for verb in ("list", "watch")),
    *(AccessRight(verb, "pods") for verb in ("list", "watch", "delete")),
    AccessRight("create", "pods/binding"),
    AccessRight("patch", "pods/status"),
    AccessRight("create", "events", "events.k8s.io"),
    *(AccessRight("patch", kind) for kind in ("persistentvolumes", "persistentvolumeclaims")),
    *(
        AccessRight(verb, "configmaps", "", SYSTEM, "extension-apiserver-authentication")
        for verb in ("get", "list", "watch")
    ),
    AccessRight("create", "leases", LEASES, SYSTEM),
)
"""What tells whether the roles of the second scheduler are bound to it: some calls from each. Its Lease comes on top."""
EXTENDER = ProgramRole("the extender", EXTENDER_RIGHTS, "base/extender-rbac.yaml")
ROLES = {
    "tidewright-extender": EXTENDER,
    "tidewright-plugin": ProgramRole("the device plugin", PLUGIN_RIGHTS, "base/plugin-rbac.yaml"),
    "tidewright-scheduler": ProgramRole("the scheduler", SCHEDULER_RIGHTS, "overlays/second-scheduler/scheduler-rbac.yaml"),
    "tidewright-dra": ProgramRole("the DRA driver", DRA_RIGHTS, "dra/rbac.yaml"),
    "tidewright-webhook": ProgramRole("the webhook", WEBHOOK_RIGHTS, "webhook/rbac.yaml"),
    "gpushare-schd-extender": ProgramRole(
        "the extender without a Lease", tuple(right for right in EXTENDER_RIGHTS if right.resource != "leases"),
        "overlays/compatible/extender.yaml",
    ),
    "gpushare-device-plugin": ProgramRole(
        "gpushare's device plugin",
        tuple(right for right in PLUGIN_RIGHTS if right.resource not in ("configmaps", "pods/eviction")),
        "overlays/compatible/plugin.yaml",
    ),
}  # fmt: skip
"""By the name of the service account."""
SERVICE_ACCOUNT = "system:serviceaccount:"


def role_of(account: str, leases: Iterable[tuple[str, str]] = ()) -> ProgramRole:
    """By its last word; any other account is checked for the rights of the extender. ``leases``: namespace and name of those by
    which schedulers lead."""
    role = ROLES.get(account.rpartition(":")[2], EXTENDER)
    if role.rights is not SCHEDULER_RIGHTS:
        return role
    own = tuple(AccessRight(verb, "leases", LEASES, *lease) for lease in leases for verb in ("get", "update"))
    return ProgramRole(role.program, role.rights + own, role.manifest)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster as listed. ``reviews``: by account (empty: the caller's) whether each right is granted; ``unread``: what
    could not be looked at, and why. ``services`` and ``slices`` are None where they could not be listed."""

    version: Json
    groups: Mapping[str, tuple[str, ...]]
    nodes: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    maps: tuple[Json, ...] = ()
    reviews: Mapping[str, Mapping[AccessRight, bool]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    now_s: float = 0.0
    services: tuple[Json, ...] | None = None
    slices: tuple[Json, ...] | None = None
    deployments: tuple[Json, ...] = ()
    """Of kube-system."""
    leases: Mapping[tuple[str, str], Json | None] = field(default_factory=dict)
    """By namespace and name; None: there is none. Those that could not be read are left out."""
    renewed: frozenset[tuple[str, str]] = frozenset()
    """Leases that changed between two looks."""
    has_events: Mapping[str, bool] = field(default_factory=dict)
    """By uid of the pods whose events were read: waiting ones without a condition from a scheduler. Others were not looked at."""

    def inventories(self) -> dict[str, tuple[GpuInventory, Json]]:
        """The nodes that share GPUs, or should, by name."""
        unhealthy = unhealthy_by_node(self.maps)
        found = {}
        for node in self.nodes:
            inventory = read_gpu_inventory(node, unhealthy.get(_name(node), frozenset()))
            if inventory.cards or names.TABLE in annotations_of(node) or amount(node, names.MEM):
                found[inventory.node] = (inventory, node)
        return found

    def listed(self, path: str) -> bool:
        """Whether the objects at a path of the API could be listed."""
        return not any(line.startswith(f"{path} ") for line in self.unread)

    def ours(self) -> Iterator[Json]:
        """Pods that ask for GPU memory and have not ended."""
        return (pod for pod in self.pods if requests_memory(pod) and phase(pod) not in ENDED)


def readable(items: Iterable[Any], kind: type[Node] | type[Pod] | type[ConfigMap]) -> tuple[Json, ...]:
    """Those that have the shape they should have; the checks read them without looking twice."""
    found = []
    for item in items:
        try:
            found.append(validated(item, kind))
        except UsageError:
            continue
    return tuple(found)


def is_ours(marks: Mapping[str, str], component: str) -> bool:
    """By the labels of a pod, or those that a selector wants."""
    return marks.get("app.kubernetes.io/name") == "tidewright" and marks.get("app.kubernetes.io/component") == component


def is_extender(marks: Mapping[str, str]) -> bool:
    """Ours or gpushare's, by labels."""
    theirs = marks.get("app") == "gpushare" and marks.get("component") == "gpushare-schd-extender"
    return theirs or is_ours(marks, "extender")


def images(pod: Json) -> Iterator[str]:
    """Of all its containers."""
    return (str(one.get("image", "")) for one in (pod.get("spec") or {}).get("containers") or ())


def is_ready(pod: Json) -> bool:
    """By its condition."""
    found = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in found)


def amount(node: Json, resource: str, kind: str = "capacity") -> int:
    """Of a resource on a node; 0 where it is no whole number."""
    text = str(((node.get("status") or {}).get(kind) or {}).get(resource, 0))
    return int(text) if text.isascii() and text.isdigit() else 0


def some(found: Iterable[str], most: int = 5) -> str:
    """``a, b and 7 more``."""
    listed = list(found)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")


def titles(pods: Iterable[Json]) -> str:
    """Pods for a message."""
    return some(title(pod) for pod in pods)


def _name(thing: Json) -> str:
    return str((thing.get("metadata") or {}).get("name", ""))
