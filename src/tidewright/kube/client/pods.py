"""Requests about one pod."""

from __future__ import annotations

from typing import Any

from .api import ApiError, KubeClient


async def current_pod(api: KubeClient, path: str, uid: str) -> dict[str, Any] | None:
    """The pod as it is now; None when it is gone, or another has its name. Raises ApiError, NoAnswer."""
    try:
        found = await api.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found if (found.get("metadata") or {}).get("uid") == uid else None


def pod_path(namespace: str, name: str) -> str:
    """Of a pod in the API."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
