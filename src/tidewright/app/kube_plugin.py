"""Put the Kubernetes device plugin together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ..kube.credentials import find_cluster
from ..kube.gpus import open_gpus
from ..kube.station import PluginSettings, Station
from ..kube.units import Split
from ..kube.watchdog import Rules
from .kube import Target, say, until_stopped


def serve_plugin(
    target: Target, fake: str, unit: str, chunk: int, folder: Path, cdi: Path, *,
    excess: tuple[str, int, float, float], **options: Any,
) -> None:  # fmt: skip
    """Until SIGTERM or SIGINT; what happens goes to standard error, a line each. ``options``: of PluginSettings;
    ``excess``: the fields of the watchdog's Rules.

    Raises UsageError for what will never work, WorldError without GPUs.
    """
    settings = PluginSettings(split=Split.of(unit, chunk), folder=folder, cdi=cdi, rules=Rules(*excess), **options)
    cluster = find_cluster(target.kubeconfig, target.context)
    asyncio.run(until_stopped(Station(cluster, settings, open_gpus(fake), say)))
