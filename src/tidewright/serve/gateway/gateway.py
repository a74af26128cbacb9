"""The gateway as a whole: a pool for each service, replicas as they come and go, and scaling."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..replica.link import BatchDone, Leaving
from .measures import GatewayMeasures
from .pool import ServicePool
from .replica_link import ReplicaLink, ReplicaServer
from .scaling import Scaling, ServiceController
from .start_images import StartImages


def monotonic_us() -> int:
    """Microseconds that steps of the wall clock do not touch."""
    return time.monotonic_ns() // 1000


class Gateway:
    """``path``: of the socket of replicas. Must be made in a running event loop."""

    def __init__(self, path: Path, controller: ServiceController | None) -> None:
        self.measures = GatewayMeasures()
        self._pools: dict[str, ServicePool] = {}
        self.scaling = Scaling(controller, self._pools, monotonic_us)
        self._images = StartImages(self.scaling.known_service, self.scaling.take_image, monotonic_us)
        self.replicas = ReplicaServer(path, self._joined, self._said, self._lost)

    def pool(self, name: str) -> ServicePool | None:
        """The pool of a service that has had a replica, or that the controller knows."""
        self._forget_gone(name)
        if name not in self._pools and name in self.scaling.known:
            self._made(name)
        return self._pools.get(name)

    def _forget_gone(self, name: str) -> None:
        """A service that was deleted is no longer one here once it has no replica."""
        if name in self._pools and self.scaling.is_gone(name) and self._pools[name].is_empty:
            del self._pools[name]

    def _made(self, name: str) -> ServicePool:
        self._pools[name] = ServicePool(name, monotonic_us, self.measures.of(name), self.scaling.end)
        return self._pools[name]

    def _joined(self, link: ReplicaLink) -> None:
        name = link.hello.options.service
        if self._images.choose(link):
            return
        (self._pools.get(name) or self._made(name)).join(link)

    def _said(self, link: ReplicaLink, message: BatchDone | Leaving) -> None:
        pool = self._pools.get(link.hello.options.service)
        if pool is not None:
            pool.said(link, message)

    def _lost(self, link: ReplicaLink) -> None:
        if not self._images.closed(link):
            pool = self._pools.get(link.hello.options.service)
            if pool is not None:
                pool.lost(link)

    def status(self) -> dict[str, Any]:
        """What ``tide serve top`` shows."""
        for name in list(self._pools):
            self._forget_gone(name)
        return {
            "services": [
                {
                    "name": name, "replicas": pool.replicas, "waiting": pool.waiting(), "requests": pool.requests,
                    **self._restarts(name),
                }
                for name, pool in sorted(self._pools.items())
            ]
        }  # fmt: skip

    def _restarts(self, name: str) -> dict[str, Any]:
        """As the controller last said."""
        view = self.scaling.known_service(name)
        return {"restarts": view.restarts if view else 0, "last_end": view.last_end if view else ""}
