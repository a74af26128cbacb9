"""List what ``tide kube doctor`` looks at, then let the checks judge. Reads only; an access review creates nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...kube.client.api import CONFIG_MAPS, NODES, PODS, ApiError, KubeClient
from ...kube.client.credentials import Cluster, find_cluster
from ...kube.doctor.elections import LOOK_AGAIN_S, configured, elections, looks_old
from ...kube.doctor.examine import examine
from ...kube.doctor.facts import (
    ROLES,
    SERVICE_ACCOUNT,
    SYSTEM,
    AccessRight,
    CheckResult,
    ClusterFacts,
    readable,
    role_of,
)
from ...kube.doctor.pods import sample, silent
from ...kube.objects.metadata import Json
from ...kube.objects.schema import ConfigMap, Node, Pod
from .cluster import ClusterTarget

REVIEWS = "/apis/authorization.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1"
LISTED = (
    NODES, PODS, CONFIG_MAPS, "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices",
    f"/apis/apps/v1/namespaces/{SYSTEM}/deployments", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts",
)  # fmt: skip
NOT_FOUND = 404
MOST_PODS = 20
"""Whose events are asked for, one request each."""


def diagnose(target: ClusterTarget, account: str = "") -> list[CheckResult]:
    """Every finding. ``account``: whose rights to check, such as ``system:serviceaccount:kube-system:tidewright-extender``;
    empty: the existing ones of our service accounts, or the caller's own where none exists. Raises NoAnswer without a cluster.
    """
    return asyncio.run(_diagnose(find_cluster(target.kubeconfig, target.context), account))


async def _diagnose(cluster: Cluster, account: str) -> list[CheckResult]:
    async with KubeClient(cluster) as api:
        return examine(await collect(api, account))


async def collect(api: KubeClient, account: str = "") -> ClusterFacts:
    """What may not be read is left out and named."""
    version = await api.get("/version")
    unread: list[str] = []
    groups, nodes, pods, maps, services, slices, deployments, accounts = await asyncio.gather(
        _groups(api, unread), *(_all(api, path, unread) for path in LISTED)
    )
    facts = ClusterFacts(
        version, groups, readable(nodes or (), Node), readable(pods or (), Pod), readable(maps or (), ConfigMap),
        now_s=time.time(), services=services, slices=slices, deployments=deployments or (),
    )  # fmt: skip
    asked = [account] if account else _accounts(facts, accounts or ()) or [""]
    wanted = elections(facts)
    reviews = {one: await _rights(api, role_of(one, configured(facts)).rights, one, unread) for one in asked}
    leases, renewed = await _leases(api, wanted, facts.now_s, unread)
    has_events = await _read_events(api, sample(silent(facts.pods, facts.now_s), MOST_PODS), unread)
    return replace(facts, reviews=reviews, leases=leases, renewed=renewed, has_events=has_events, unread=tuple(unread))


def _accounts(facts: ClusterFacts, listed: Iterable[dict[str, Any]]) -> list[str]:
    """Those of our programs that exist in kube-system, or that a pod there uses. Our manifests bind no others, so an account of
    the same name in another namespace is not ours."""
    found = {str(one["metadata"]["name"]) for one in listed}
    for pod in facts.pods:
        if (pod.get("metadata") or {}).get("namespace") == SYSTEM:
            found.add(str((pod.get("spec") or {}).get("serviceAccountName", "")))
    return [f"{SERVICE_ACCOUNT}{SYSTEM}:{name}" for name in sorted(found & ROLES.keys())]


async def _leases(
    api: KubeClient, wanted: Iterable[tuple[str, str]], now_s: float, unread: list[str]
) -> tuple[dict[tuple[str, str], dict[str, Any] | None], frozenset[tuple[str, str]]]:
    """Each, and those that were renewed while we looked: only ones that seem old are looked at twice."""
    found = await _each_lease(api, wanted, unread)
    suspects = [key for key, lease in found.items() if lease is not None and looks_old(lease, now_s)]
    if not suspects:
        return found, frozenset()
    await asyncio.sleep(LOOK_AGAIN_S)
    again = await _each_lease(api, suspects, unread)
    return found, frozenset(key for key in again if _version(again[key]) != _version(found[key]))


async def _each_lease(
    api: KubeClient, wanted: Iterable[tuple[str, str]], unread: list[str]
) -> dict[tuple[str, str], dict[str, Any] | None]:
    found: dict[tuple[str, str], dict[str, Any] | None] = {}
    for namespace, name in wanted:
        try:
            found[namespace, name] = await api.get(f"{LEASES}/namespaces/{namespace}/leases/{name}")
        except ApiError as error:
            if error.status == NOT_FOUND:
                found[namespace, name] = None
            else:
                unread.append(f"Lease {namespace}/{name} ({error.reason or error.status})")
    return found


def _version(lease: dict[str, Any] | None) -> str:
    return "" if lease is None else str(lease["metadata"].get("resourceVersion", ""))


async def _read_events(api: KubeClient, pods: Iterable[Json], unread: list[str]) -> dict[str, bool]:
    """Whether each has an event, by uid; without those that could not be read."""
    found = {}
    for pod in pods:
        meta = pod["metadata"]
        uid, namespace = str(meta.get("uid", "")), str(meta.get("namespace", "default"))
        path = f"/api/v1/namespaces/{namespace}/events"
        try:
            events = (await api.get(path, fieldSelector=f"involvedObject.uid={uid}", limit="1")).get("items") or ()
        except ApiError as error:
            line = f"events of pods in {namespace} ({error.reason or error.status})"
            if line not in unread:
                unread.append(line)
            continue
        found[uid] = any((one.get("involvedObject") or {}).get("uid") == uid for one in events)
    return found


async def _all(api: KubeClient, path: str, unread: list[str]) -> tuple[dict[str, Any], ...] | None:
    try:
        return tuple(await api.items(path))
    except ApiError as error:
        unread.append(f"{path} ({error.reason or error.status})")
        return None


async def _groups(api: KubeClient, unread: list[str]) -> dict[str, tuple[str, ...]]:
    try:
        found = (await api.get("/apis")).get("groups") or ()
    except ApiError as error:
        unread.append(f"/apis ({error.reason or error.status})")
        return {}
    return {
        str(one.get("name")): tuple(str(each.get("version")) for each in one.get("versions") or ()) for one in found
    }


async def _rights(
    api: KubeClient, asked: Iterable[AccessRight], account: str, unread: list[str]
) -> dict[AccessRight, bool]:
    """One review each; those that may not be asked for are left out."""
    listed = tuple(asked)
    try:
        granted = await asyncio.gather(*(_granted(api, right, account) for right in listed))
    except ApiError as error:
        unread.append(f"rights{f' of {account}' if account else ''} ({error.reason or error.status})")
        return {}
    return dict(zip(listed, granted, strict=True))


async def _granted(api: KubeClient, right: AccessRight, account: str) -> bool:
    kind = "SubjectAccessReview" if account else "SelfSubjectAccessReview"
    spec: dict[str, Any] = {"resourceAttributes": right.attributes()}
    if account:
        spec |= {"user": account, "groups": _groups_of(account)}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = await api.post(f"{REVIEWS}/{kind.lower()}s", body)
    return bool((answer.get("status") or {}).get("allowed"))


def _groups_of(account: str) -> list[str]:
    """As the API server puts service accounts into groups."""
    found = ["system:authenticated"]
    parts = account.split(":")
    if account.startswith("system:serviceaccount:") and len(parts) == 4:
        found += ["system:serviceaccounts", f"system:serviceaccounts:{parts[2]}"]
    return found
