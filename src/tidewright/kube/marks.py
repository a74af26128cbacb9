"""The mark on a pod that it has its GPUs (``ASSIGNED``), written until the API server has it: a container starts without it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from ..base.errors import UsageError, WorldError
from . import names
from .ask import ENDED, Holding, Json, holding_of, notes_of, phase
from .kubelet import Folder
from .reflector import uid_of
from .shapes import Pod, shaped
from .tell import PodsHere, Teller

BACKOFF_S = (1.0, 30.0)
"""First pause after a mark that failed and longest; doubled, and drawn from its upper half."""
PATIENCE_S = 2.0
"""So long a container waits for the mark of its pod; then it starts, and the mark follows."""


class Marks:
    """``level``: how pods are isolated that have so many units by GPU. ``given``: uids of pods that have their GPUs."""

    def __init__(
        self, pods: PodsHere, tell: Teller, level: Callable[[Mapping[int, int]], str],
        given: Callable[[], Collection[str]], folder: Folder,
    ) -> None:  # fmt: skip
        self.pods, self.tell, self.level, self.given, self.folder = pods, tell, level, given, folder
        self.owed: dict[str, Holding] = {}
        """Pods whose mark is to be written, by uid."""
        self._due = asyncio.Event()

    async def mark(self, held: Holding) -> None:
        """Soon; nothing is lost when it fails, for whose container it is does not depend on it."""
        self.owed[held.uid] = held
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._write(held)
        if held.uid in self.owed:
            self._due.set()

    async def keep(self, late: Callable[[], bool]) -> None:
        """For ever: what could not be written is tried again, after a restart too. ``late``: containers are bound late."""
        await self.pods.reflector.synced.wait()
        await self._find(late())
        tries = 0
        while True:
            self._due.clear()
            for held in list(self.owed.values()):
                await self._write(held)
            self._forget()
            tries = tries + 1 if self.owed else 0
            if not self.owed:
                await self._due.wait()
            low, high = BACKOFF_S
            await asyncio.sleep(min(high, low * 2 ** min(tries, 8)) * random.uniform(0.5, 1.0))

    async def _write(self, held: Holding) -> None:
        if await self.tell.assigned(held, self.level(held.units)):
            self.owed.pop(held.uid, None)

    async def _find(self, late: bool) -> None:
        """What an earlier run could not write: pods that have their GPUs and do not say so. By the ledger; else by the kubelet's
        checkpoint, in which a pod that is bound late stands before it has them."""
        try:
            allocated = {entry.uid for entry in await asyncio.to_thread(self.folder.allocated)}
        except WorldError:
            allocated = set()
        for pod in self.pods.known():
            held, uid = _unmarked(pod), uid_of(dict(pod))
            done = uid in self.given() or (uid in allocated and (phase(pod) == "Running" or not late))
            if held is not None and done:
                self.owed[uid] = held

    def _forget(self) -> None:
        """Pods that are gone, ended, or marked after all need none."""
        here, reflector = self.pods.reflector.objects, self.pods.reflector
        gone = set() if reflector.stale_s() else {uid for uid in self.owed if uid not in here}
        done = {uid for uid in self.owed if uid in here and _unmarked(here[uid]) is None}
        self.owed = {uid: held for uid, held in self.owed.items() if uid not in gone | done}


def _unmarked(pod: Json) -> Holding | None:
    """What a pod here holds that is not marked."""
    if phase(pod) in ENDED or notes_of(pod).get(names.ASSIGNED) == "true":
        return None
    try:
        return holding_of(shaped(pod, Pod))
    except UsageError:
        return None
