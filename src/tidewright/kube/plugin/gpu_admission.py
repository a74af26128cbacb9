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
from contextlib import suppress
from dataclasses import dataclass

from ...base.errors import UsageError, WorldError
from ..allocation.container_lookup import CheckpointEntry
from ..allocation.units import gpu_of, occupied_units
from ..node.cgroups import ABSENT, BUSY, UNKNOWN, Cgroups
from ..node.gpus import Gpu
from ..node.kubelet import KubeletFolder
from ..node.node_pods import NodePods
from ..objects.log import Log
from ..objects.metadata import Json, phase, title
from ..objects.pod_request import GpuAssignment, asked_units, fitted, read_gpu_assignment
from ..objects.schema import Pod, validated
from .allocation_file import AllocationFile, PodAllocation

WAIT_S, ANSWER_S = 20.0, 5.0
"""Longest wait of a call, and the time before the caller's deadline at which it is answered. The kubelet's deadline is 30 s
(deviceplugin v1beta1, constants.go); it retries after an error and after a timeout alike."""
POLL_S = 0.2
SETTLE_S = 5.0
"""The container of a pod admitted less than this ago may not exist yet, so an idle cgroup does not mean that it has exited."""
MOST_NAMED = 5


class PodGone(WorldError):
    """The pod was deleted before it had its GPUs."""


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
        self, gpus: Mapping[int, Gpu], units: Mapping[int, int], pods: NodePods, folder: KubeletFolder, file: AllocationFile,
        cgroups: Cgroups, log: Log, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.capacity = {at: GpuCapacity(units[at], gpu.whole) for at, gpu in gpus.items()}
        self.pods, self.folder, self.file, self.cgroups = pods, folder, file, cgroups
        self.log, self.clock = log, clock
        self.allocated: dict[str, PodAllocation] = {}
        self.orphans: dict[str, PodAllocation] = {}
        """Of ``allocated``, as of the last refresh: pods whose object is deleted and whose processes run."""
        self._admitted_s: dict[str, float] = {}
        """By uid of pods admitted in this run."""
        self._seen: set[str] = set()
        """Of those, the ones that the reflector has had."""
        self._last_s = self._looked_s = float("-inf")
        """Of the last admission and of the last look at who has exited."""
        self._blind = self._differs = False
        """Cgroups were not found; the file differs from what is to be recorded."""
        self._candidates: dict[str, PodAllocation] = {}
        """Until orphans have been looked for: pods of the kubelet's checkpoint, of which some may be orphans."""
        self._checkpoint_read = False
        self._recovery = asyncio.Lock()
        self._load()
        self._recover = bool(self._candidates) or not self.allocated
        if self._recover:
            self._record_candidates()

    def _load(self) -> None:
        try:
            record = self.file.load()
        except WorldError as error:
            self._differs = True
            self.log(f"{error}; allocations are recovered from the kubelet's checkpoint and the pods")
        else:
            self.allocated, self._candidates = record.allocated, record.candidates

    def _record_candidates(self) -> None:
        """Read the checkpoint before the kubelet can allocate anew, which makes it forget deleted pods, and save what it says:
        this run may end before it knows which pods are deleted, and the next one would find neither."""
        with suppress(WorldError):  # read again, and the error reported, when orphans are looked for
            self._read_checkpoint()
        if self._candidates:
            try:
                self._save(self.allocated)
            except WorldError as error:
                self._differs = True
                self.log(str(error))

    def _read_checkpoint(self) -> None:
        """Raises WorldError."""
        # What it says now takes precedence: a recorded candidate may have got further containers since.
        self._candidates |= _candidates(self.folder.given())
        self._checkpoint_read = True

    def deadline_s(self, left_s: float | None) -> float:
        """Latest answer to a call that begins now, by ``clock``. ``left_s``: until the caller's deadline, if there is one."""
        return self.clock() + (WAIT_S if left_s is None else min(WAIT_S, left_s - ANSWER_S))

    async def admit(self, held: GpuAssignment, deadline_s: float) -> None:
        """Wait until the pod fits on all of its GPUs, then record its allocation. Raises UsageError when the pod's GPUs are not
        those that it was admitted to, PodGone when it is deleted meanwhile, WorldError, naming the pods that block it, at
        ``deadline_s``."""
        pod, seen = PodAllocation(held.uid, f"{held.namespace}/{held.name}", dict(held.units)), False
        while True:
            # Cgroups are read once for all that wait: what has exited stays so, and an older look at them only delays.
            unreadable = await self._look()
            # No await from here to _record: two pods must not be admitted on the same free units.
            seen |= self._check_there(held.uid, seen)
            if not (why := unreadable or self._unknown(held.uid)):
                self._check_same(pod)
                if self._admitted(held.uid) or not (blocked := blockers(pod, self._others(), self.capacity)):
                    self._record(pod)
                    return
                why = self._refusal(pod, blocked)
            if self.clock() >= deadline_s:
                raise WorldError(why)
            await asyncio.sleep(POLL_S)

    async def _look(self) -> str:
        """Refresh which pods have exited, unless that was done just now. Returns why no pod can be admitted, else ""."""
        if self._recover or self.clock() - self._looked_s >= POLL_S / 2:
            try:
                exited = await self._exited()
            except WorldError as error:
                return f"{error}; it says which deleted pods may still run, so the kubelet retries"
            self._update(exited)
        return ""

    def _check_there(self, uid: str, seen: bool) -> bool:
        """Whether the pod's object is there. Raises PodGone when it is being deleted, or was ``seen`` and is not any more."""
        if not self.pods.reflector.synced.is_set():
            return False
        pod = self.pods.reflector.objects.get(uid)
        if (pod is None and seen) or (pod is not None and (pod.get("metadata") or {}).get("deletionTimestamp")):
            raise PodGone(f"pod {uid if pod is None else title(pod)} is deleted: it gets no GPU any more")
        return pod is not None

    def _unknown(self, uid: str) -> str:
        """Why nothing can be said of the pod, if that is so."""
        if not self.pods.reflector.synced.is_set():
            return "the pods of this node are not known yet; the kubelet retries"
        if uid not in self.pods.reflector.objects:
            return f"the API server has not shown the pod {uid} on this node yet; the kubelet retries"
        return ""

    def _check_same(self, pod: PodAllocation) -> None:
        """Raises UsageError unless the pod's shares are those it was admitted with: annotations may have been edited since."""
        had = self.allocated.get(pod.uid, pod).units
        # In proportion, because a unit may be of another size since.
        total, before = sum(pod.units.values()), sum(had.values())
        if {gpu: units * before for gpu, units in pod.units.items()} != {gpu: n * total for gpu, n in had.items()}:
            raise UsageError(
                f"the annotations of pod {pod.name} give it {_listed(pod.units)}, and it was admitted to {_listed(had)}",
                "restore its GPU annotations, or recreate the pod",
            )

    async def refresh(self, follow: bool = False) -> None:
        """Drop allocations of pods that have ended, and find orphans. ``follow``: what running pods have is what their
        annotations say by now, because we correct them; else it is what they were admitted with."""
        try:
            exited = await self._exited()
        except WorldError:
            return  # nothing is recorded before orphans are known, or the next run would not look for them
        if not self.pods.reflector.synced.is_set():
            return
        try:
            self._update(exited, follow)
        except WorldError as error:
            self.log(str(error))
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
        return list({**self._marked(), **self.allocated}.values())

    def _marked(self) -> dict[str, PodAllocation]:
        return {one.uid: one for one in _assigned(self.pods.known())}

    def _update(self, exited: set[str], follow: bool = False) -> None:
        """Remove pods that have ended from the record, add running ones that are not in it. Raises WorldError."""
        if self.pods.reflector.synced.is_set():
            self._looked_s = self.clock()
        over = exited | self.pods.ended()
        kept = {uid: one for uid, one in self.allocated.items() if uid not in over}
        objects = self.pods.reflector.objects
        kept |= {
            uid: one
            for uid, one in self._marked().items()
            if (follow or uid not in kept) and phase(objects.get(uid, {})) == "Running"
        }
        if self._differs or kept != self.allocated:
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
        self.file.save(allocated.values(), self._candidates.values())
        self.allocated, self._differs = allocated, False

    async def _exited(self) -> set[str]:
        """Uids of recorded pods whose object is deleted and whose processes have exited. Raises WorldError while there is no
        record and the kubelet's checkpoint cannot be read."""
        reflector = self.pods.reflector
        self._seen |= self._admitted_s.keys() & reflector.objects.keys()
        if not reflector.synced.is_set():
            return set()
        async with self._recovery:  # concurrent callers wait for the result
            if self._recover:
                await self._recover_orphans()
                self._recover = False
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
                self.log(f"no cgroups of pods below {self.cgroups.root}: a deleted pod counts as exited at once")
            return uid in self._seen or not recent
        return state == ABSENT or (state != BUSY and not recent)

    async def _recover_orphans(self) -> None:
        """Without a record: running pods are found by their phase; deleted ones that run on by the kubelet's checkpoint, on the
        GPUs that their device ids name. Those are the preferred ids, normally the GPUs that were chosen. Raises WorldError."""
        if not self._checkpoint_read:
            await asyncio.to_thread(self._read_checkpoint)
        deleted = [uid for uid in self._candidates if uid not in self.pods.reflector.objects]
        busy = await asyncio.to_thread(lambda: [uid for uid in deleted if self.cgroups.state(uid) == BUSY])
        for uid in busy:
            self.log(f"pod {uid} is deleted and its processes still run, by the kubelet's checkpoint and its cgroup")
            self.allocated.setdefault(uid, self._candidates[uid])  # what it was admitted with is more exact
        self._differs |= bool(self._candidates)
        self._candidates = {}

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
    """Those that have their GPUs by phase or mark, and that the kubelet can have allocated some: they have a limit."""
    found = []
    for pod in pods:
        try:
            held, total = read_gpu_assignment(validated(pod, Pod)), asked_units(pod)
        except UsageError:
            continue
        if held is not None and total is not None and (held.assigned or phase(pod) == "Running"):
            found.append(PodAllocation(held.uid, title(pod), fitted(held.units, total, most=1)))
    return found


def _candidates(entries: Iterable[CheckpointEntry]) -> dict[str, PodAllocation]:
    """By uid, on the GPUs that the device ids of all containers name. Ids of another plugin, which was here before, name none."""
    ids: dict[str, set[str]] = {}
    for entry in entries:
        ids.setdefault(entry.uid, set()).update(one for one in entry.ids if gpu_of(one) >= 0)
    return {uid: PodAllocation(uid, f"pod {uid}", Counter(map(gpu_of, held))) for uid, held in ids.items()}


def _listed(units: Mapping[int, int]) -> str:
    return ", ".join(f"{count} units of GPU {gpu}" for gpu, count in sorted(units.items())) or "no GPU"
