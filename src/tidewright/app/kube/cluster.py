"""Put together what runs in or beside a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base.errors import UsageError
from ...kube.client.api import CONFIG_MAPS, NODES, PODS, ApiError, KubeClient
from ...kube.client.credentials import Cluster, find_cluster
from ...kube.doctor.inspect_tables import Inspection, as_json, details, summary
from ...kube.doctor.inspect_wide import wide, wide_details
from ...kube.extender.server import ExtenderService, ExtenderSettings
from ...kube.objects.gpu_inventory import unhealthy_by_node
from ..service import log_line, until_stopped


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """Which cluster; empty: as kubectl finds it."""

    kubeconfig: str = ""
    context: str = ""


def serve_extender(target: ClusterTarget, token_file: Path | None, **options: Any) -> None:
    """Until SIGTERM or SIGINT; what happens goes to standard error, a line each. ``options``: of ExtenderSettings."""
    settings = ExtenderSettings(**options, token=read_token(token_file))
    service = ExtenderService(find_cluster(target.kubeconfig, target.context), settings, log_line)
    try:
        import uvloop
    except ImportError as error:
        raise UsageError("serving the scheduler needs uvloop", "pip install 'tidewright[kube]'") from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # a fifth less CPU time per pod
        runner.run(until_stopped(service))


def read_token(path: Path | None) -> str:
    """The bearer token in a file that no other user may read. Raises UsageError."""
    if path is None:
        return ""
    try:
        mode, token = stat.S_IMODE(os.stat(path).st_mode), path.read_text().strip()
    except OSError as error:
        raise UsageError(f"the token cannot be read: {error}", "write one line into the file") from error
    if mode & 0o077:
        raise UsageError(f"others may read {path} (mode {mode:04o})", f"chmod 600 {path}")
    if not token:
        raise UsageError(f"{path} is empty", "write the token into it")
    return token


def inspect_cluster(target: ClusterTarget, node: str, form: str, width: int = 0) -> tuple[str, tuple[str, ...]]:
    """The sharing of all GPUs or of those of ``node`` as text, and what was passed over. ``form``: summary, details, wide,
    wide details, json. The two that are gpushare's ask for nothing that gpushare's did not ask, and are at most ``width``
    wide, if that is given."""
    health = form in ("wide", "json")
    found = asyncio.run(_inspect(find_cluster(target.kubeconfig, target.context), health))
    if node:
        found = found.only(node)
    if form == "json":
        return json.dumps(as_json(found), indent=2) + "\n", found.odd
    if form == "wide":
        return wide(found, time.time()), found.odd
    if form == "wide details":
        return wide_details(found), found.odd
    return (details(found, width=width) if form == "details" else summary(found, width=width)), found.odd


async def _inspect(cluster: Cluster, health: bool) -> Inspection:
    async with KubeClient(cluster) as api:
        nodes, pods, (unhealthy, odd) = await asyncio.gather(api.items(NODES), api.items(PODS), _unhealthy(api, health))
        found = Inspection.of(nodes, pods, unhealthy)
        return replace(found, odd=(*found.odd, *odd))


async def _unhealthy(api: KubeClient, wanted: bool) -> tuple[dict[str, frozenset[int]], tuple[str, ...]]:
    """GPUs not to be used by node, and what could not be read."""
    if not wanted:
        return {}, ()
    try:
        return unhealthy_by_node(await api.items(CONFIG_MAPS)), ()
    except ApiError as error:
        return {}, (f"the lists of unhealthy GPUs: {error}",)
