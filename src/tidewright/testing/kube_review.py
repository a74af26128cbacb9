"""Access reviews of the fake API server: who may do what, as a test says.

Source: authorization.k8s.io/v1, SelfSubjectAccessReview and SubjectAccessReview.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Object = dict[str, Any]


def reviewed(body: Object, refused: Collection[tuple[str, ...]]) -> Object:
    """``body`` with its status. ``refused``: (verb, resource) that none may, and (verb, resource, user) that one may not."""
    asked, user = body["spec"]["resourceAttributes"], body["spec"].get("user", "")
    what = asked["verb"], "/".join(asked[part] for part in ("resource", "subresource") if part in asked)
    return {**body, "status": {"allowed": what not in refused and (*what, user) not in refused}}
