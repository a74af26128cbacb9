"""Which right of RBAC a request needs. Source: Kubernetes, "Determine the request verb"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidewright.kube.doctor.facts import AccessRight

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/(?P<ns>[^/]+))?/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def needed(asked: Iterable[tuple[str, str, bool]]) -> set[AccessRight]:
    """``asked``: (method, path, whether it is a watch). Access reviews need none."""
    found = set()
    for method, path, watch in asked:
        match = _PATH.fullmatch(path)
        assert match, path
        name, sub = match["name"] or "", match["sub"]
        verb = VERBS.get(method) or ("get" if name else "watch" if watch else "list")
        resource = match["kind"] + (f"/{sub}" if sub else "")
        # Pods lie in the users' namespaces and nodes in none: only what is kube-system's own is asked for by namespace.
        here = match["ns"] if match["ns"] == "kube-system" and resource in ("configmaps", "leases") else ""
        found.add(AccessRight(verb, resource, match["group"] or "", here or "", name if resource == "leases" else ""))
    return found


def granted(objects: Iterable[Mapping[str, Any]], account: str) -> Iterator[AccessRight]:
    """What roles bound to ``account`` of kube-system allow; a rule with names gives one right per name."""
    items = list(objects)
    for binding in items:
        if binding["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        if not any(one["name"] == account and one["namespace"] == "kube-system" for one in binding["subjects"]):
            continue
        role = next((one for one in items if (one["kind"], one["metadata"]["name"]) == _ref(binding)), None)
        if role is not None:
            yield from _rules(role, binding["metadata"].get("namespace", ""))


def missing(wanted: Iterable[AccessRight], have: Iterable[AccessRight]) -> set[AccessRight]:
    """Those that no granted one covers: all namespaces cover one, all names cover one."""
    listed = list(have)
    return {right for right in wanted if not any(_covers(one, right) for one in listed)}


def _covers(have: AccessRight, right: AccessRight) -> bool:
    same = (have.verb, have.resource, have.group) == (right.verb, right.resource, right.group)
    return same and have.namespace in ("", right.namespace) and have.name in ("", right.name)


def _ref(binding: Mapping[str, Any]) -> tuple[str, str]:
    return binding["roleRef"]["kind"], binding["roleRef"]["name"]


def _rules(role: Mapping[str, Any], namespace: str) -> Iterator[AccessRight]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield AccessRight(verb, resource, group, namespace, name)
