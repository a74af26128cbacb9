"""The gateway while its controller is away, and when services go."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidewright.base.errors import NotFound, Unreachable
from tidewright.serve.gateway.gateway import Gateway
from tidewright.serve.gateway.infer import find_pool
from tidewright.serve.gateway.pool import Unavailable
from tidewright.serve.protocol.signature import ModelSignature
from tidewright.serve.replica.link import ReplicaHello, ServingOptions
from tidewright.wire.services import ReplicaView, ServiceList, ServiceView


@dataclass
class Lists:
    """A controller with one service, "m", of one replica, job 7."""

    away: bool = False
    services_there: bool = True
    state: str = "running"
    cancelled: list[int] = field(default_factory=list)

    def services(self) -> ServiceList:
        self._answer()
        view = ServiceView(
            name="m", state="ready", version=1, wanted=1, running=1, min_replicas=1, max_replicas=1, tier="premium", devices=1,
            since=0, restarts=3, last_end="killed", replicas=(ReplicaView(job=7, name="m-1", state=self.state, version=1),),
        )  # fmt: skip
        return ServiceList(services=(view,) if self.services_there else (), now=0)

    def cancel(self, ref: int) -> object:
        self._answer()
        self.cancelled.append(ref)
        return object()

    def _answer(self) -> None:
        if self.away:
            raise Unreachable("no controller answers")

    def scale_service(self, name: str, replicas: int) -> object:
        raise AssertionError("its number is fixed")

    replica_ready = take_service_image = scale_service


class Link:
    """A replica that is there."""

    def __init__(self) -> None:
        self.hello = ReplicaHello(7, 1, ServingOptions("m", "app:m"), ModelSignature((), (), 1), ((1, 1000),))


def test_a_replica_that_hangs_is_ended_once_the_controller_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        controller = Lists()
        scaling = Gateway(tmp_path / "serve.sock", controller).scaling
        await scaling.look()
        controller.away = True
        scaling.end(7)
        for _ in range(3):
            await scaling.look()
        assert controller.cancelled == []
        controller.away = False
        await scaling.look()
        assert controller.cancelled == [7]
        controller.state = "stopping"
        await scaling.look()
        await scaling.look()
        assert controller.cancelled == [7]

    with caplog.at_level(logging.WARNING):
        asyncio.run(check())
    assert [record.getMessage() for record in caplog.records] == [
        "the controller is away, so nothing is scaled: no controller answers"
    ]


def test_a_service_is_forgotten_when_it_is_deleted_and_its_last_replica_has_left(tmp_path: Path) -> None:
    async def check() -> None:
        controller, link = Lists(), Link()
        gateway = Gateway(tmp_path / "serve.sock", controller)
        with pytest.raises(Unavailable):
            find_pool(gateway, "m", "1")
        joined: Any = link
        gateway._joined(joined)
        await gateway.scaling.look()
        (shown,) = gateway.status()["services"]
        assert (shown["replicas"], shown["restarts"], shown["last_end"]) == (1, 3, "killed")
        controller.services_there = False
        await gateway.scaling.look()
        assert gateway.pool("m") is not None
        gateway._lost(joined)
        with pytest.raises(NotFound):
            find_pool(gateway, "m", "1")
        assert gateway.status() == {"services": []}
        gateway._lost(joined)

    asyncio.run(check())


def test_a_request_that_waits_for_a_first_replica_ends_when_the_service_is_deleted(tmp_path: Path) -> None:
    async def check() -> None:
        controller = Lists()
        gateway = Gateway(tmp_path / "serve.sock", controller)
        await gateway.scaling.look()
        pool = find_pool(gateway, "m", "1")
        waiting = asyncio.ensure_future(pool.first_replica(60))
        await asyncio.sleep(0)
        assert pool.awaiting_first == 1
        controller.services_there = False
        await gateway.scaling.look()
        with pytest.raises(NotFound, match="deleted"):
            await waiting
        controller.services_there = True
        await gateway.scaling.look()
        again = asyncio.ensure_future(find_pool(gateway, "m", "1").first_replica(60))
        await asyncio.sleep(0)
        joined: Any = Link()
        gateway._joined(joined)
        await again

    asyncio.run(check())
