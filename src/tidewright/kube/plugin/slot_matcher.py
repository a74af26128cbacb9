"""Finding the GPU of a container by its size, where it cannot be bound late; and keeping annotations true afterwards.

Everything is read anew from the kubelet's checkpoint and the API server's pods, so neither a restart in the middle of a burst
nor an answer or a mark that was lost makes any GPU be given twice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ...base.errors import TideError
from ..allocation.container_lookup import ContainerAllocation
from ..allocation.corrections import Rewrite, corrections
from ..allocation.pod_usage import Allocated, PodUse, Units, uses
from ..allocation.slots import Capacity, NoSlot, Slots
from ..node.allocate_response import allocated
from ..node.kubelet import KubeletFolder
from ..node.node_api import NodeApi
from ..node.node_pods import LOOK_S, NodePods
from ..objects import names
from ..objects.metadata import Json, annotations_of, uid_of
from ..objects.pod_request import GpuAssignment

GUESSES, LEAVING_GUESSES = 4, 20
"""So often a request is matched anew when no pod fits: the kubelet may have heard of the pod before us. And so often when
processes of deleted pods are in the way: they are being killed."""
LIST_S, ANSWER_S = 1.0, 2.0
"""Longest wait for the API server's pods within a look, and the time before a request's deadline at which there are no more
looks: the last one takes part of that, and so do events."""
SETTLES_S: tuple[float, ...] = (0.02,) * 10 + (0.1,) * 8
"""Between looks at the checkpoint after an answer: the kubelet writes it as soon as it has the answer. The sooner annotations are
true, the less the extender decides by ones that are not."""
AGAIN_S = 5.0
"""How often annotations that could not be written are tried again, and the checkpoint is compared with them at the latest."""


@dataclass
class SlotMatcher:
    """``indices`` of GPUs by UUID; ``mark``: say of a pod that it has its GPUs; ``lives``: whether a pod that the API
    server does not have any more still has processes, None where that cannot be seen; ``sick``: GPUs with faults."""

    folder: KubeletFolder
    pods: NodePods
    node_api: NodeApi
    capacity: Capacity
    indices: Mapping[str, int]
    mark: Callable[[GpuAssignment], Awaitable[None]]
    lives: Callable[[str], bool | None] = lambda uid: False
    sick: Callable[[], Collection[int]] = tuple
    _before: dict[str, list[Allocated]] = field(default_factory=dict)
    """By pod, as of the last look: the kubelet forgets at once what is force-deleted."""
    _passed: set[str] = field(default_factory=set)
    _marked: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _read: tuple[tuple[int, ...], dict[str, list[Allocated]]] = ((), {})
    """The checkpoint as last read, and its edition."""
    _blind: bool = False

    async def choose(self, size: int, ids: Collection[str], within_s: float | None = None) -> ContainerAllocation:
        """Whose request of ``size`` units this is taken for, and the GPUs it gets. ``within_s``: until the caller gives up, if
        it does. Raises NoSlot, WorldError."""
        until_s = asyncio.get_running_loop().time() + (math.inf if within_s is None else within_s - ANSWER_S)
        begun: frozenset[str] = frozenset()
        try:
            looks = 0
            while True:
                slots = await self._slots(ids, fresh=looks > 0, list_s=LIST_S)
                looks, begun = looks + 1, slots.begun(size)
                if (claim := await self._try(slots, size, ids, looks, until_s)) is not None:
                    begun = frozenset()
                    self._due.set()
                    return claim
        finally:
            # Refused, or given up by the caller: the kubelet fails the pod, and comes to another one next.
            self._passed |= begun

    async def _try(
        self, slots: Slots, size: int, ids: Collection[str], looks: int, until_s: float
    ) -> ContainerAllocation | None:
        """None: look again. Raises NoSlot."""
        try:
            return slots.choose(size, ids)
        except NoSlot as error:
            late = asyncio.get_running_loop().time() + LOOK_S > until_s
            if error.final or late or looks >= (LEAVING_GUESSES if slots.busy else GUESSES):
                raise
        await asyncio.sleep(LOOK_S)
        return None

    async def likely(self, size: int, ids: Collection[str]) -> Units:
        """The GPUs that ``choose`` would name now; empty when it would name none."""
        try:
            return (await self._slots(ids)).choose(size, ids).units or {}
        except TideError:
            return {}

    async def run(self, matches: Callable[[], bool]) -> None:
        """Marks pods that have all they asked for, and corrects what annotations say, as long as ``matches``. Runs until
        cancelled."""
        await self.pods.reflector.synced.wait()
        pauses = SETTLES_S
        while True:
            self._due.clear()
            for look, pause_s in enumerate(pauses if matches() else ()):
                await self.settle(unchanged=look > 0)
                await asyncio.sleep(pause_s)
            pauses = SETTLES_S[:1]
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._due.wait()
                    pauses = SETTLES_S

    async def settle(self, unchanged: bool = False) -> None:
        """Once. What cannot be read or written now is tried again at the next call. ``unchanged``: a checkpoint that looks as it
        did is not read again."""
        try:
            found = await self._slots(unchanged=unchanged)
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
            if not await self.node_api.pod_notes(step.use.ask, step.notes):
                break
            self.pods.slots.wrote(step.use.ask.uid, step.notes)

    async def _mark(self, use: PodUse) -> None:
        ask = use.ask
        if not use.complete() or ask.uid in self._marked or annotations_of(use.pod).get(names.ASSIGNED) == "true":
            return
        self._marked.add(ask.uid)
        await self.mark(GpuAssignment(ask.uid, ask.namespace, ask.name, self.pods.node, use.taken(), bound=True))

    async def _slots(
        self, ids: Collection[str] = (), fresh: bool = False, unchanged: bool = False, list_s: float | None = None
    ) -> Slots:
        """As of now, for a request of ``ids``. ``fresh``: the pods as the API server has them, not as we last heard, if it
        answers within ``list_s``; ``unchanged``: the checkpoint is read only if it is another one. Raises WorldError."""
        by_uid = await asyncio.to_thread(self._given, unchanged)
        pods = await self._pods(fresh, set(by_uid), list_s)
        given = [one for each in by_uid.values() for one in each]
        found = uses(pods, given, self.pods.order, self.capacity.units, self.pods.slots.applied)
        self._pass(found, by_uid)
        known = {use.ask.uid for use in found}
        past = {uid: mine for uid, mine in {**self._before, **by_uid}.items() if uid not in known}
        busy = await self._busy(past, by_uid, {one.uid for one in given if one.ids & frozenset(ids)})
        # Not over: it could not be asked about them, or they cannot be understood.
        strays = {uid: mine for uid, mine in past.items() if uid in busy or (uid in by_uid and not self._over(uid))}
        self._before = by_uid | {uid: mine for uid, mine in strays.items() if uid in busy}
        listed = [one for each in strays.values() for one in each]
        return Slots(self.capacity, found, listed, frozenset(self._passed), busy, frozenset(self.sick()))

    def _given(self, unchanged: bool) -> dict[str, list[Allocated]]:
        """What containers have, by pod. Parsing takes milliseconds on a full node, and there are many looks a second."""
        edition = self.folder.edition()
        if not (unchanged and edition and edition == self._read[0]):
            by_uid: dict[str, list[Allocated]] = {}
            for entry in self.folder.given():
                by_uid.setdefault(entry.uid, []).append(allocated(entry, self.indices))
            self._read = edition, by_uid
        return self._read[1]

    def _over(self, uid: str) -> bool:
        return uid in self._gone or uid in self.pods.ended()

    async def _busy(self, past: Collection[str], there: Collection[str], reused: Collection[str]) -> frozenset[str]:
        """Uids of pods that have processes though they are over: ``past`` ones are not among the node's pods; the ids of
        ``reused`` ones are handed out again."""
        asked = {uid for uid in past if uid not in there or self._over(uid)} | set(reused)
        lives = await asyncio.to_thread(lambda: {uid: self.lives(uid) for uid in asked})
        if None in lives.values() and not self._blind:
            self._blind = True
            self.node_api.log(
                "no cgroups of pods can be seen: GPUs of a deleted pod are given away at once, though it may still run"
            )
        return frozenset(uid for uid, found in lives.items() if found)

    async def _pods(self, fresh: bool, given: set[str], list_s: float | None) -> Iterable[Json]:
        """A container of a pod that we have not heard of is one whose pod is gone, or is newer than our knowledge."""
        here, reflector = self.pods, self.pods.reflector
        self._gone &= given
        unknown = given - reflector.objects.keys() - self._gone
        if not (fresh or unknown or not reflector.synced.is_set()):
            return here.known()
        try:
            async with asyncio.timeout(list_s):
                listed = await here.listed()
        except (TideError, TimeoutError):
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
