"""List what ``tide kube doctor`` looks at, then let the checks judge. Reads only; an access review creates nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from ..kube.api import CONFIG_MAPS, NODES, PODS, Api, ApiError
from ..kube.credentials import Cluster, find_cluster
from ..kube.doctor import examine
from ..kube.doctor_facts import Facts, Finding, Right, readable, role_of
from ..kube.shapes import ConfigMap, Node, Pod
from .kube import Target

REVIEWS = "/apis/authorization.k8s.io/v1"


def diagnose(target: Target, account: str = "") -> list[Finding]:
    """Every finding. ``account``: whose rights to check, such as ``system:serviceaccount:kube-system:tidewright-extender``;
    empty: those of whoever asks. Raises NoAnswer when there is no cluster."""
    return asyncio.run(_diagnose(find_cluster(target.kubeconfig, target.context), account))


async def _diagnose(cluster: Cluster, account: str) -> list[Finding]:
    async with Api(cluster) as api:
        return examine(await collect(api, account))


async def collect(api: Api, account: str = "") -> Facts:
    """What may not be read is left out and named."""
    version = await api.get("/version")
    unread: list[str] = []
    groups, nodes, pods, maps, rights = await asyncio.gather(
        _groups(api, unread), _all(api, NODES, unread), _all(api, PODS, unread), _all(api, CONFIG_MAPS, unread),
        _rights(api, role_of(account).rights, account, unread),
    )  # fmt: skip
    return Facts(
        version, groups, readable(nodes, Node), readable(pods, Pod), readable(maps, ConfigMap), rights, tuple(unread),
        account, time.time(),
    )  # fmt: skip


async def _all(api: Api, path: str, unread: list[str]) -> list[dict[str, Any]]:
    try:
        return await api.items(path)
    except ApiError as error:
        unread.append(f"{path} ({error.reason or error.status})")
        return []


async def _groups(api: Api, unread: list[str]) -> dict[str, tuple[str, ...]]:
    try:
        found = (await api.get("/apis")).get("groups") or ()
    except ApiError as error:
        unread.append(f"/apis ({error.reason or error.status})")
        return {}
    return {
        str(one.get("name")): tuple(str(each.get("version")) for each in one.get("versions") or ()) for one in found
    }


async def _rights(api: Api, asked: Iterable[Right], account: str, unread: list[str]) -> dict[Right, bool]:
    """One review each; those that may not be asked for are left out."""
    listed = tuple(asked)
    try:
        granted = await asyncio.gather(*(_granted(api, right, account) for right in listed))
    except ApiError as error:
        unread.append(f"rights ({error.reason or error.status})")
        return {}
    return dict(zip(listed, granted, strict=True))


async def _granted(api: Api, right: Right, account: str) -> bool:
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
