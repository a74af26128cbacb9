"""Put the Kubernetes device plugin together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...devices.excess import Rules
from ...kube.allocation.units import UnitSize
from ...kube.client.credentials import find_cluster
from ...kube.isolation.isolation_levels import IsolationSettings
from ...kube.node.discovery import open_gpus
from ...kube.plugin.service import PluginService, PluginSettings
from ..respawn import respawning
from ..service import log_line, until_stopped
from .cluster import ClusterTarget

NUMBERS = ".tidewright-instances"
"""Beside our CDI files: no runtime reads it there, and it lives as long as instances do."""


def serve_plugin(
    target: ClusterTarget, fake: str, unit: str, chunk: int, *, excess: Mapping[str, Any], isolation: Mapping[str, Any],
    respawn: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Until SIGTERM or SIGINT; what happens goes to standard error, a line each. ``options``: of PluginSettings; ``excess``:
    of the watchdog's Rules; ``isolation``: of IsolationSettings; ``respawn``: in a child process that is replaced when it is
    killed or crashes.

    Raises UsageError for what will never work, WorldError without GPUs.
    """
    if respawn:
        respawning(lambda line: log_line(f"the device plugin {line}"))
    rules, ladder = Rules(**excess), IsolationSettings(**isolation)
    settings = PluginSettings(split=UnitSize.of(unit, chunk), rules=rules, isolation=ladder, **options)
    cluster = find_cluster(target.kubeconfig, target.context)
    gpus = open_gpus(fake, settings.cdi / NUMBERS)
    asyncio.run(until_stopped(PluginService(cluster, settings, gpus, log_line)))
