"""Put the Kubernetes webhook together."""

from __future__ import annotations

import asyncio
from typing import Any

from ...kube.allocation.units import UnitSize
from ...kube.client.credentials import find_cluster
from ...kube.isolation.ladder import ALL_SMS
from ...kube.webhook.conversion import ConversionSettings
from ...kube.webhook.server import WebhookService, WebhookSettings
from ..service import log_line, until_stopped
from .cluster import ClusterTarget


def serve_webhook(
    target: ClusterTarget, unit: str, chunk: int, device_class: str, percent: int | None, **options: Any
) -> None:  # fmt: skip
    """Until SIGTERM or SIGINT; what happens goes to standard error, a line each. ``percent``: None for what the driver gives
    by default; ``options``: of WebhookSettings.

    Raises UsageError for what will never work, such as a key that others may read.
    """
    terms = ConversionSettings(UnitSize.of(unit, chunk), device_class, percent or ALL_SMS)
    settings = WebhookSettings(terms=terms, **options)
    asyncio.run(until_stopped(WebhookService(find_cluster(target.kubeconfig, target.context), settings, log_line)))
