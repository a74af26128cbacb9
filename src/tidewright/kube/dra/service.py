"""``tide kube dra``: a driver that is found by the kubelet, whose GPUs the scheduler knows, and that looks after its pods."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from ...base.backoff import pause_s
from ...base.errors import TideError, UsageError, WorldError
from ...devices.excess import Place, Rules
from ..allocation.units import UnitSize
from ..client.api import KubeClient
from ..client.credentials import Cluster
from ..client.reflector import Reflector
from ..client.timestamps import release
from ..isolation.isolation_levels import Hami, IsolationSettings, ladder
from ..isolation.ladder import IsolationLadder
from ..isolation.memory_guard import LEVEL_REASON, PodMemoryGuard, level
from ..node.cdi import CdiFiles
from ..node.gpu_units import NodeGpus
from ..node.gpus import Gpus, news
from ..node.node_api import NodeApi
from ..node.node_pods import NodePods
from ..node.partitions import Partitions
from ..node.proto import grpc_module
from ..node.tasks import run_until_stopped
from ..objects import names
from ..objects.log import Log
from ..objects.metadata import Json, bound_to
from .claims import ClaimRecords, trim_pod
from .preparer import KIND, PREFIX, ClaimPreparer
from .protocol import DRIVER, GATES_ON, OLDEST, messages
from .slice_publisher import SlicePublisher, of_node, ours
from .slices import bodies
from .sockets import PLUGINS, REGISTRY, DriverSockets, SocketPaths

SOURCE = "tidewright-dra"
BACKOFF_S = (0.5, 30.0)
"""First pause after the API server failed and longest; doubled, and drawn from its upper half."""


@dataclass(frozen=True, slots=True)
class DraSettings:
    """``node``: its name in the API. ``poll_s``: how often our sockets are looked at."""

    node: str
    plugins: Path = PLUGINS
    registry: Path = REGISTRY
    cdi: Path = Path("/var/run/cdi")
    rules: Rules = field(default_factory=Rules)
    isolation: IsolationSettings = field(default_factory=IsolationSettings)
    health_s: float = 5.0
    watch_s: float = 10.0
    poll_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.node:
            raise UsageError("the node's name is not known", "set NODE_NAME (in a DaemonSet from spec.nodeName)")


class ClaimPods(NodePods):
    """Pods bound to one node that have claims."""

    def _trim(self, pod: dict[str, object]) -> dict[str, object] | None:
        return trim_pod(pod) if bound_to(pod) == self.node else None


@dataclass(slots=True)
class ClaimGuard(PodMemoryGuard):
    """The watchdog, over what claims give."""

    preparer: ClaimPreparer = field(kw_only=True)

    def holdings(self) -> dict[Place, int]:
        """MiB by pod and GPU of this node."""
        return self.preparer.holdings()


@dataclass(slots=True)
class ClaimHami(Hami):
    """HAMi-core's library, which is never in force for claims. It counts the processes of one container, by their pids there:
    those of another that uses the same claim have the same pids, or look dead."""

    def why_not(self) -> str:
        return "it counts the memory of one container, and several may use a claim"


def claims_ladder(gpus: Gpus, settings: IsolationSettings, log: Log) -> IsolationLadder:
    """The ladder of a node whose GPUs are given by claims. Raises UsageError for a choice that does not exist."""
    found = ladder(gpus, settings, log)
    found.levels = [ClaimHami(level.folder) if isinstance(level, Hami) else level for level in found.levels]
    return found


class DraService:
    """Runs until ``stop`` is called. ``gpus``: already open. ``partitions``: what can be made of those in MIG mode, if any."""

    def __init__(
        self, cluster: Cluster, settings: DraSettings, gpus: Gpus, partitions: Partitions | None, log: Log
    ) -> None:
        grpc_module()
        messages()
        self.settings, self.gpus, self.partitions, self.log = settings, gpus, partitions, log
        self.places = SocketPaths(settings.plugins, settings.registry)
        self.places.check()
        self.api = KubeClient(cluster)
        self.node_api, self.pods = NodeApi(self.api, settings.node, log, SOURCE), ClaimPods(self.api, settings.node)
        found, self.parents = gpus.found(), partitions.parents() if partitions is not None else ()
        self.placements = partitions.placements() if partitions is not None else ()
        self.ladder = claims_ladder(gpus, settings.isolation, log)
        # What is made of them is isolated by the hardware: the level in force is theirs too.
        self.ladder.gpus = (*found, *self.parents)
        self.ladder.select()
        records = ClaimRecords(self.places.home / "claims")
        cdi_files = CdiFiles(settings.cdi, KIND, PREFIX)
        try:
            cdi_files.sweep()
        except WorldError as error:
            log(str(error))
        self.preparer = ClaimPreparer(
            self.api, settings.node, found, partitions, self.ladder, cdi_files, records, log, self.pods.known
        )
        node_gpus = NodeGpus(
            settings.node, {gpu.index: gpu for gpu in found}, {gpu.index: gpu.memory_mib for gpu in found}, UnitSize(1)
        )
        self.memory_guard = ClaimGuard(
            gpus, node_gpus, self.pods, self.node_api, log, settings.rules, preparer=self.preparer
        )
        self.sockets = DriverSockets(self.places, self.preparer.methods(), log)
        self.publisher = SlicePublisher(self.api, settings.node, log)
        self.slices = Reflector(self.api, of_node(settings.node), self._wake, self._ours)
        self.faults: dict[int, str] = {}
        self._stop, self._due, self._level, self._release = asyncio.Event(), asyncio.Event(), "", ""

    def stop(self) -> None:
        """Claims stay prepared and slices published: the kubelet takes those away when no driver comes back."""
        self._stop.set()

    async def run(self) -> None:
        """Raises UsageError for what will never work; all else is tried again."""
        self._look_for_strangers()
        async with self.api:
            await self._look_at_health()
            loops = (self._keep_listening, self._keep_published, self._keep_healthy, self._keep_guarded)
            reading = (self.pods.reflector.run(), self.slices.run())
            try:
                await run_until_stopped(self._stop, *(loop() for loop in loops), *reading)
            finally:
                await self.sockets.end()

    def _look_for_strangers(self) -> None:
        """Claims of before whose devices are none of ours now: GPUs that are gone, or another --mig."""
        for given in self.preparer.given.values():
            known = self.preparer.gpus.keys() | self.preparer.placements.keys()
            for result in given.results:
                if result.device not in known:
                    self.log(
                        f"claim {given.namespace}/{given.name} has {result.device}, which is not here any more: "
                        "drain the node before its GPUs or --mig change"
                    )

    def _ours(self, item: dict[str, object]) -> dict[str, object] | None:
        return item if ours(item, self.settings.node) else None

    def _wake(self, what: str, item: Json) -> None:
        """Our slices were changed, by this driver or another client: a kubelet that starts deletes all of its node."""
        self._due.set()

    async def _keep_listening(self) -> None:
        while True:
            await self.sockets.tend()
            await asyncio.sleep(self.settings.poll_s)

    async def _keep_published(self) -> None:
        tries, failure = 0, ""
        while True:
            self._due.clear()
            try:
                await self._publish()
                tries, failure = 0, ""
                await self._due.wait()
            except UsageError:
                raise
            except TideError as error:
                if failure != str(error):
                    failure = str(error)
                    self.log(f"the node's GPUs are not published: {error}")
                await asyncio.sleep(pause_s(tries, BACKOFF_S))
                tries += 1

    async def _publish(self) -> None:
        if not self._release:
            await self._check_release()
        if await self.publisher.sync(self._bodies):
            self.log(f"published generation {self.publisher.generation} of {self.settings.node}'s GPUs")

    def _bodies(self, taints: bool) -> list[dict[str, object]]:
        return bodies(self.gpus.found(), self.parents, self.placements, self.faults, taints)

    async def _check_release(self) -> None:
        text = str((await self.api.get("/version")).get("gitVersion", ""))
        number = release(text)
        if number < OLDEST:
            raise UsageError(
                f"Kubernetes {text or 'of an unknown version'} has no resource.k8s.io/v1",
                "upgrade to 1.34 or later, or run tide kube device-plugin on this node",
            )
        if number < GATES_ON:
            self.log(f"Kubernetes {text}: the feature gate DRAConsumableCapacity must be on; it is from 1.36")
        self._release = text

    async def _keep_healthy(self) -> None:
        while True:
            await asyncio.sleep(self.settings.health_s)
            await self._look_at_health()

    async def _look_at_health(self) -> None:
        faults, before = await asyncio.to_thread(self.gpus.faults), self.faults
        for line in news(before, faults):
            self.log(line)
        if faults.keys() != before.keys():
            self._due.set()
        self.faults = faults

    def level(self) -> str:
        """What keeps pods to their shares on this node now."""
        return level(self.ladder, self.memory_guard)

    async def _keep_guarded(self) -> None:
        """Limits are set again at each look: by then a restarted driver or daemon may have forgotten them."""
        while True:
            await asyncio.to_thread(self.ladder.select)
            await self.preparer.hold_all()
            await self.memory_guard.look()
            await self._say_level()
            await asyncio.sleep(self.settings.watch_s)

    async def _say_level(self) -> None:
        """Written until the API server has accepted it, and the event once."""
        now = self.level()
        if now != self._level and await self.node_api.node_notes({names.LEVEL: now}):
            self._level = now
            text = f"isolation of {DRIVER}: {now}{self.ladder.why_no_more()}"
            self.log(text)
            await self.node_api.node_event(LEVEL_REASON, text)
