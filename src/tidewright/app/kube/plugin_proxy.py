"""Put the proxy of the Kubernetes device plugin together."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...kube.plugin.plugin_proxy import PluginProxy, ProxySettings
from ..service import log_line, until_stopped


def serve_proxy(folder: Path) -> None:
    """Until SIGTERM or SIGINT; what happens goes to standard error, a line each. Raises UsageError without grpcio."""
    asyncio.run(until_stopped(PluginProxy(ProxySettings(folder), log_line)))
