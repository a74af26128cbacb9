"""One replica's life: seek the lead, read the cluster, answer; stand by again when another has taken it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable
from contextlib import suppress

from .api import TIMEOUT_S, Api, ApiError
from .binder import Binder
from .choose import Chooser
from .extender import Extender
from .lease import Lease
from .pool import Pool
from .site import Note, Site, resolve
from .verbs import Desk

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
        """Nobody else."""
        return False

    async def run(self) -> None:
        """Nothing to do."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """Nothing to give back."""


async def may_lease(api: Api, namespace: str) -> bool:
    """Whether this account may read Leases there."""
    try:
        await api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/tidewright-probe")
    except ApiError as error:
        return error.status not in (401, 403)
    return True


class Replica:
    """``note`` is told what an operator should know."""

    def __init__(self, api: Api, lease: Lease | Unfenced, extender: Extender, policy: str, note: Note) -> None:
        self.api, self.lease, self.extender, self.policy, self.note = api, lease, extender, policy, note

    async def run(self) -> None:
        """For ever; end it by cancelling, then the lease is given back. Raises what ended a part of it: without that part
        it would answer from what was once known, so another must take over."""
        renewing = asyncio.create_task(self.lease.run())
        try:
            while True:
                await _until(self.lease.holds, (renewing,))
                await self._term(self.lease.term, renewing)
        except Exception as error:
            self.note(f"ends, as a part of it failed: {error!r}")
            raise
        finally:
            renewing.cancel()
            with suppress(Exception):
                await self.lease.release()

    async def _term(self, term: int, renewing: asyncio.Task[None]) -> None:
        """From taking the lead until another has it. A lead that is lost only because the API server is away, and then
        won back before anybody else had it, is the same term: nothing was decided elsewhere."""
        self.note(f"leads (term {term}); reads the cluster")
        desk = Desk(Chooser(Pool(), self.policy))
        site = Site(self.api, desk, self.note)

        def may_act() -> bool:
            return self.lease.holds() and self.lease.term == term

        reading = asyncio.create_task(site.run())
        sweeping = asyncio.create_task(_sweep(site, may_act))
        parts = (renewing, reading, sweeping)
        try:
            if not await _synced_while(site, lambda: self.lease.term == term and not self.lease.others(), parts):
                return
            gc.collect()
            gc.freeze()  # A cluster is some million objects that stay: looking through them takes a fifth of a second.
            self.extender.begin(site, Binder(site, may_act, within_s=self.lease.margin_s))
            self.note(
                f"ready: {len(desk.chooser.pool.tables)} nodes share GPUs, {len(desk.chooser.pool.held)} pods hold some"
            )
            await _until(lambda: self.lease.others() or self.lease.term != term, parts)
            self.note("another replica leads; stands by")
        finally:
            self.extender.end()
            gc.unfreeze()
            for task in (reading, sweeping):
                task.cancel()
            await asyncio.gather(reading, sweeping, return_exceptions=True)


async def _synced_while(site: Site, leading: Callable[[], bool], parts: Iterable[asyncio.Task[None]]) -> bool:
    waiting = asyncio.create_task(site.synced())
    try:
        while not waiting.done() and leading():
            await asyncio.wait({waiting, *parts}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            _check(parts)
        return waiting.done()
    finally:
        waiting.cancel()


async def _sweep(site: Site, may_act: Callable[[], bool]) -> None:
    """Settle reservations nobody confirmed."""
    while True:
        await asyncio.sleep(SWEEP_S)
        if may_act():
            await resolve(site, site.desk.chooser.pool.overdue(site.clock()))


async def _until(true: Callable[[], bool], parts: Iterable[asyncio.Task[None]]) -> None:
    while not true():
        await asyncio.wait(parts, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        _check(parts)


def _check(parts: Iterable[asyncio.Task[None]]) -> None:
    """Raises what ended one of them: they run for ever."""
    for part in parts:
        if part.done():
            part.result()
