"""Put the Kubernetes DRA driver together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...devices.excess import Rules
from ...kube.client.credentials import find_cluster
from ...kube.dra.service import DraService, DraSettings
from ...kube.isolation.isolation_levels import IsolationSettings
from ...kube.node.discovery import open_partitions
from ..service import log_line, until_stopped
from .cluster import ClusterTarget


def serve_dra(
    target: ClusterTarget,
    fake: str,
    mig: str,
    *,
    excess: Mapping[str, Any],
    isolation: Mapping[str, Any],
    **options: Any,
) -> None:
    """Until SIGTERM or SIGINT; what happens goes to standard error, a line each. ``options``: of DraSettings; ``excess``: of
    the watchdog's Rules; ``isolation``: of IsolationSettings.

    Raises UsageError for what will never work, WorldError without GPUs.
    """
    settings = DraSettings(rules=Rules(**excess), isolation=IsolationSettings(**isolation), **options)
    cluster = find_cluster(target.kubeconfig, target.context)
    gpus, partitions = open_partitions(fake, mig)
    asyncio.run(until_stopped(DraService(cluster, settings, gpus, partitions, log_line)))
