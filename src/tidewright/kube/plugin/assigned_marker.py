"""Writes the annotation that a pod has its GPUs (``ASSIGNED``) and its isolation level, and retries until the API server has
them. Containers do not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from ...base.backoff import pause_s
from ...base.errors import UsageError, WorldError
from ..node.kubelet import KubeletFolder
from ..node.node_api import NodeApi
from ..node.node_pods import NodePods
from ..objects import names
from ..objects.metadata import ENDED, Json, annotations_of, phase, uid_of
from ..objects.pod_request import GpuAssignment, read_gpu_assignment
from ..objects.schema import Pod, validated

BACKOFF_S = (1.0, 30.0)
"""First pause after a failed write and longest; doubled, and drawn from its upper half."""
PATIENCE_S = 2.0
"""Longest delay of a container start by the first write."""


class AssignedMarker:
    """``level``: isolation level of a pod with so many units by GPU. ``allocated``: uids of pods that have their GPUs."""

    def __init__(
        self, pods: NodePods, node_api: NodeApi, level: Callable[[Mapping[int, int]], str],
        allocated: Callable[[], Collection[str]], folder: KubeletFolder,
    ) -> None:  # fmt: skip
        self.pods, self.node_api, self.level, self.allocated, self.folder = pods, node_api, level, allocated, folder
        self.pending: dict[str, GpuAssignment] = {}
        """Pods whose annotations are not written yet, by uid."""
        self._failed = asyncio.Event()

    async def mark(self, held: GpuAssignment) -> None:
        """Write the annotations of one pod, or leave them to ``run``."""
        self.pending[held.uid] = held
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._write(held)
        if held.uid in self.pending:
            self._failed.set()

    async def run(self, late: Callable[[], bool]) -> None:
        """Retries until cancelled; begins with what an earlier run did not write. ``late``: whether binding is late."""
        await self.pods.reflector.synced.wait()
        await self._scan(late())
        tries = 0
        while True:
            self._failed.clear()
            for held in list(self.pending.values()):
                await self._write(held)
            self._prune()
            tries = tries + 1 if self.pending else 0
            if not self.pending:
                await self._failed.wait()
            await asyncio.sleep(pause_s(tries, BACKOFF_S))

    async def _write(self, held: GpuAssignment) -> None:
        if await self.node_api.assigned(held, self.level(held.units)):
            self.pending.pop(held.uid, None)

    async def _scan(self, late: bool) -> None:
        """Find pods that have their GPUs and are not marked. By their allocation; else by the kubelet's checkpoint, where a pod
        that is bound late is listed before it has its GPUs."""
        try:
            listed = {entry.uid for entry in await asyncio.to_thread(self.folder.allocated)}
        except WorldError:
            listed = set()
        for pod in self.pods.known():
            held, uid = _unmarked(pod), uid_of(dict(pod))
            done = uid in self.allocated() or (uid in listed and (phase(pod) == "Running" or not late))
            if held is not None and done:
                self.pending[uid] = held

    def _prune(self) -> None:
        """Drop pods that are deleted, ended or marked."""
        here, reflector = self.pods.reflector.objects, self.pods.reflector
        deleted = set() if reflector.stale_s() else {uid for uid in self.pending if uid not in here}
        done = {uid for uid in self.pending if uid in here and _unmarked(here[uid]) is None}
        self.pending = {uid: held for uid, held in self.pending.items() if uid not in deleted | done}


def _unmarked(pod: Json) -> GpuAssignment | None:
    """The GPUs of a pod on this node that is not marked."""
    if phase(pod) in ENDED or annotations_of(pod).get(names.ASSIGNED) == "true":
        return None
    try:
        return read_gpu_assignment(validated(pod, Pod))
    except UsageError:
        return None
