"""The watchdog at work on a node: looks who uses its GPUs, tells pods that take too much, and has them evicted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import UsageError, WorldError
from ...devices.excess import ExcessStep, Place, Rules, Watchdog
from ..node.gpu_units import NodeGpus
from ..node.gpus import Gpus
from ..node.node_api import NodeApi
from ..node.node_pods import NodePods
from ..objects.log import Log
from ..objects.metadata import Json, uid_of
from ..objects.pod_request import read_gpu_assignment
from .gpu_processes import GpuMemoryUse, foreign_units, pod_in, sees_node, sight
from .ladder import IsolationLadder

REASON, EVICTED, LEVEL_REASON = "GPUMemoryExceeded", "GPUMemoryEviction", "GPUIsolation"
"""Of events."""
HOST_PID = "it does not see the node's processes; set hostPID: true"
LEVELS = {"warn": "L0 watchdog (warns)", "evict": "L0 watchdog (evicts)"}


@dataclass(slots=True)
class PodMemoryGuard:
    """As of the last ``look``: ``level`` (empty: nothing is watched), ``foreign`` (units by GPU), and ``used`` (MiB, of pods;
    None while it cannot be measured)."""

    gpus: Gpus
    node_gpus: NodeGpus
    pods: NodePods
    node_api: NodeApi
    log: Log
    rules: Rules
    others: Callable[[], frozenset[tuple[str, str]]] = frozenset
    """(pod uid, UUID) of GPUs that other device plugins allocated to pods; may raise WorldError."""
    orphans: Callable[[], Mapping[str, Mapping[int, int]]] = dict
    """Units by uid and GPU of pods whose object is deleted and whose processes still run."""
    proc: Path = Path("/proc")
    level: str = ""
    foreign: Mapping[int, int] = field(default_factory=dict)
    used: Mapping[Place, int] | None = None
    _dog: Watchdog = field(init=False)
    _failing: str = ""
    _orphaned: frozenset[str] = frozenset()
    _used_by_others: Mapping[int, int] = field(default_factory=dict)
    _given_by_others: Mapping[int, int] = field(default_factory=dict)
    """Units by GPU, as of the last look that went well: to forget them for a moment is to give them away twice."""

    def __post_init__(self) -> None:
        self._dog = Watchdog(self.rules)

    async def look(self) -> bool:
        """Once; whether what the node's table or annotations say of it has changed."""
        before, held = (self.level, self.foreign), self.holdings()
        found = await self._seen()
        self.level = self._level(found)
        if found is not None or self.rules.action == "off":
            self._used_by_others = self._foreign(found, held)
        await self._look_at_others()
        self.foreign = self._with_orphans({**self._used_by_others, **self._given_by_others})
        self.used = None if found is None or found.blind else found.pods
        if found is not None:
            known = {uid_of(dict(pod)): pod for pod in self.pods.known()}
            for step in self._dog.look(time.monotonic(), found.pods, held):
                # Gone while the driver was asked: what is gone needs no step.
                if step.uid in known:
                    await self._take(step, known[step.uid])
        return before != (self.level, self.foreign)

    async def _seen(self) -> GpuMemoryUse | None:
        """None where nothing can be seen, or nothing is to be."""
        if self.rules.action == "off":
            return None
        try:
            uses = await asyncio.to_thread(self.gpus.uses)
        except WorldError as error:
            if self._failing != str(error):
                self._failing = str(error)
                self.log(f"the use of the GPUs is not known: {error}")
            return None
        self._failing = ""
        if not await asyncio.to_thread(sees_node, self.proc):
            return GpuMemoryUse({}, {}, blind=True)
        return await asyncio.to_thread(sight, uses, self._pod_of)

    def _level(self, found: GpuMemoryUse | None) -> str:
        if found is None:
            return f"no watchdog ({self._failing})" if self._failing else ""
        return f"no watchdog ({HOST_PID})" if found.blind else LEVELS[self.rules.action]

    def _pod_of(self, pid: int) -> str | None:
        try:
            return pod_in((self.proc / str(pid) / "cgroup").read_text())
        except OSError:
            return None

    def holdings(self) -> dict[Place, int]:
        """MiB by pod and GPU of this node."""
        mib: Counter[Place] = Counter()
        for pod in self.pods.known():
            try:
                held = read_gpu_assignment(pod)
            except UsageError:
                continue
            if held is not None and held.node == self.node_gpus.node:
                mib.update(
                    {(held.uid, gpu): count * self.node_gpus.split.unit_mib for gpu, count in held.units.items()}
                )
        for uid, units in self.orphans().items():
            mib.update({(uid, gpu): count * self.node_gpus.split.unit_mib for gpu, count in units.items()})
        return mib

    async def _look_at_others(self) -> None:
        """All units of GPUs that another device plugin gave away, used already or not. The kubelet forgets pods that ended
        only when it allocates again, so they are asked for. While its checkpoint cannot be read all stays as it was."""
        with suppress(WorldError):
            given, alive = await asyncio.to_thread(self.others), self.pods.alive()
            uuids = {uuid for uid, uuid in given if uid in alive}
            self._given_by_others = {
                at: self.node_gpus.units[at] for at, gpu in self.node_gpus.gpus.items() if gpu.uuid in uuids
            }

    def _with_orphans(self, foreign: Mapping[int, int]) -> dict[int, int]:
        """Orphans of two looks in a row count as foreign: the extender has released their shares, and a pod that it places there
        cannot start. Most exit within two seconds, so those of one look do not count."""
        now = self.orphans()
        lasting, self._orphaned = [units for uid, units in now.items() if uid in self._orphaned], frozenset(now)
        taken = Counter(foreign)
        for units in lasting:
            taken.update(units)
        return {at: min(count, self.node_gpus.units[at]) for at, count in taken.items() if at in self.node_gpus.units}

    def _foreign(self, found: GpuMemoryUse | None, held: Mapping[Place, int]) -> dict[int, int]:
        """What processes outside, and pods that asked for none of our units, leave too little of. Nothing where it cannot
        tell them from our own pods."""
        if found is None or found.blind:
            return {}
        ours, mib = {uid for uid, _ in held}, Counter(found.outside)
        for (uid, gpu), used in found.pods.items():
            if uid not in ours:
                mib[gpu] += used
        node_gpus = self.node_gpus
        units = {
            at: foreign_units(gpu, node_gpus.units[at], mib[at], node_gpus.split) for at, gpu in node_gpus.gpus.items()
        }
        return {at: count for at, count in units.items() if count}

    async def _take(self, step: ExcessStep, pod: Json) -> None:
        where = f"GPU {step.gpu} of {self.node_gpus.node}"
        if step.kind == "calm":
            self.log(f"pod {step.uid} is within its {step.allowed_mib} MiB of {where} again")
            return
        text = f"it uses {step.used_mib} MiB of {where} and asked for {step.allowed_mib} MiB"
        if step.kind == "warn":
            threat = f"; it is evicted in {self.rules.grace_s:.0f} s" if self.rules.action == "evict" else ""
            remedy = "ask for more, or have the program take less (torch.cuda.set_per_process_memory_fraction)"
            await self.node_api.event(pod, REASON, f"{text}{threat}: {remedy}")
        elif await self.node_api.evict(pod):
            await self.node_api.event(pod, EVICTED, f"evicted: {text}")
        self.log(f"{step.kind}: pod {step.uid}: {text}")


def level(ladder: IsolationLadder, memory_guard: PodMemoryGuard) -> str:
    """What keeps pods to their shares on a node now."""
    return ", ".join(filter(None, (ladder.level(), memory_guard.level))) or "none"
