"""Times and versions as Kubernetes writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

CDI_FROM = (1, 29)
"""Kubelets from here on pass CDI names on from device plugins (KEP-4009, feature DevicePluginCDIDevices, beta)."""


def now() -> str:
    """A MicroTime (RFC 3339 with six digits, UTC)."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds(stamp: str) -> float:
    """Since 1970. Raises ValueError for what is no time in RFC 3339."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def release(text: str) -> tuple[int, int]:
    """Major and minor number of ``v1.36.2``; (0, 0) when it does not begin so."""
    found = re.match(r"v?([0-9]{1,4})\.([0-9]{1,4})", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
