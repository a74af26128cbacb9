"""An extender against a fake API server, both on sockets of the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tidewright.kube.allocation.pool import Pool
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.extender.cluster_cache import ClusterCache
from tidewright.kube.extender.server import ExtenderService, ExtenderSettings
from tidewright.testing.kube_api import FakeApi

PATIENCE_S = 20.0


@dataclass
class Extending:
    """A served extender. ``logged``: its log lines."""

    service: ExtenderService
    session: aiohttp.ClientSession
    logged: list[str] = field(default_factory=list)
    killed: bool = False

    @property
    def cluster_cache(self) -> ClusterCache:
        assert self.service.extender.cluster_cache is not None
        return self.service.extender.cluster_cache

    @property
    def pool(self) -> Pool:
        return self.cluster_cache.handler.chooser.pool

    async def heard(self, *pods: dict[str, Any]) -> None:
        """Until it knows of them."""
        await until(lambda: all(self.cluster_cache.pod(one["metadata"]["uid"]) for one in pods))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.service.address[1]}"

    async def ask(self, verb: str, body: Any, status: int = 200) -> Any:
        data = body if isinstance(body, bytes) else None
        async with self.session.post(
            f"{self.url}/gpushare-scheduler/{verb}", data=data, json=None if data is not None else body
        ) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return await answer.json()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.text()

    async def filter(self, pod: dict[str, Any], nodes: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        return found

    async def bind(self, pod: dict[str, Any], node: str) -> str:
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return str((await self.ask("bind", body))["Error"])

    async def kill(self) -> None:
        """As kill -9: not another byte reaches the API server, the lease is not given back."""
        assert self.service.api._session is not None
        self.killed = True
        await self.service.api._session.close()
        self.service.stop()

    async def ready(self) -> None:
        await until(lambda: self.service.extender.cluster_cache is not None)


async def until(true: Any) -> None:
    """Until ``true()``; fails when that takes far too long."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def extending(api: FakeApi | Cluster, ready: bool = True, **settings: Any) -> AsyncIterator[Extending]:
    """One replica, ended in an orderly way."""
    logged: list[str] = []
    cluster = api if isinstance(api, Cluster) else Cluster(api.url)
    service = ExtenderService(cluster, ExtenderSettings(port=0, **settings), logged.append)
    running = asyncio.create_task(service.run())
    async with aiohttp.ClientSession() as session:
        found = Extending(service, session, logged)
        try:
            await service.listening.wait()
            if ready:
                await found.ready()
            yield found
        finally:
            service.stop()
            with suppress(RuntimeError, ExceptionGroup) if found.killed else nullcontext():
                await running
