"""One replica's life: seek the lead, read the cluster, answer; stand by again when another has taken it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable
from contextlib import suppress

from ..allocation.gpu_selection import GpuSelector
from ..allocation.pool import Pool
from ..client.api import TIMEOUT_S, ApiError, KubeClient
from ..client.lease import Lease
from ..objects.log import Log
from .binder import Binder
from .cluster_cache import ClusterCache, resolve
from .handler import ExtenderHandler
from .http import ExtenderApp

LOOK_S = 0.2
SWEEP_S = 1.0


class Unfenced:
    """Instead of a Lease, where the account has no right to one: there must be one replica, as gpushare's manifest has it."""

    term = 0
    margin_s = TIMEOUT_S

    def holds(self) -> bool:
        """Always."""
        return True

    def others(self) -> bool:
        """No other replica may lead."""
        return False

    async def run(self) -> None:
        """Nothing to do."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """Nothing to give back."""


async def may_lease(api: KubeClient, namespace: str) -> bool:
    """Whether this account may read Leases there."""
    try:
        await api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/tidewright-probe")
    except ApiError as error:
        return error.status not in (401, 403)
    return True


class Replica:
    """``log``: called with what an operator should know."""

    def __init__(self, api: KubeClient, lease: Lease | Unfenced, extender: ExtenderApp, policy: str, log: Log) -> None:
        self.api, self.lease, self.extender, self.policy, self.log = api, lease, extender, policy, log

    async def run(self) -> None:
        """Runs until cancelled, then releases the Lease. Raises what ended a part of it: without that part
        it would answer from what was once known, so another must take over."""
        renewing = asyncio.create_task(self.lease.run())
        try:
            while True:
                await _until(self.lease.holds, (renewing,))
                await self._term(self.lease.term, renewing)
        except Exception as error:
            self.log(f"ends, as a part of it failed: {error!r}")
            raise
        finally:
            renewing.cancel()
            with suppress(Exception):
                await self.lease.release()

    async def _term(self, term: int, renewing: asyncio.Task[None]) -> None:
        """From taking the lead until another has it. A lead that is lost only because the API server is away, and then
        won back before anybody else had it, is the same term: nothing was decided elsewhere."""
        self.log(f"leads (term {term}); reads the cluster")
        handler = ExtenderHandler(GpuSelector(Pool(), self.policy))
        cluster_cache = ClusterCache(self.api, handler, self.log)

        def may_act() -> bool:
            return self.lease.holds() and self.lease.term == term

        reading = asyncio.create_task(cluster_cache.run())
        sweeping = asyncio.create_task(_sweep(cluster_cache, may_act))
        parts = (renewing, reading, sweeping)
        try:
            if not await _synced_while(
                cluster_cache, lambda: self.lease.term == term and not self.lease.others(), parts
            ):
                return
            gc.collect()
            gc.freeze()  # A cluster is some million objects that stay: looking through them takes a fifth of a second.
            self.extender.begin(cluster_cache, Binder(cluster_cache, may_act, within_s=self.lease.margin_s))
            pool = handler.chooser.pool
            self.log(f"ready: {len(pool.inventories)} nodes share GPUs, {len(pool.held)} pods have GPUs assigned")
            await _until(lambda: self.lease.others() or self.lease.term != term, parts)
            self.log("another replica leads; stands by")
        finally:
            self.extender.end()
            gc.unfreeze()
            for task in (reading, sweeping):
                task.cancel()
            await asyncio.gather(reading, sweeping, return_exceptions=True)


async def _synced_while(
    cluster_cache: ClusterCache, leading: Callable[[], bool], parts: Iterable[asyncio.Task[None]]
) -> bool:
    waiting = asyncio.create_task(cluster_cache.synced())
    try:
        while not waiting.done() and leading():
            await asyncio.wait({waiting, *parts}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            _check(parts)
        return waiting.done()
    finally:
        waiting.cancel()


async def _sweep(cluster_cache: ClusterCache, may_act: Callable[[], bool]) -> None:
    """Settle reservations that expired without confirmation."""
    while True:
        await asyncio.sleep(SWEEP_S)
        if may_act():
            await resolve(cluster_cache, cluster_cache.handler.chooser.pool.overdue(cluster_cache.clock()))


async def _until(true: Callable[[], bool], parts: Iterable[asyncio.Task[None]]) -> None:
    while not true():
        await asyncio.wait(parts, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        _check(parts)


def _check(parts: Iterable[asyncio.Task[None]]) -> None:
    """Raises what ended one of them: they never return."""
    for part in parts:
        if part.done():
            part.result()
