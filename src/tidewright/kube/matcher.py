"""Finding the GPU of a container by its size, where it cannot be bound late; and keeping annotations true afterwards.

Everything is read anew from the kubelet's checkpoint and the API server's pods, so neither a restart in the middle of a burst
nor an answer or a mark that was lost makes any GPU be given twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ..base.errors import TideError, UsageError
from . import names
from .allocated import Allocated, PodUse, Units, allocated, uses
from .ask import Holding, Json, notes_of
from .corrections import Rewrite, corrections
from .kubelet import Folder
from .match import Claim
from .reflector import uid_of
from .slots import Capacity, Slots
from .tell import LOOK_S, PodsHere, Teller

GUESSES, LEAVING_GUESSES = 4, 20
"""So often a request is matched anew when no pod fits: the kubelet may have heard of the pod before us. And so often when
processes of deleted pods are in the way: they are being killed."""
SETTLES_S: tuple[float, ...] = (0.02,) * 10 + (0.1,) * 8
"""Between looks at the checkpoint after an answer: the kubelet writes it as soon as it has the answer. The sooner annotations are
true, the less the extender decides by ones that are not."""
AGAIN_S = 5.0
"""How often annotations that could not be written are tried again, and the checkpoint is compared with them at the latest."""


@dataclass
class Matcher:
    """``indices`` of GPUs by UUID; ``mark``: say of a pod that it has its GPUs; ``lives``: whether a pod that the API
    server does not have any more still has processes; ``sick``: GPUs with faults."""

    folder: Folder
    pods: PodsHere
    tell: Teller
    capacity: Capacity
    indices: Mapping[str, int]
    mark: Callable[[Holding], Awaitable[None]]
    lives: Callable[[str], bool] = lambda uid: False
    sick: Callable[[], Collection[int]] = tuple
    _before: dict[str, list[Allocated]] = field(default_factory=dict)
    """By pod, as of the last look: the kubelet forgets at once what is force-deleted."""
    _passed: set[str] = field(default_factory=set)
    _marked: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)
    _due: asyncio.Event = field(default_factory=asyncio.Event)

    async def choose(self, size: int, ids: Collection[str]) -> Claim:
        """Whose request of ``size`` units this is taken for, and the GPUs it gets. Raises UsageError, WorldError."""
        looks = 0
        while True:
            slots = await self._slots(ids, fresh=looks > 0)
            looks += 1
            try:
                claim = slots.choose(size, ids)
            except TideError as error:
                if isinstance(error, UsageError) or looks >= (LEAVING_GUESSES if slots.busy else GUESSES):
                    # The kubelet fails the pod, and comes to another one next.
                    self._passed |= slots.begun(size)
                    raise
                await asyncio.sleep(LOOK_S)
            else:
                self._due.set()
                return claim

    async def likely(self, size: int, ids: Collection[str]) -> Units:
        """The GPUs that ``choose`` would name now; empty when it would name none."""
        try:
            return (await self._slots(ids)).choose(size, ids).units or {}
        except TideError:
            return {}

    async def run(self, matches: Callable[[], bool]) -> None:
        """Marks pods that have all they asked for, and corrects what annotations say, as long as ``matches``. For ever; end it by
        cancelling."""
        await self.pods.reflector.synced.wait()
        pauses = SETTLES_S
        while True:
            self._due.clear()
            for pause_s in pauses if matches() else ():
                await self.settle()
                await asyncio.sleep(pause_s)
            pauses = SETTLES_S[:1]
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._due.wait()
                    pauses = SETTLES_S

    async def settle(self) -> None:
        """Once. What cannot be read or written now is tried again at the next call."""
        try:
            found = await self._slots()
            if corrections(found):
                # By the newest annotations: our own last words may not have come back to us yet.
                found = await self._slots(fresh=True)
                for ring in corrections(found):
                    await self._write(ring)
        except TideError:
            return
        for use in found.uses:
            await self._mark(use)

    async def _write(self, ring: Iterable[Rewrite]) -> None:
        for step in ring:
            if not await self.tell.pod_notes(step.use.ask, step.notes):
                break
            self.pods.slots.wrote(step.use.ask.uid, step.notes)

    async def _mark(self, use: PodUse) -> None:
        ask = use.ask
        if not use.complete() or ask.uid in self._marked or notes_of(use.pod).get(names.ASSIGNED) == "true":
            return
        self._marked.add(ask.uid)
        await self.mark(Holding(ask.uid, ask.namespace, ask.name, self.pods.node, use.taken(), bound=True))

    async def _slots(self, ids: Collection[str] = (), fresh: bool = False) -> Slots:
        """As of now, for a request of ``ids``. ``fresh``: the pods as the API server has them, not as we last heard. Raises
        WorldError."""
        entries = await asyncio.to_thread(self.folder.given)
        by_uid: dict[str, list[Allocated]] = {}
        for entry in entries:
            by_uid.setdefault(entry.uid, []).append(allocated(entry, self.indices))
        pods = await self._pods(fresh, set(by_uid))
        given = [one for each in by_uid.values() for one in each]
        found = uses(pods, given, self.pods.order, self.capacity.units, self.pods.slots.applied)
        self._pass(found, by_uid)
        known = {use.ask.uid for use in found}
        past = {uid: mine for uid, mine in {**self._before, **by_uid}.items() if uid not in known}
        busy = await self._busy(past, by_uid, {entry.uid for entry in entries if entry.ids & frozenset(ids)})
        # Not over: it could not be asked about them, or they cannot be understood.
        strays = {uid: mine for uid, mine in past.items() if uid in busy or (uid in by_uid and not self._over(uid))}
        self._before = by_uid | {uid: mine for uid, mine in strays.items() if uid in busy}
        listed = [one for each in strays.values() for one in each]
        return Slots(self.capacity, found, listed, frozenset(self._passed), busy, frozenset(self.sick()))

    def _over(self, uid: str) -> bool:
        return uid in self._gone or uid in self.pods.ended()

    async def _busy(self, past: Collection[str], there: Collection[str], reused: Collection[str]) -> frozenset[str]:
        """Uids of pods that have processes though they are over: ``past`` ones are not among the node's pods; the ids of
        ``reused`` ones are handed out again."""
        asked = {uid for uid in past if uid not in there or self._over(uid)} | set(reused)
        return await asyncio.to_thread(lambda: frozenset(uid for uid in asked if self.lives(uid)))

    async def _pods(self, fresh: bool, given: set[str]) -> Iterable[Json]:
        """A container of a pod that we have not heard of is one whose pod is gone, or is newer than our knowledge."""
        here, reflector = self.pods, self.pods.reflector
        self._gone &= given
        unknown = given - reflector.objects.keys() - self._gone
        if not (fresh or unknown or not reflector.synced.is_set()):
            return here.known()
        try:
            listed = await here.listed()
        except TideError:
            return here.known()
        self._gone |= unknown - {uid_of(dict(pod)) for pod in listed}
        self._marked &= {uid_of(dict(pod)) for pod in listed}
        return listed

    def _pass(self, found: Iterable[PodUse], by_uid: Mapping[str, list[Allocated]]) -> None:
        """The kubelet allocates for one pod after the other: once another one has something new, it is through with those
        that were begun, whether they are complete or failed."""
        new = {uid for uid, mine in by_uid.items() if len(mine) > len(self._before.get(uid, ()))}
        begun = {use.ask.uid for use in found if use.has and not use.complete()}
        if self._before and new:
            self._passed |= begun - new
        self._passed &= by_uid.keys()
