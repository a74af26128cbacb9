"""Admission of pods to their GPUs at container start: the sum of units of running pods never exceeds a GPU.

The extender's accounting follows the API server and releases a pod's share when its object is deleted. With grace period 0
that is before its containers have exited: they run on for seconds, or for as long as a driver blocks their exit. So the node
remembers which pods it allocated GPUs to, and counts each until its processes are gone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..base.errors import UsageError, WorldError
from .allocation_file import AllocationFile, PodAllocation
from .ask import Holding, Json, holding_of, phase, title
from .cgroups import ABSENT, BUSY, UNKNOWN, Cgroups
from .gpus import Gpu
from .kubelet import Folder
from .shapes import Pod, shaped
from .site import Note
from .tell import PodsHere
from .units import gpu_of, occupied_units

WAIT_S, ANSWER_S = 20.0, 5.0
"""Longest wait of a call, and the time before the caller's deadline at which it is answered. The kubelet's deadline is 30 s
(deviceplugin v1beta1, constants.go); it retries after an error and after a timeout alike."""
POLL_S = 0.2
SETTLE_S = 5.0
"""The container of a pod admitted less than this ago may not exist yet, so an idle cgroup does not mean that it has exited."""
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class GpuCapacity:
    """Units of a GPU. ``exclusive``: at most one pod, however few units it has."""

    units: int
    exclusive: bool = False

    def occupied(self, units: int) -> int:
        """Units that others cannot use while a pod has ``units``."""
        return occupied_units(units, self.units if self.exclusive else 0)


def blockers(
    pod: PodAllocation, others: Iterable[PodAllocation], capacity: Mapping[int, GpuCapacity]
) -> dict[int, list[PodAllocation]]:
    """By GPU on which ``pod`` does not fit beside ``others``: those of them that have units of it. A GPU without a capacity
    fits no pod. Pure."""
    others, found = tuple(others), dict[int, list[PodAllocation]]()
    for gpu, units in pod.units.items():
        limit = capacity.get(gpu, GpuCapacity(0))
        there = [one for one in others if one.uid != pod.uid and one.units.get(gpu)]
        if sum(limit.occupied(count) for count in (units, *(one.units[gpu] for one in there))) > limit.units:
            found[gpu] = there
    return found


class GpuAdmission:
    """``gpus``, ``units``: of the node, by index. ``allocated`` survives restarts in ``file``."""

    def __init__(
        self, gpus: Mapping[int, Gpu], units: Mapping[int, int], pods: PodsHere, folder: Folder, file: AllocationFile,
        cgroups: Cgroups, note: Note, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.capacity = {at: GpuCapacity(units[at], gpu.whole) for at, gpu in gpus.items()}
        self.pods, self.folder, self.file, self.cgroups = pods, folder, file, cgroups
        self.note, self.clock = note, clock
        self.allocated: dict[str, PodAllocation] = {}
        self.orphans: dict[str, PodAllocation] = {}
        """Of ``allocated``, as of the last refresh: pods whose object is deleted and whose processes run."""
        self._admitted_s: dict[str, float] = {}
        """By uid of pods admitted in this run."""
        self._seen: set[str] = set()
        """Of those, the ones that the reflector has had."""
        self._marked: dict[str, PodAllocation] = {}
        self._last_s = self._looked_s = float("-inf")
        """Of the last admission and of the last look at who has exited."""
        self._blind = self._differs = False
        """Cgroups were not found; the file differs from ``allocated``."""
        try:
            self.allocated = file.load()
        except WorldError as error:
            self._differs = True
            note(f"{error}; allocations are recovered from the kubelet's checkpoint and the pods")
        self._recover = not self.allocated

    def deadline_s(self, left_s: float | None) -> float:
        """Latest answer to a call that begins now, by ``clock``. ``left_s``: until the caller's deadline, if there is one."""
        return self.clock() + (WAIT_S if left_s is None else min(WAIT_S, left_s - ANSWER_S))

    async def admit(self, held: Holding, deadline_s: float) -> None:
        """Wait until the pod fits on all of its GPUs, then record its allocation. Raises WorldError, naming the pods that block
        it, at ``deadline_s``."""
        pod = PodAllocation(held.uid, f"{held.namespace}/{held.name}", dict(held.units))
        while True:
            # Looked at once for all that wait: what has exited stays so, and an older look only delays.
            if self.clock() - self._looked_s >= POLL_S / 2:
                self._update(await self._exited())
            # No await from here to _record: two pods must not be admitted on the same free units.
            if self.pods.reflector.synced.is_set():
                if self._admitted(held.uid) or not (blocked := blockers(pod, self._others(), self.capacity)):
                    self._record(pod)
                    return
                why = self._refusal(pod, blocked)
            else:
                why = "the pods of this node are not known yet; the kubelet retries"
            if self.clock() >= deadline_s:
                raise WorldError(why)
            await asyncio.sleep(POLL_S)

    async def refresh(self) -> None:
        """Drop allocations of pods that have ended, and find orphans."""
        exited = await self._exited()
        if not self.pods.reflector.synced.is_set():
            return
        try:
            self._update(exited)
        except WorldError as error:
            self.note(str(error))
        here = self.pods.reflector.objects
        self.orphans = {uid: one for uid, one in self.allocated.items() if uid not in here}

    def unsettled_s(self, settle_s: float) -> float:
        """Seconds until ``settle_s`` have passed since the last admission."""
        return max(0.0, self._last_s + settle_s - self.clock())

    def _admitted(self, uid: str) -> bool:
        """Whether containers of the pod already run, so that a further or restarted one does not wait. Of a pod's object only
        the phase counts: the kubelet sets it, while users may change annotations."""
        return uid in self.allocated or phase(self.pods.reflector.objects.get(uid, {})) == "Running"

    def _others(self) -> list[PodAllocation]:
        """All that count beside a pod to be admitted: recorded, or marked as assigned by a plugin that kept no record."""
        return list({**self._marked, **self.allocated}.values())

    def _update(self, exited: set[str]) -> None:
        """Remove pods that have ended from the record, add running ones that are not in it. Raises WorldError."""
        if self.pods.reflector.synced.is_set():
            self._looked_s = self.clock()
        over = exited | self.pods.ended()
        kept = {uid: one for uid, one in self.allocated.items() if uid not in over}
        self._marked = {one.uid: one for one in _assigned(self.pods.known())}
        objects = self.pods.reflector.objects
        kept |= {
            uid: one
            for uid, one in self._marked.items()
            if uid not in kept and phase(objects.get(uid, {})) == "Running"
        }
        if self._differs or kept.keys() != self.allocated.keys():
            self._save(kept)
        self._admitted_s = {uid: at for uid, at in self._admitted_s.items() if uid in kept}
        self._seen &= kept.keys()

    def _record(self, pod: PodAllocation) -> None:
        self._last_s = self.clock()
        if pod.uid not in self.allocated:
            self._save({**self.allocated, pod.uid: pod})
            self._admitted_s[pod.uid] = self._last_s
            self._seen |= {pod.uid} & self.pods.reflector.objects.keys()

    def _save(self, allocated: dict[str, PodAllocation]) -> None:
        """To the file first: an allocation that is only in memory is lost by a kill -9."""
        self.file.save(allocated.values())
        self.allocated, self._differs = allocated, False

    async def _exited(self) -> set[str]:
        """Uids of recorded pods whose object is deleted and whose processes have exited."""
        reflector = self.pods.reflector
        self._seen |= self._admitted_s.keys() & reflector.objects.keys()
        if not reflector.synced.is_set():
            return set()
        if self._recover:
            await self._recover_orphans()
        deleted = [uid for uid in self.allocated if uid not in reflector.objects]
        states = await asyncio.to_thread(lambda: {uid: self.cgroups.state(uid) for uid in deleted})
        # Checked again: a pod may have been listed while the cgroups were read.
        return {uid for uid, state in states.items() if uid not in reflector.objects and self._is_over(uid, state)}

    def _is_over(self, uid: str, state: str) -> bool:
        """Whether a deleted pod has exited, by its cgroup."""
        recent = self.clock() - self._admitted_s.get(uid, float("-inf")) < SETTLE_S
        if state == UNKNOWN:
            if not self._blind:
                self._blind = True
                self.note(f"no cgroups of pods below {self.cgroups.root}: a deleted pod counts as exited at once")
            return uid in self._seen or not recent
        return state == ABSENT or (state != BUSY and not recent)

    async def _recover_orphans(self) -> None:
        """Without a record: running pods are found by their phase; deleted ones that run on by the kubelet's checkpoint, on the
        GPUs that their device ids name. Those are the preferred ids, normally the GPUs that were chosen."""
        self._recover, here = False, self.pods.reflector.objects
        try:
            entries = await asyncio.to_thread(self.folder.allocated)
        except WorldError:
            return
        ids: dict[str, set[str]] = {}
        for entry in entries:
            if entry.uid not in here:
                ids.setdefault(entry.uid, set()).update(entry.ids)
        busy = await asyncio.to_thread(lambda: [uid for uid in ids if self.cgroups.state(uid) == BUSY])
        for uid in busy:
            self.note(f"pod {uid} is deleted and its processes still run, by the kubelet's checkpoint and its cgroup")
            self.allocated[uid] = PodAllocation(uid, f"pod {uid}", Counter(map(gpu_of, ids[uid])))
            self._differs = True

    def _refusal(self, pod: PodAllocation, blocked: Mapping[int, list[PodAllocation]]) -> str:
        """Constant while the same pods block, so that it is one event."""
        parts = []
        for gpu, there in blocked.items():
            taken, size = sum(one.units[gpu] for one in there), self.capacity.get(gpu, GpuCapacity(0)).units
            listed = ", ".join(self._described(one) for one in there[:MOST_NAMED]) or "no pod"
            more = f" and {len(there) - MOST_NAMED} more" if len(there) > MOST_NAMED else ""
            units = pod.units[gpu]
            parts.append(f"GPU {gpu} does not fit {units} units: {taken} of {size} are allocated to {listed}{more}")
        return f"{'; '.join(parts)}; the kubelet retries until they are released"

    def _described(self, one: PodAllocation) -> str:
        deleted = one.uid not in self.pods.reflector.objects
        return f"{one.name} (deleted, its processes still run)" if deleted else one.name


def _assigned(pods: Iterable[Json]) -> list[PodAllocation]:
    """Those that have their GPUs by phase or mark."""
    found = []
    for pod in pods:
        try:
            held = holding_of(shaped(pod, Pod))
        except UsageError:
            continue
        if held is not None and (held.assigned or phase(pod) == "Running"):
            found.append(PodAllocation(held.uid, title(pod), dict(held.units)))
    return found
