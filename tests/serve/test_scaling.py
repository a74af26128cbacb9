"""When the gateway asks the controller for replicas, at a controller that writes down what it is asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tidewright.base.errors import Unreachable, UsageError
from tidewright.base.units import MINUTE, SECOND
from tidewright.serve.gateway.measures import GatewayMeasures
from tidewright.serve.gateway.pool import ServicePool
from tidewright.serve.gateway.scaling import Scaling
from tidewright.serve.profile import affine
from tidewright.serve.protocol.signature import ModelSignature
from tidewright.serve.replica.link import ReplicaHello, ServingOptions
from tidewright.wire.services import ServiceList, ServiceView

PROFILE = affine(1_000, 9_000, 8)
OBJECTIVE_US = 100_000


@dataclass
class Controller:
    """``refuses``: what calls raise."""

    wanted: int = 1
    refuses: Exception | None = None
    calls: list[int] = field(default_factory=list)
    lists: int = 0
    scale_down_us: int = MINUTE

    def services(self) -> ServiceList:
        self.lists += 1
        view = ServiceView(
            name="m", state="ready", version=1, wanted=self.wanted, running=1, min_replicas=1, max_replicas=4, tier="premium",
            devices=1, since=0, scale_down_us=self.scale_down_us,
        )  # fmt: skip
        return ServiceList(services=(view,), now=0)

    def scale_service(self, name: str, replicas: int) -> object:
        self.calls.append(replicas)
        if self.refuses is not None:
            raise self.refuses
        self.wanted = replicas
        return object()

    def replica_ready(self, name: str, job: int, attempt: int) -> object:
        raise AssertionError("no replica is here")

    take_service_image = replica_ready

    def cancel(self, ref: int) -> object:
        raise AssertionError("nothing hangs")


@dataclass(eq=False)
class Link:
    """A replica that takes batches and never answers."""

    hello: ReplicaHello

    def send(self, requests: object) -> None: ...


class Rig:
    """Scaling of one service with one replica and so many requests that wait. Made in a running event loop."""

    def __init__(self, controller: Controller) -> None:
        self.now_us = MINUTE
        self.pool = ServicePool("m", lambda: self.now_us, GatewayMeasures().of("m"), lambda job: None)
        self.waiting = 0
        self.pool.waiting_items = lambda: self.waiting  # type: ignore[method-assign]
        options = ServingOptions(service="m", model="app:m", objective_us=OBJECTIVE_US)
        samples = tuple((size, PROFILE.table().us[size]) for size in (1, 8))
        hello = ReplicaHello(1, 1, options, ModelSignature((), (), 8), samples)
        self.pool.join(Link(hello))  # type: ignore[arg-type]
        self.scaling = Scaling(controller, {"m": self.pool}, lambda: self.now_us)

    def spike(self) -> None:
        """Three times what a replica carries, for the time of an objective."""
        for _ in range(200):
            self.now_us += OBJECTIVE_US // 200
            self.waiting += 1
            self.pool.arrivals(self.now_us, False, 1)


async def until(true: object) -> None:
    while not true():  # type: ignore[operator]
        await asyncio.sleep(0.001)


def test_a_surge_does_not_wait_for_the_next_look() -> None:
    async def check() -> None:
        controller = Controller()
        rig = Rig(controller)
        running = asyncio.ensure_future(rig.scaling.run())
        await until(lambda: controller.lists)
        rig.spike()
        await asyncio.wait_for(until(lambda: controller.calls), 20)
        running.cancel()
        assert controller.calls == [4] and controller.lists == 1
        assert rig.scaling.known["m"].wanted == 4

    asyncio.run(check())


def test_a_call_that_was_refused_is_made_again() -> None:
    async def check() -> None:
        for refuses in (Unreachable("away", "start it"), UsageError("no", "ask for less")):
            controller = Controller(refuses=refuses)
            rig = Rig(controller)
            await rig.scaling.look()
            rig.spike()
            await rig.scaling.meet_surges()
            assert controller.calls == [4] and rig.scaling.known["m"].wanted == 1
            rig.pool.arrivals(rig.now_us, True, 1)
            controller.refuses = None
            await rig.scaling.meet_surges()
            assert controller.calls == [4, 4] and rig.scaling.known["m"].wanted == 4

    asyncio.run(check())


def test_requests_that_are_refused_are_a_surge_however_few_wait() -> None:
    async def check() -> None:
        for per_second, calls in ((1_500, [4]), (60, [2])):
            controller = Controller()
            rig = Rig(controller)
            await rig.scaling.look()
            for _ in range(per_second // 10):
                rig.now_us += SECOND // per_second
                rig.pool.arrivals(rig.now_us, True, 1)
            await rig.scaling.meet_surges()
            assert controller.calls == calls

    asyncio.run(check())


def test_a_steady_load_makes_no_surge() -> None:
    async def check() -> None:
        controller = Controller()
        rig = Rig(controller)
        await rig.scaling.look()
        for _ in range(100):
            rig.now_us += SECOND // 100
            rig.pool.arrivals(rig.now_us, False, 1)
        await rig.scaling.meet_surges()
        assert not controller.calls

    asyncio.run(check())


def test_a_peak_is_kept_for_as_long_as_the_service_says() -> None:
    async def check() -> None:
        for delay_us in (5 * SECOND, 20 * SECOND):
            controller = Controller(scale_down_us=delay_us)
            rig = Rig(controller)
            await rig.scaling.look()
            rig.spike()
            await rig.scaling.meet_surges()
            began, rig.waiting = rig.now_us, 0
            while controller.wanted > 1:
                rig.now_us += SECOND // 2
                await rig.scaling.look()
            assert controller.calls == [4, 1]
            assert delay_us <= rig.now_us - began <= delay_us + 12 * SECOND  # the forecast forgets the peak meanwhile

    asyncio.run(check())
