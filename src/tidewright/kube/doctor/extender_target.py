"""Whether an extender's ``urlPrefix`` leads to a Service, to a port that it has, and to a ready endpoint. Pure.

Sources: DNS for Services and Pods (NAME.NAMESPACE[.svc[.DOMAIN]]), v1 Service, discovery.k8s.io/v1 EndpointSlice. Nothing is
connected to: this runs elsewhere than the scheduler, and what answers here need not answer there.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from ..extender.http import PREFIX
from ..objects.metadata import Json, labels_of
from .facts import BAD, NOTE, SYSTEM, ClusterFacts, is_extender, is_ready, some

NODE_PORTS_FROM = 30000
"""Where the range of node ports begins by default; programs of a node itself listen below."""
SERVICE_NAME = "kubernetes.io/service-name"
Problem = tuple[str, str, str]
"""(level, what, remedy)."""


def target_problems(facts: ClusterFacts, prefix: str) -> Iterator[Problem]:
    """Of one urlPrefix; nothing where Services could not be listed."""
    if facts.services is None:
        return
    try:
        parts = urlsplit(prefix)
        host, port = (parts.hostname or "").rstrip("."), parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        host, port = "", 0
    if not host:
        yield BAD, f"urlPrefix {prefix!r} is no URL", "write http://HOST:PORT/gpushare-scheduler"
        return
    if _is_of_a_node(facts, host):
        yield from _by_node_port(facts, host, port, parts.path)
    elif _is_address(host):
        yield from _by_address(facts, host, port, parts.path)
    else:
        yield from _by_name(facts, host, port, parts.path)


def _by_node_port(facts: ClusterFacts, host: str, port: int, path: str) -> Iterator[Problem]:
    for service in facts.services or ():
        for one in _ports(service):
            if one.get("nodePort") == port:
                yield from _answers(facts, service, one, path)
                return
    ours = [
        f"{_title(one)} has {port['nodePort']}" for one in _ours(facts) for port in _ports(one) if "nodePort" in port
    ]
    if port < NODE_PORTS_FROM:
        yield (
            NOTE,
            f"{host}:{port} is a program of the node itself, which cannot be seen from here",
            f"try it there: curl {host}:{port}/version",
        )
    else:
        yield BAD, f"no Service has the node port {port}", f"write the extender's into urlPrefix ({some(ours)})" if ours else (
            "apply deploy/kubernetes/overlays/default-scheduler, which opens 32766")  # fmt: skip


def _by_address(facts: ClusterFacts, host: str, port: int, path: str) -> Iterator[Problem]:
    for service in facts.services or ():
        spec = service.get("spec") or {}
        if host in (spec.get("clusterIP"), *(spec.get("clusterIPs") or ())):
            yield from _at_port(facts, service, port, path)
            return
    text = f"{host} is no address of a node or Service, so it cannot be seen from here"
    yield NOTE, text, f"if it was a Service's clusterIP, that is gone; else try it: curl {host}:{port}/version"


def _by_name(facts: ClusterFacts, host: str, port: int, path: str) -> Iterator[Problem]:
    """A name of one label is looked for where the scheduler runs."""
    name, *rest = host.split(".")
    if len(rest) > 1 and rest[1] != "svc":
        yield (
            NOTE,
            f"{host} is outside of the cluster, so it cannot be seen from here",
            f"try it: curl {host}:{port}/version",
        )
        return
    namespace = rest[0] if rest else SYSTEM
    for service in facts.services or ():
        if _title(service) == f"{namespace}/{name}":
            yield from _at_port(facts, service, port, path)
            return
    known = [_title(one) for one in _ours(facts)]
    remedy = (
        f"write the extender's Service into urlPrefix ({some(known)})"
        if known
        else "apply the overlay, or name a Service"
    )
    yield BAD, f"there is no Service {namespace}/{name}", remedy


def _at_port(facts: ClusterFacts, service: Json, port: int, path: str) -> Iterator[Problem]:
    for one in _ports(service):
        if one.get("port") == port:
            yield from _answers(facts, service, one, path)
            return
    has = some(str(one.get("port")) for one in _ports(service))
    yield BAD, f"Service {_title(service)} has no port {port}", f"write its port into urlPrefix ({has})"


def _answers(facts: ClusterFacts, service: Json, port: Json, path: str) -> Iterator[Problem]:
    if is_extender((service.get("spec") or {}).get("selector") or {}) and path.rstrip("/") != PREFIX:
        yield BAD, f"the extender does not answer below {path or '/'}", f"end urlPrefix with {PREFIX}"
    if not _has_endpoint(facts, service, port):
        text = f"Service {_title(service)} has no ready endpoint for port {port.get('port')}: it is not answered"
        yield (
            BAD,
            text,
            f"kubectl -n {_namespace(service)} get pods, endpointslices shows what it selects; one pod must be ready",
        )


def _has_endpoint(facts: ClusterFacts, service: Json, port: Json) -> bool:
    """By its EndpointSlices; where those could not be listed, by ready pods."""
    if facts.slices is None:
        chosen = ((service.get("spec") or {}).get("selector") or {}).items()
        return any(
            is_ready(pod) and chosen <= labels_of(pod).items()
            for pod in facts.pods
            if _namespace(pod) == _namespace(service)
        )
    return any(_is_ready_slice(found, service, port) for found in facts.slices)


def _is_ready_slice(found: Json, service: Json, port: Json) -> bool:
    own = labels_of(found).get(SERVICE_NAME) == service["metadata"]["name"] and _namespace(found) == _namespace(service)
    has_port = any((one.get("name") or "") == (port.get("name") or "") for one in found.get("ports") or ())
    ready = any((one.get("conditions") or {}).get("ready") is not False for one in found.get("endpoints") or ())
    return own and has_port and ready


def _ours(facts: ClusterFacts) -> list[Json]:
    """Services that select an extender."""
    return [one for one in facts.services or () if is_extender((one.get("spec") or {}).get("selector") or {})]


def _is_of_a_node(facts: ClusterFacts, host: str) -> bool:
    if host == "localhost" or (_is_address(host) and ip_address(host).is_loopback):
        return True
    return any(
        host == one.get("address") for node in facts.nodes for one in (node.get("status") or {}).get("addresses") or ()
    )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _ports(service: Json) -> list[Json]:
    return list((service.get("spec") or {}).get("ports") or ())


def _namespace(thing: Json) -> str:
    return str((thing.get("metadata") or {}).get("namespace") or "")


def _title(thing: Json) -> str:
    return f"{_namespace(thing)}/{thing['metadata']['name']}"
