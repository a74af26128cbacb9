"""How many replicas each service has: asked of the autoscaler, done by the controller. Without a controller requests go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from ...base.errors import Conflict, NotFound, TideError, Unreachable, UsageError
from ...wire.services import ServiceList, ServiceView
from ..autoscale import Autoscaler, ScalingSettings
from ..replica.link import ReplicaHello, ServingOptions
from .pool import ServicePool, served_model

log = logging.getLogger("tidewright.gateway")
T = TypeVar("T")
LOOK_S = 1.0
SURGE_S = 0.05
"""Between two looks at services whose requests surge."""


class ServiceController(Protocol):
    """What is asked of the controller; ``tidewright.wire.client.Client`` is one. Calls may take seconds."""

    def services(self) -> ServiceList: ...

    def scale_service(self, name: str, replicas: int) -> object: ...

    def replica_ready(self, name: str, job: int, attempt: int) -> object: ...

    def take_service_image(self, name: str, job: int, attempt: int) -> object: ...

    def cancel(self, ref: int) -> object: ...


class Scaling:
    """Looks once a second, and at once at a service whose requests surge. ``wake`` starts the first replica of a service that is
    scaled to none."""

    def __init__(
        self, controller: ServiceController | None, pools: dict[str, ServicePool], clock: Callable[[], int]
    ) -> None:
        self._controller, self._pools, self._clock = controller, pools, clock
        self._scalers: dict[str, Autoscaler] = {}
        self._scaled_as: dict[str, ServingOptions] = {}
        self._lock = asyncio.Lock()
        self.known: dict[str, ServiceView] = {}
        """Services as the controller last listed them."""
        self._away = False
        self._listed = False
        self._hung: dict[int, bool] = {}
        """Jobs of replicas that are to be ended, until the controller lists them as running no more."""
        self._surging: dict[str, bool] = {}
        self._surge = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self.look()
            until = loop.time() + LOOK_S
            while (left := until - loop.time()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._surge.wait(), left)
                    await self.meet_surges()
                    await asyncio.sleep(SURGE_S)

    async def meet_surges(self) -> None:
        """Scale the services whose requests surge, as the controller last listed them: asking it again would take longer."""
        self._surge.clear()
        names, self._surging = list(self._surging), {}
        for name in names:
            if name in self.known:
                await self._rescale(self.known[name], surge=True)

    async def look(self) -> None:
        """List the services, and scale those whose number is to change."""
        listed = await self._ask(lambda controller: controller.services())
        if listed is None:
            return
        self.known = {one.name: one for one in listed.services if one.state != "deleting"}
        self._listed = True
        for name in list(self._scalers):
            if name not in self.known:
                del self._scalers[name]
        for name, pool in self._pools.items():
            if name not in self.known:
                pool.deleted()
        await self._end_hung(listed)
        for view in self.known.values():
            await self._report(view)
            await self._rescale(view)

    async def _rescale(self, view: ServiceView, surge: bool = False) -> None:
        wanted = self._wanted(view, surge)
        if wanted is not None and wanted != view.wanted:
            await self._scale(view.name, wanted)

    async def _report(self, view: ServiceView) -> None:
        """Tell the controller which of its replicas are here, where it does not know."""
        pool = self._pools.get(view.name)
        for replica in view.replicas if pool is not None else ():
            attempt = pool.attempt_of(replica.job) if pool is not None else None
            if not replica.ready and attempt is not None:
                await self._ready(view.name, replica.job, attempt)

    async def _ready(self, name: str, job: int, attempt: int) -> None:
        await self._ask(lambda controller: controller.replica_ready(name, job, attempt))

    def _wanted(self, view: ServiceView, surge: bool) -> int | None:
        """Replicas that it should have; None where that is fixed, or nothing is known of its model yet."""
        pool = self._pools.get(view.name)
        if not view.wanted and pool is not None and pool.awaiting_first:
            return 1  # it was scaled to none as the request came
        if view.min_replicas == view.max_replicas or pool is None or pool.hello is None or pool.router is None:
            return None
        settings = ScalingSettings(view.min_replicas, view.max_replicas, hold_us=view.scale_down_us)
        scaler = self._scalers.get(view.name)
        if scaler is None or scaler.settings != settings or self._scaled_as[view.name] != pool.hello.options:
            model = served_model(pool.hello)
            try:
                scaler = Autoscaler(model.profile.table(model.max_batch), model.objective_us, settings)
            except UsageError as error:
                log.warning("%s is not scaled: %s", view.name, error)
                return None
            self._scalers[view.name], self._scaled_as[view.name] = scaler, pool.hello.options
            pool.arrivals = self._follower(pool, scaler)
        now = self._clock()
        return scaler.decide(now, view.wanted, pool.router.waited_us(now), surge)

    def _follower(self, pool: ServicePool, scaler: Autoscaler) -> Callable[[int, bool, int], None]:
        def arrived(now_us: int, refused: bool, items: int) -> None:
            scaler.arrived(now_us, refused, items)
            if pool.name not in self._surging and scaler.surges(pool.waiting_items(), pool.replicas, refused):
                self._surging[pool.name] = True
                self._surge.set()

        return arrived

    async def wake(self, name: str) -> bool:
        """Start a replica of a service that has none. False where that is not possible."""
        view = self.known.get(name)
        if view is None or self._controller is None:
            return False
        if not view.wanted:
            await self._scale(name, 1)
        return True

    async def _scale(self, name: str, wanted: int) -> None:
        log.info("%s: scaled to %d", name, wanted)
        if await self._ask(lambda controller: controller.scale_service(name, wanted)) and name in self.known:
            self.known[name] = replace(self.known[name], wanted=wanted)

    async def _end_hung(self, listed: ServiceList) -> None:
        """Ask again for what was asked while the controller was away."""
        running = {one.job for service in listed.services for one in service.replicas if one.state == "running"}
        for job in list(self._hung):
            if job in running:
                await self._ask(lambda controller, job=job: controller.cancel(job))  # type: ignore[misc]
            else:
                del self._hung[job]

    @property
    def is_asked(self) -> bool:
        """Whether it is not known yet which services there are."""
        return self._controller is not None and not self._listed

    def is_gone(self, name: str) -> bool:
        """Whether the controller has listed its services, and this is none of them."""
        return self._listed and name not in self.known

    def known_service(self, name: str) -> ServiceView | None:
        """A service as the controller last listed it."""
        return self.known.get(name)

    async def take_image(self, hello: ReplicaHello) -> None:
        """Have a replica, which waits without a connection, made the image that further ones start from."""
        name, job, attempt = hello.options.service, hello.job, hello.attempt
        await self._ask(lambda controller: controller.take_service_image(name, job, attempt))

    def end(self, job: int) -> None:
        """End a replica that hangs; the service makes another."""
        self._hung[job] = True
        task = asyncio.ensure_future(self._ask(lambda controller: controller.cancel(job)))
        task.add_done_callback(lambda done: done.exception())

    async def _ask(self, call: Callable[[ServiceController], T]) -> T | None:
        """The controller's answer; None while it is away."""
        if self._controller is None:
            return None
        async with self._lock:
            try:
                found = await asyncio.to_thread(call, self._controller)
            except TideError as error:
                if isinstance(error, (Conflict, NotFound, UsageError)) and not isinstance(error, Unreachable):
                    log.warning("the controller refuses: %s", error)
                    return None
                if not self._away:
                    log.warning("the controller is away, so nothing is scaled: %s", error)
                self._away = True
                return None
        self._away = False
        return found
