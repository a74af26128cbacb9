"""A kubelet, the proxy that it knows, the device plugin behind that, and an API server beside it; any of them may end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kube.extending import until
from tests.kube.test_plugin_pure import assumed
from tests.kube.test_plugin_served import NODE, Plugged
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.node.gpus import FakeGpus
from tidewright.kube.plugin.plugin_proxy import PluginProxy, ProxySettings
from tidewright.kube.plugin.service import PluginService, PluginSettings
from tidewright.testing.kube_api import FakeApi
from tidewright.testing.kubelet import Made, kubelet_in


@dataclass
class Proxied(Plugged):
    """A node n. ``proxy_log``: of the proxy; ``logged``: of the plugin."""

    settings: PluginSettings = field(default_factory=lambda: PluginSettings("n"))
    proxy: PluginProxy = field(init=False)
    proxy_log: list[str] = field(default_factory=list)
    plugin_task: asyncio.Task[None] | None = None
    proxy_task: asyncio.Task[None] | None = None

    def start_plugin(self, spec: str = "2x15", **changes: Any) -> None:
        self.gpus = FakeGpus(spec)
        chosen = PluginSettings("n", **{**_fields(self.settings), **changes})
        self.plugin_service = PluginService(Cluster(self.api.url), chosen, self.gpus, self.logged.append)
        self.plugin_task = asyncio.create_task(self.plugin_service.run())

    def start_proxy(self, **changes: Any) -> None:
        settings = ProxySettings(self.settings.folder, **{"poll_s": 0.05, "linger_s": 0.0, **changes})
        self.proxy = PluginProxy(settings, self.proxy_log.append)
        self.proxy_task = asyncio.create_task(self.proxy.run())

    async def kill_plugin(self) -> None:
        """As kill -9: no farewell, and the socket's file stays."""
        plugin_service = self.plugin_service
        plugin_service._farewell = lambda: plugin_service.registration.end(0)  # type: ignore[method-assign]
        await _killed(self.plugin_task)

    async def kill_proxy(self) -> None:
        proxy = self.proxy
        proxy._farewell = lambda: proxy.registration.end(0)  # type: ignore[method-assign]
        await _killed(self.proxy_task)

    async def restart_proxy(self, **changes: Any) -> None:
        """With other settings."""
        await self.kill_proxy()
        await until(lambda: not self.kubelet.health and not self.registered())
        self.start_proxy(**changes)
        await until(lambda: self.kubelet.health and self.registered())

    async def stop_plugin(self) -> None:
        """As SIGTERM."""
        self.plugin_service.stop()
        assert self.plugin_task is not None
        await self.plugin_task

    async def admitted(self, name: str, gpu: int, size: int = 2) -> str:
        """A pod that was bound to this GPU, and that the kubelet took; its uid."""
        one = assumed(name, size, at=len(self.kubelet.made) + 1, gpu=gpu)
        await self.api.create("pods", one)
        await self.kubelet.admit(one)
        return str(one["metadata"]["uid"])

    async def started(self, uid: str) -> dict[str, str]:
        """Its only container's environment."""
        made: Made = await self.kubelet.start_container(uid, "c0")
        return self.env(made.cdi[0])


def _fields(settings: PluginSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__slots__ if name != "node"}


async def _killed(task: asyncio.Task[None] | None) -> None:
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def proxied(info: dict[str, str] = NODE, ready: bool = True, **changes: Any) -> AsyncIterator[Proxied]:
    """Everything runs. ``changes``: of PluginSettings."""
    # Not pytest's folder: a socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="tide-") as name:
        folder = Path(name)
        settings = PluginSettings("n", **{
            "folder": folder, "cdi": folder / "cdi", "poll_s": 0.05, "health_s": 0.05, "beat_s": 5.0, "behind_proxy": True,
            **changes,
        })  # fmt: skip
        async with FakeApi().served() as api, kubelet_in(folder) as kubelet:
            status = {"capacity": {}, "allocatable": {}, "nodeInfo": info}
            await api.create("nodes", {"metadata": {"name": "n", "annotations": {}, "labels": {}}, "status": status})
            found = Proxied(api, kubelet, None, FakeGpus("1x1"), [], settings)  # type: ignore[arg-type]
            found.start_plugin()
            found.start_proxy()
            if ready:
                await kubelet.start()
                await until(lambda: kubelet.health and found.registered())
            try:
                yield found
            finally:
                await _ended(found)


async def _ended(found: Proxied) -> None:
    found.plugin_service.stop()
    found.proxy.stop()
    for task in (found.plugin_task, found.proxy_task):
        with suppress(asyncio.CancelledError):
            assert task is not None
            await task
