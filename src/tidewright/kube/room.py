"""No more pods run on a GPU than it has room for, whatever was bound: a container waits until there is.

The books of the extender say who may have a GPU, and they free a pod's share when the API server forgets the pod. That is not
when its containers are gone: deleted with no grace they live on for seconds, or for as long as a driver holds them. So who was
given a GPU is remembered here, and counts until the node says that nothing of it runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..base.errors import UsageError, WorldError
from .ask import Holding, Json, holding_of, phase, title
from .cgroups import ABSENT, BUSY, UNKNOWN, Cgroups
from .gpus import Gpu
from .kubelet import Folder
from .ledger import Given, Ledger
from .shapes import Pod, shaped
from .site import Note
from .tell import PodsHere
from .units import gpu_of

WAIT_S, ANSWER_S = 20.0, 5.0
"""So long a call waits at most, from its beginning, and so long before the kubelet gives up it is answered. The kubelet gives up
after 30 s (deviceplugin v1beta1, constants.go), and tries again either way."""
LOOK_S = 0.2
SETTLE_S = 5.0
"""A pod that was given its GPU so lately may be about to have its container made, though nothing of it runs yet."""
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Size:
    """Units of a GPU. ``whole``: for one pod alone, however little it holds."""

    units: int
    whole: bool = False


def in_the_way(held: Given, others: Iterable[Given], sizes: Mapping[int, Size]) -> dict[int, list[Given]]:
    """By GPU that has no room for ``held`` beside ``others``: who of them is on it. A GPU that is not known has room for nobody.
    Pure."""
    others, found = tuple(others), dict[int, list[Given]]()
    for gpu, units in held.units.items():
        size = sizes.get(gpu, Size(0))
        there = [one for one in others if one.uid != held.uid and one.units.get(gpu)]
        if units + sum(one.units[gpu] for one in there) > size.units or (size.whole and there):
            found[gpu] = there
    return found


class Room:
    """``gpus``, ``units``: of the node, by index. What was given is read from ``ledger`` at the start."""

    def __init__(
        self, gpus: Mapping[int, Gpu], units: Mapping[int, int], pods: PodsHere, folder: Folder, ledger: Ledger,
        cgroups: Cgroups, note: Note, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.sizes = {at: Size(units[at], gpu.whole) for at, gpu in gpus.items()}
        self.pods, self.folder, self.ledger, self.cgroups = pods, folder, ledger, cgroups
        self.note, self.clock = note, clock
        self.given: dict[str, Given] = {}
        self.ghosts: dict[str, Given] = {}
        """Of those, the ones that the API server forgot and that still run, as of the last look."""
        self._at_s: dict[str, float] = {}
        self._seen: set[str] = set()
        """Uids given in this run: since when, and which of them the reflector has had."""
        self._last_s = float("-inf")
        self._blind = False
        self._lost = False
        try:
            self.given = ledger.load()
        except WorldError as error:
            note(f"{error}; who has GPUs is taken from the kubelet's checkpoint and the pods")
        self._lost = not self.given

    def until_s(self, left_s: float | None) -> float:
        """When a call that begins now is answered at the latest, by ``clock``; ``left_s``: until its caller gives up."""
        wait_s = WAIT_S if left_s is None else min(WAIT_S, left_s - ANSWER_S)
        return self.clock() + wait_s

    async def give(self, held: Holding, until_s: float) -> None:
        """Wait until all GPUs of a pod have room for it, and remember that it has them. ``until_s``: not longer, by ``clock``.
        Raises WorldError, with the pods that are in the way."""
        wanted = Given(held.uid, f"{held.namespace}/{held.name}", dict(held.units))
        while True:
            gone = await self._look()
            if self.pods.reflector.synced.is_set():
                if self._has(held.uid) or not (crowded := in_the_way(wanted, self._others(gone), self.sizes)):
                    self._remember(wanted)
                    self._last_s = self.clock()
                    return
                why = self._refusal(wanted, crowded)
            else:
                why = "which pods are on this node is not known yet; the kubelet tries again"
            if self.clock() >= until_s:
                raise WorldError(why)
            await asyncio.sleep(LOOK_S)

    async def sweep(self) -> None:
        """Forget who is over; see who is a ghost."""
        gone = await self._look()
        if not self.pods.reflector.synced.is_set():
            return
        try:
            self._adopt(gone)
        except WorldError as error:
            self.note(str(error))
        here = self.pods.reflector.objects
        self.ghosts = {uid: one for uid, one in self.given.items() if uid not in here}

    def settling_s(self, made_s: float) -> float:
        """Seconds until ``made_s`` after the last container that was told of."""
        return max(0.0, self._last_s + made_s - self.clock())

    def farewell(self) -> str:
        """What is left when we go, in words; empty when nothing is."""
        if not self.given:
            return ""
        return (
            f"{self.ledger.path} stays while pods have GPUs ({len(self.given)} of them), or until the node starts anew"
        )

    def _has(self, uid: str) -> bool:
        """A pod that has its GPUs, one of whose containers is made or made anew, never waits. Running is what the kubelet says;
        everything else about a pod anybody may write."""
        return uid in self.given or phase(self.pods.reflector.objects.get(uid, {})) == "Running"

    def _others(self, gone: set[str]) -> list[Given]:
        """Who counts beside a pod that is to start: those in the ledger, and those of before there was one."""
        self._adopt(gone)
        marked = {one.uid: one for one in _holders(self.pods.known()) if one.uid not in self.given}
        return [*self.given.values(), *marked.values()]

    def _adopt(self, gone: set[str]) -> None:
        """Bring the ledger up to date: without those that are ``gone`` or ended, with those that run without standing in it."""
        over = gone | self.pods.ended()
        kept = {uid: one for uid, one in self.given.items() if uid not in over}
        running = [one for one in self.pods.known() if phase(one) == "Running"]
        kept |= {one.uid: one for one in _holders(running) if one.uid not in kept}
        if kept.keys() != self.given.keys():
            self._keep(kept)
        self._at_s = {uid: at for uid, at in self._at_s.items() if uid in kept}
        self._seen &= kept.keys()

    def _keep(self, given: dict[str, Given]) -> None:
        """In the file first: what is not written there would be forgotten by a kill -9."""
        self.ledger.save(given.values())
        self.given = given

    def _remember(self, one: Given) -> None:
        if one.uid not in self.given:
            self._keep({**self.given, one.uid: one})
            self._at_s[one.uid] = self.clock()
            self._seen |= {one.uid} & self.pods.reflector.objects.keys()

    async def _look(self) -> set[str]:
        """Uids of those in the ledger that the API server has not, and of which nothing runs."""
        reflector = self.pods.reflector
        self._seen |= self._at_s.keys() & reflector.objects.keys()
        if not reflector.synced.is_set():
            return set()
        if self._lost:
            await self._recover()
        missing = [uid for uid in self.given if uid not in reflector.objects]
        states = await asyncio.to_thread(lambda: {uid: self.cgroups.state(uid) for uid in missing})
        # As it is by now: a pod that came meanwhile is not gone.
        return {uid for uid, state in states.items() if uid not in reflector.objects and self._over(uid, state)}

    def _over(self, uid: str, state: str) -> bool:
        """Whether a pod that the API server does not have is over, by its cgroup."""
        young = self.clock() - self._at_s.get(uid, float("-inf")) < SETTLE_S
        if state == UNKNOWN:
            if not self._blind:
                self._blind = True
                self.note(f"no cgroups of pods below {self.cgroups.root}: a deleted pod counts as over at once")
            return uid in self._seen or not young
        return state == ABSENT or (state != BUSY and not young)

    async def _recover(self) -> None:
        """Without a ledger: pods that run are found by their phase, and those that the API server forgot meanwhile and that run
        all the same by the kubelet's checkpoint, on the GPUs that their ids name, which is where they were wished to be."""
        self._lost, here = False, self.pods.reflector.objects
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
            self.given[uid] = Given(uid, f"pod {uid}", Counter(map(gpu_of, ids[uid])))

    def _refusal(self, wanted: Given, crowded: Mapping[int, list[Given]]) -> str:
        """Names who is in the way. The same words as long as it is the same pods, so that the pod's events tell it once."""
        parts = []
        for gpu, there in crowded.items():
            taken = sum(one.units[gpu] for one in there)
            who = ", ".join(self._named(one) for one in there[:MOST_NAMED]) or "nobody"
            more = f" and {len(there) - MOST_NAMED} more" if len(there) > MOST_NAMED else ""
            size = self.sizes.get(gpu, Size(0)).units
            parts.append(
                f"GPU {gpu} has no room for {wanted.units[gpu]} units: {taken} of {size} are held by {who}{more}"
            )
        return f"{'; '.join(parts)}; the kubelet tries again"

    def _named(self, one: Given) -> str:
        known = self.pods.reflector.objects.get(one.uid)
        return f"{one.name} ({'deleted, and its processes still run' if known is None else 'given it before'})"


def _holders(pods: Iterable[Json]) -> list[Given]:
    """Those that have their GPUs by what their objects say."""
    found = []
    for pod in pods:
        try:
            held = holding_of(shaped(pod, Pod))
        except UsageError:
            continue
        if held is not None and (held.assigned or phase(pod) == "Running"):
            found.append(Given(held.uid, title(pod), dict(held.units)))
    return found
